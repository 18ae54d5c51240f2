"""Attention over the blocks of a packed row (see `frame_pack`): no mask, no padding, one kernel for the whole batch."""

from __future__ import annotations

import logging
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from inference.runtime import gpu_traits
from inference.runtime.frame_pack import QUERY_BLOCK, Blocks, FramePack, PackedMel, device_layout

logger = logging.getLogger(__name__)

_PROBE_BOUND = 0.02  # half precision against float32, largest difference of values around 1


class PackedAttention(Protocol):
    """q, k, v (rows, heads, head size) → (rows, heads, head size)."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, blocks: Blocks) -> Tensor: ...


def flash(q: Tensor, k: Tensor, v: Tensor, blocks: Blocks) -> Tensor:
    """Half precision on Ampere and later."""
    found = torch.ops.aten._flash_attention_forward(
        q, k, v, blocks.bounds, blocks.key_starts, QUERY_BLOCK, blocks.most_keys, 0.0, False, False,
        seqused_k=blocks.key_counts,
    )  # fmt: skip
    output: Tensor = found[0]
    return output


def memory_efficient(q: Tensor, k: Tensor, v: Tensor, blocks: Blocks) -> Tensor:
    """Any dtype on any CUDA device."""
    found = torch.ops.aten._efficient_attention_forward(
        q[None], k[None], v[None], None, blocks.bounds, blocks.key_starts, QUERY_BLOCK, blocks.most_keys, 0.0, 0,
        seqlen_k=blocks.key_counts,
    )  # fmt: skip
    output: Tensor = found[0][0]
    return output


def block_by_block(q: Tensor, k: Tensor, v: Tensor, blocks: Blocks) -> Tensor:
    """Everywhere, slowly: one call a block, and it waits for the device. Cannot be captured."""
    output = torch.zeros_like(q)
    bounds, starts = blocks.bounds.tolist(), blocks.key_starts.tolist()
    for first, end, start, count in zip(bounds, bounds[1:], starts, blocks.key_counts.tolist()):
        if end > first:
            part = (q[first:end], k[start : start + count], v[start : start + count])
            query, key, value = (x.transpose(0, 1)[None] for x in part)
            mixed = F.scaled_dot_product_attention(query, key, value)
            output[first:end] = mixed[0].transpose(0, 1)
    return output


def choose_attention(device: torch.device, dtype: torch.dtype, head_size: int) -> PackedAttention:
    """The fastest of the above that gives the right values here; a worse one than expected is logged."""
    if device.type != "cuda":
        return block_by_block
    half = dtype != torch.float32 and gpu_traits.capability(device) >= (8, 0)
    candidates: list[PackedAttention] = [flash, memory_efficient] if half else [memory_efficient]
    for attention in candidates:
        if _is_sound(attention, device, dtype, head_size):
            return attention
    logger.warning("No packed attention kernel works on this device; a slow path is taken.")
    return block_by_block


def _is_sound(attention: PackedAttention, device: torch.device, dtype: torch.dtype, head_size: int) -> bool:
    pack = FramePack([PackedMel(150, causal=True), PackedMel(140)], 2)
    blocks = device_layout(torch.from_numpy(pack.table).to(device), pack.rows, pack.blocks).blocks
    generator = torch.Generator().manual_seed(0)
    shape = (3, 2 * pack.rows, 2, head_size)
    q, k, v = torch.randn(shape, generator=generator).to(device, dtype)
    try:
        found = attention(q, k, v, blocks)
        expected = block_by_block(q.float(), k.float(), v.float(), blocks)
        return bool((found - expected).abs().max() < _PROBE_BOUND)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError) as error:  # not built in, or another signature
        logger.warning("%s cannot be used here: %s", getattr(attention, "__name__", attention), error)
        return False

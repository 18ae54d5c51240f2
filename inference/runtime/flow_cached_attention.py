"""Keys and values in pages: written once a chunk, read by that chunk and all later ones of its stream."""

from __future__ import annotations

import logging
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from inference.runtime.flow_block import Block, numbered_block
from inference.runtime.flow_pages import PAIR

logger = logging.getLogger(__name__)

_PROBE_BOUND = 0.02  # largest difference of values around 1, half precision against float32


class CachedAttention(Protocol):
    """Attention of the velocity network.

    query (C, pair, 2n, heads, head size), memory (pages, frames, key or value, pair · heads · head size) → like query.
    `any_width`: the launch does not depend on how many pages there are, so that a captured graph serves any streams.
    """

    any_width: bool

    def __call__(self, query: Tensor, memory: Tensor, block: Block) -> Tensor: ...


def remember(memory: Tensor, rows: Tensor, block: Block) -> None:
    """Write keys and values (C, n, 2, …), of any strides, into the chunks' pages of memory (pages, positions, 2, …)."""
    if block.only_written is None:
        memory[block.written] = rows
    else:
        memory[block.only_written, : rows.shape[1]] = rows[0]


def recall(memory: Tensor, block: Block) -> Tensor:
    """All that the chunks may see: (C, K, 2, W), K being `block.most` positions."""
    keys = block.most * memory.shape[1] // block.chunk
    if block.run is not None:
        return memory[block.run : block.run + block.pages.shape[1]].flatten(0, 1)[None, :keys]
    known = memory.index_select(0, block.pages.flatten())
    return known.view(len(block.pages), -1, *memory.shape[2:])[:, :keys]


def visible(block: Block, rate: int) -> Tensor | None:
    """(C, 1, 1, K) bool: what of `recall` each chunk sees, at `rate` positions a token; None: everything."""
    if block.alike:
        return None
    keys = torch.arange(block.most * rate, device=block.counts.device)
    return (keys < block.counts[:, None] * rate)[:, None, None]


class GatheredAttention:
    """Copies the pages together and calls PyTorch's attention: works everywhere."""

    any_width = False

    def __call__(self, query: Tensor, memory: Tensor, block: Block) -> Tensor:
        heads = query.shape[3]
        known = recall(memory, block)
        # The pair counts as more heads: its rows lie side by side in the pages.
        key, value = (part.unflatten(2, (PAIR * heads, -1)).transpose(1, 2) for part in known.unbind(2))
        mask = visible(block, memory.shape[1] // block.chunk)
        flat = query.transpose(2, 3).flatten(1, 2)
        mixed = F.scaled_dot_product_attention(flat, key, value, attn_mask=mask)
        output: Tensor = mixed.unflatten(1, (PAIR, heads)).transpose(2, 3)
        return output


def choose_attention(device: torch.device, dtype: torch.dtype, heads: int, head_size: int) -> CachedAttention:
    """The paged kernel where it gives the right values, else the copying one (on CUDA with a warning)."""
    if device.type != "cuda":
        return GatheredAttention()
    try:
        from inference.runtime.flow_paged_kernel import PagedAttention

        paged = PagedAttention()
        error = attention_error(paged, device, dtype, heads, head_size)
        if error <= _PROBE_BOUND:
            return paged
        logger.warning("The paged attention kernel is unsound here (error %.3g); pages are copied.", error)
    except Exception as error:  # no Triton, no compiler, another version
        logger.warning("The paged attention kernel cannot be used here; pages are copied: %s", error)
    return GatheredAttention()


@torch.inference_mode()
def attention_error(
    attention: CachedAttention, device: torch.device, dtype: torch.dtype, heads: int, head_size: int
) -> float:
    """Largest difference from PyTorch's attention in float32, on pages in disorder; NaN when not finite."""
    chunk, frames = 25, 50
    block = numbered_block([[3, 0], [2], [1, 4, 5]], [37, 25, 75], chunk, device)
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(3, PAIR, frames, heads, head_size, generator=generator).to(device, dtype)
    memory = torch.randn(6, frames, 2, PAIR * heads * head_size, generator=generator).to(device, dtype)
    found = attention(query, memory, block).float()
    expected = GatheredAttention()(query.float(), memory.float(), block)
    return float((found - expected).abs().max())

"""Launches of the velocity network's Triton kernels on plain (rows, channels) tensors. Import only where Triton is.

Tensors are float16 or bfloat16 with channels side by side and any row stride (of a multiple of 16 bytes), so that a
slice of a wider tensor can be input or output. Nothing waits for the device, nothing is allocated: all of it can be
captured.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from inference.runtime import gpu_traits
from inference.runtime.frame_pack import QUERY_BLOCK, Blocks
from inference.runtime.velocity_attention_kernel import attend_blocks_kernel
from inference.runtime.velocity_conv_kernels import causal_conv_kernel, guided_step_kernel
from inference.runtime.velocity_kernels import feed_forward_kernel, linear_residual_kernel, norm_linear_kernel
from inference.runtime.velocity_tiles import FeedForwardTiles, LinearTiles, Plan, plan_for
from inference.runtime.velocity_weights import Affine, BlockWeights, ResnetWeights, TransformerWeights

EPS = 1e-5  # of all the network's norms


class Shift(NamedTuple):
    """What the time adds: row `step` (1,) int64 of `table` (steps, stages, C), at `stage`."""

    table: Tensor
    step: Tensor
    stage: int


def _blocks(matrix: Tensor, rows: int, columns: int) -> TensorDescriptor | Tensor:
    """A matrix to be read in blocks: a descriptor for the copy engine where there is one, else the matrix itself."""
    if not gpu_traits.has_copy_engine(matrix.device):
        return matrix
    return TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), [rows, columns])


def _weight(matrix: Tensor, rows: int, columns: int) -> TensorDescriptor | Tensor:
    """As `_blocks`. Raises `ValueError` for gaps between rows: of weights kernels take the width for the stride."""
    if not matrix.is_contiguous():
        raise ValueError(f"a weight {tuple(matrix.shape)} has strides {matrix.stride()}")
    return _blocks(matrix, rows, columns)


def _traits(device: torch.device) -> tuple[bool, bool]:
    """The kernels' `engine` and `dependent`."""
    return gpu_traits.has_copy_engine(device), gpu_traits.kernels_overlap(device)


def plan_of(rows: int, device: torch.device) -> Plan:
    """The tiles for so many rows, both guidance halves counted, on this device."""
    return plan_for(rows, gpu_traits.shared_bytes(device))


def norm_linear(
    x: Tensor,
    norm: Affine,
    linear: Affine,
    output: Tensor,
    *,
    gelu: bool = False,
    tiles: LinearTiles | None = None,
) -> None:
    """output = LayerNorm(x) @ Wᵀ + b, and its exact GELU if wanted."""
    rows, channels = x.shape
    outputs = linear.weight.shape[0]
    tiles = tiles or plan_of(rows, x.device).qkv
    count = min(tiles.tiles, triton.cdiv(outputs, tiles.columns))
    grid = (triton.cdiv(rows, tiles.rows), triton.cdiv(outputs, tiles.columns * count))
    padded, (engine, dependent) = triton.next_power_of_2(channels), _traits(x.device)
    norm_linear_kernel[grid](
        x, norm.weight, norm.bias, _weight(linear.weight, tiles.columns, padded), linear.bias, output, rows, EPS,
        x.stride(0), output.stride(0), rows % tiles.rows == 0, channels, padded, outputs, gelu,
        linear.bias is not None, tiles.rows, tiles.columns, count, engine, dependent,
        num_warps=tiles.warps, num_stages=tiles.stages, launch_pdl=dependent,
    )  # fmt: skip


def linear_residual(
    a: Tensor, linear: Affine, residual: Tensor, output: Tensor, *, tiles: LinearTiles | None = None
) -> None:
    """output = residual + a @ Wᵀ + b; output may be residual."""
    rows, inputs = a.shape
    outputs = linear.weight.shape[0]
    tiles = tiles or plan_of(rows, a.device).out
    grid = (triton.cdiv(rows, tiles.rows), triton.cdiv(outputs, tiles.columns))
    depth, (engine, dependent) = math.gcd(tiles.depth, inputs), _traits(a.device)
    linear_residual_kernel[grid](
        _blocks(a, tiles.rows, depth), _weight(linear.weight, tiles.columns, depth), linear.bias, residual, output,
        rows, inputs, a.stride(0), residual.stride(0), output.stride(0), rows % tiles.rows == 0, outputs,
        tiles.rows, tiles.columns, depth, engine, dependent,
        num_warps=tiles.warps, num_stages=tiles.stages, launch_pdl=dependent,
    )  # fmt: skip


def feed_forward(x: Tensor, weights: TransformerWeights, tiles: FeedForwardTiles) -> None:
    """x (rows, C) += feed-forward of its norm, in place. C is a power of two."""
    rows, channels = x.shape
    hidden = weights.up.weight.shape[0]
    up, down = (
        _weight(weights.up.weight, tiles.width, channels),
        _weight(weights.down.weight, channels, tiles.width),
    )
    engine, dependent = _traits(x.device)
    feed_forward_kernel[(triton.cdiv(rows, tiles.rows),)](
        x, weights.norm3.weight, weights.norm3.bias, up, weights.up.bias, down, weights.down.bias, rows, EPS,
        x.stride(0), rows % tiles.rows == 0, channels, hidden, tiles.rows, tiles.width, engine, dependent,
        num_warps=tiles.warps, num_stages=tiles.stages, launch_pdl=dependent,
    )  # fmt: skip


def after_attention(
    x: Tensor, mixed: Tensor, weights: TransformerWeights, hidden: Tensor, plan: Plan | None = None
) -> None:
    """x (rows, C) in place: + attention's projection of `mixed` (rows, inner), + feed-forward.

    `hidden` (rows, 4 C) is written to when the plan takes the parts one by one.
    """
    plan = plan or plan_of(len(x), x.device)
    linear_residual(mixed, weights.out, x, x, tiles=plan.out)
    if plan.feed_forward is not None:
        feed_forward(x, weights, plan.feed_forward)
        return
    norm_linear(x, weights.norm3, weights.up, hidden, gelu=True, tiles=plan.up)
    linear_residual(hidden, weights.down, x, x, tiles=plan.down)


def causal_conv(
    x: Tensor,
    past: Tensor,
    weights: BlockWeights | Affine,
    output: Tensor,
    *,
    tails: Tensor | None = None,
    shift: Shift | None = None,
    shortcut: tuple[Tensor, Affine] | None = None,
    tiles: LinearTiles | None = None,
) -> None:
    """A causal convolution of width 3, and with a block's weights norm and Mish behind it.

    `past` (rows, 2) int32, contiguous: for each row where the frame before and the one before that are: a row of x; -1
    where there is none (zeros); -2 - n for row n of `tails`. `shift` is added last, and so is shortcut[0] @ Wᵀ + b.
    """
    block = isinstance(weights, BlockWeights)
    conv, norm = (weights.conv, weights.norm) if isinstance(weights, BlockWeights) else (weights, weights)
    rows, inputs = x.shape
    channels = conv.weight.shape[0]
    tiles = tiles or plan_of(rows, x.device).conv
    side, side_linear = shortcut or (x, conv)
    table, step, stage = shift or (x, past, 0)
    tail_rows = x if tails is None else tails
    padded, (engine, dependent) = triton.next_power_of_2(channels), _traits(x.device)
    depth = math.gcd(tiles.depth, inputs, side.shape[1])
    causal_conv_kernel[(triton.cdiv(rows, tiles.rows),)](
        x, tail_rows, past, _weight(conv.weight, padded, depth), conv.bias, norm.weight, norm.bias, table, step,
        side, _weight(side_linear.weight, padded, depth), side_linear.bias, output,
        rows, inputs, side.shape[1], x.stride(0), tail_rows.stride(0), side.stride(0), output.stride(0),
        table.stride(0), stage * channels, EPS, channels, padded,
        tails is not None, block, shift is not None, shortcut is not None, tiles.rows, depth, engine,
        dependent,
        num_warps=tiles.warps, num_stages=tiles.stages, launch_pdl=dependent,
    )  # fmt: skip


def resnet(
    x: Tensor,
    past: Tensor,
    weights: ResnetWeights,
    middle: Tensor,
    output: Tensor,
    shift: Shift,
    *,
    tails: tuple[Tensor | None, Tensor | None] = (None, None),
    tiles: LinearTiles | None = None,
) -> None:
    """x (rows, C) → output (rows, C'), which is another tensor; `middle` (rows, C') is written to on the way."""
    causal_conv(x, past, weights.first, middle, tails=tails[0], shift=shift, tiles=tiles)
    causal_conv(
        middle, past, weights.second, output, tails=tails[1], shortcut=(x, weights.shortcut), tiles=tiles
    )


def guided_step(
    hidden: Tensor,
    linear: Affine,
    x: Tensor,
    inputs: Tensor,
    sizes: Tensor,
    step: Tensor,
    group: int,
    rate: float,
    *,
    tiles: LinearTiles | None = None,
) -> None:
    """An Euler step: x (R, bins) float32 += sizes[step] · ((1 + rate) · guided - rate · free), the velocities being
    projections of `hidden` (2 R, C). The new x is also written to the first columns of `inputs` (2 R, …), rounded.

    Frame r's guided row is (r // group) · 2 · group + r % group, its free row `group` rows on.
    """
    frames, bins = x.shape
    tiles = tiles or plan_of(2 * frames, x.device).final
    padded, (engine, dependent) = triton.next_power_of_2(bins), _traits(x.device)
    depth = math.gcd(tiles.depth, hidden.shape[1])
    guided_step_kernel[(triton.cdiv(frames, tiles.rows),)](
        hidden, _weight(linear.weight, padded, depth), linear.bias, x, inputs, sizes, step, frames, group, rate,
        hidden.stride(0), x.stride(0), inputs.stride(0), hidden.shape[1], bins, padded,
        tiles.rows, depth, engine, dependent,
        num_warps=tiles.warps, num_stages=tiles.stages, launch_pdl=dependent,
    )  # fmt: skip


def attend_blocks(
    qkv: Tensor, output: Tensor, blocks: Blocks, heads: int, *, plan: Plan | None = None
) -> None:
    """qkv (rows, 3 · inner) → output (rows, inner): each block's queries against its keys."""
    tiles = (plan or plan_of(len(qkv), qkv.device)).attention
    inner = output.shape[1]
    size, (engine, dependent) = inner // heads, _traits(qkv.device)
    attend_blocks_kernel[(heads, len(blocks.key_counts), QUERY_BLOCK // tiles.queries)](
        qkv, _blocks(qkv, tiles.keys, size), output, blocks.bounds, blocks.key_starts, blocks.key_counts,
        math.log2(math.e) / math.sqrt(size), qkv.stride(0), output.stride(0), inner, size,
        tiles.queries, tiles.keys, engine, dependent,
        num_warps=tiles.warps, num_stages=tiles.stages, launch_pdl=dependent,
    )  # fmt: skip

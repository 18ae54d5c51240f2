"""Triton kernels of the velocity network's causal convolutions and of the Euler step that follows its last layer."""

from __future__ import annotations

import triton
import triton.language as tl

from inference.runtime.velocity_kernels import block_of, layer_norm, let_next_start, mish, wait_for_last


@triton.jit(
    do_not_specialize=["rows", "shift_offset", "tail_stride"],
    do_not_specialize_on_alignment=["past", "shifts"],
)
def causal_conv_kernel(  # type: ignore[no-untyped-def]
    x, tails, past, weight, bias, norm_weight, norm_bias, shifts, step, side, side_weight, side_bias, output,
    rows, inputs, side_inputs, x_stride, tail_stride, side_stride, output_stride, shift_stride, shift_offset, eps,
    channels: tl.constexpr, padded: tl.constexpr,
    has_tails: tl.constexpr, normed: tl.constexpr, shifted: tl.constexpr, has_side: tl.constexpr,
    row_block: tl.constexpr, depth: tl.constexpr, engine: tl.constexpr, dependent: tl.constexpr,
):  # fmt: skip
    """Three products over a frame and the two before it, which `past` (rows, 2) finds: in x, from -2 down in `tails`,
    or nowhere (-1). Then LayerNorm and Mish; then the time's shift, or the shortcut's product of `side`.

    weight (channels, 3 · inputs), the oldest frame first, and side_weight come in blocks of (padded, depth). `inputs`
    and `side_inputs` are multiples of `depth`.
    """
    let_next_start(dependent)
    row = tl.program_id(0) * row_block + tl.arange(0, row_block)
    there = row < rows
    columns, steps = tl.arange(0, padded), tl.arange(0, depth)
    real = columns < channels
    wait_for_last(dependent)
    before = tl.load(past + 2 * row, mask=there, other=-1)
    earlier = tl.load(past + 2 * row + 1, mask=there, other=-1)
    own = tl.where(there, row, -1)
    total = tl.zeros([row_block, padded], tl.float32)
    for k in tl.range(0, 3 * inputs, depth):
        tap = k // inputs
        channel = k - tap * inputs + steps
        found = tl.where(tap == 0, earlier, tl.where(tap == 1, before, own))
        place = found.to(tl.int64)[:, None] * x_stride + channel[None, :]
        part = tl.load(x + place, mask=found[:, None] >= 0, other=0.0)
        if has_tails:
            kept = (-2 - found).to(tl.int64)[:, None]
            part += tl.load(tails + kept * tail_stride + channel[None, :], mask=kept >= 0, other=0.0)
        matrix = block_of(
            weight, 0, k, 3 * inputs, channels, 3 * inputs, engine, padded, depth, channels == padded
        )
        total = tl.dot(part, matrix.T, total)
    total += tl.load(bias + columns, mask=real, other=0.0).to(tl.float32)[None, :]
    at = row.to(tl.int64)[:, None]
    if normed:
        total = mish(layer_norm(total, norm_weight, norm_bias, eps, channels, padded))
    if shifted:
        time = shifts + tl.load(step) * shift_stride + shift_offset
        total += tl.load(time + columns, mask=real, other=0.0).to(tl.float32)[None, :]
    if has_side:
        for k in tl.range(0, side_inputs, depth):
            part = tl.load(side + at * side_stride + (k + steps)[None, :], mask=there[:, None], other=0.0)
            matrix = block_of(
                side_weight,
                0,
                k,
                side_inputs,
                channels,
                side_inputs,
                engine,
                padded,
                depth,
                channels == padded,
            )
            total = tl.dot(part, matrix.T, total)
        total += tl.load(side_bias + columns, mask=real, other=0.0).to(tl.float32)[None, :]
    tl.store(
        output + at * output_stride + columns[None, :],
        total.to(output.dtype.element_ty),
        mask=there[:, None] & real[None, :],
    )


@triton.jit(do_not_specialize=["frames", "group"])
def guided_step_kernel(  # type: ignore[no-untyped-def]
    hidden, weight, bias, x, inputs, sizes, step, frames, group, rate, hidden_stride,
    x_stride: tl.constexpr, input_stride: tl.constexpr,
    channels: tl.constexpr, bins: tl.constexpr, padded: tl.constexpr,
    row_block: tl.constexpr, depth: tl.constexpr, engine: tl.constexpr, dependent: tl.constexpr,
):  # fmt: skip
    """The last projection of both guidance halves, their combination and the Euler update; the new state also goes
    into the network's inputs, rounded. Frame r is row (r // group) · 2 · group + r % group and `group` rows on.

    weight comes in blocks of (padded, depth).
    """
    let_next_start(dependent)
    frame = tl.program_id(0) * row_block + tl.arange(0, row_block)
    there = frame < frames
    columns, steps = tl.arange(0, padded), tl.arange(0, depth)
    real = columns < bins
    guided_row = ((frame // group) * (2 * group) + frame % group).to(tl.int64)
    free_row = guided_row + group
    wait_for_last(dependent)
    guided = tl.zeros([row_block, padded], tl.float32)
    free = tl.zeros([row_block, padded], tl.float32)
    for k in tl.range(0, channels, depth):
        matrix = block_of(weight, 0, k, channels, bins, channels, engine, padded, depth, bins == padded).T
        at = hidden + (k + steps)[None, :]
        one = tl.load(at + guided_row[:, None] * hidden_stride, mask=there[:, None], other=0.0)
        other = tl.load(at + free_row[:, None] * hidden_stride, mask=there[:, None], other=0.0)
        guided = tl.dot(one, matrix, guided)
        free = tl.dot(other, matrix, free)
    shift = tl.load(bias + columns, mask=real, other=0.0).to(tl.float32)[None, :]
    velocity = (1.0 + rate) * (guided + shift) - rate * (free + shift)
    kept = there[:, None] & real[None, :]
    state = x + frame.to(tl.int64)[:, None] * x_stride + columns[None, :]
    value = tl.load(state, mask=kept, other=0.0) + tl.load(sizes + tl.load(step)) * velocity
    tl.store(state, value, mask=kept)
    rounded = value.to(inputs.dtype.element_ty)
    tl.store(inputs + guided_row[:, None] * input_stride + columns[None, :], rounded, mask=kept)
    tl.store(inputs + free_row[:, None] * input_stride + columns[None, :], rounded, mask=kept)

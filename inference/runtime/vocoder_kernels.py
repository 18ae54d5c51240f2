"""The vocoder's convolutions as one Triton kernel over rows of time, channels side by side.

A convolution is a sum of products, one for each of its taps, of the rows shifted by that tap with the tap's weights.
What follows a convolution in the network (bias, residual, Snake, leaky ReLU, the mean over parallel blocks, zeros
outside of the items) is done on the accumulator, so that no pass over memory is spent on it. Import this only where
Triton is.
"""

from __future__ import annotations

import triton
import triton.language as tl

# What happens behind the products.
ACTIVATE = tl.constexpr(0)  # snake(v)
RESIDUAL = tl.constexpr(1)  # v + residual, and snake of it
MEAN = tl.constexpr(2)  # leaky_relu(scale * (v + residuals))
UPSAMPLE = tl.constexpr(3)  # v + residual, and three snakes of it
ELU_SPLIT = tl.constexpr(4)  # elu(scale * v + bias) as the sum of two half-precision numbers

_ROUNDER = tl.constexpr(12582912.0)  # 1.5 * 2^23: adding and subtracting it rounds to a whole number


@triton.jit
def _snake(v, slopes, at, width, ok):  # type: ignore[no-untyped-def]
    """v + sin²(αv) / α. slopes: α / π, and `width` further 1 / α; the sine to 4e-7, as a polynomial of one period."""
    turns = v * tl.load(slopes + at, mask=ok, other=0.0)
    left = turns - ((turns + _ROUNDER) - _ROUNDER)
    u = left * left
    p = 10.58129066 * u - 29.42626855
    p = p * u + 42.64342497
    p = p * u - 32.46514945
    p = p * u + 9.86952481
    return v + tl.load(slopes + width + at, mask=ok, other=0.0) * (u * p)


@triton.jit
def inside_items(flags, row, rows, spread: tl.constexpr, closed: tl.constexpr):  # type: ignore[no-untyped-def]
    """Whether positions lie in an item: `spread` a frame; `closed`: the one behind an item's last belongs to it.

    flags: bit 0 for frames inside, with one entry before the first frame and one behind the last.
    """
    frame = row // spread
    found = tl.load(flags + 1 + frame, mask=row < rows, other=0) & 1
    if closed:
        edge = (row < rows) & (row % spread == 0)
        found = found | (tl.load(flags + frame, mask=edge, other=0) & 1)
    return found != 0


@triton.jit
def _begins_item(flags, row, rows, spread: tl.constexpr):  # type: ignore[no-untyped-def]
    """Whether a position is an item's first."""
    there = (row >= 0) & (row < rows) & (row % spread == 0)
    return tl.load(flags + 1 + row // spread, mask=there, other=0) > 1


@triton.jit(
    do_not_specialize=[
        "groups", "x_rows", "out_rows", "res_rows", "res_count", "t0", "t1", "t2", "c0", "c1", "c2", "dilation",
    ]
)  # fmt: skip
def conv_rows(  # type: ignore[no-untyped-def]
    x, w, bias, slopes, res, out, act, flags,
    groups, x_rows, out_rows, res_rows, res_count, t0, t1, t2, c0, c1, c2, dilation, scale, leak,
    inner: tl.constexpr, inner_real: tl.constexpr, pitch: tl.constexpr, wrap: tl.constexpr,
    row_step: tl.constexpr, columns: tl.constexpr, width: tl.constexpr, rate: tl.constexpr,
    late: tl.constexpr, pair: tl.constexpr, spread: tl.constexpr, closed: tl.constexpr,
    finish: tl.constexpr, has_res: tl.constexpr, tma: tl.constexpr,
    bm: tl.constexpr, bn: tl.constexpr, bk: tl.constexpr,
):  # fmt: skip
    """Up to three parallel convolutions (program axis 1), or with MEAN the sum of them.

    x (branches, x_rows, pitch): `inner` values from each row on are a tap's input (those behind `inner_real` count as
    zeros; behind `wrap` they start anew). w: each branch's taps, each (inner, columns). Branch b has t_b taps, and c_b
    is the tap (counted over all branches) that meets its own row. A group is an output row; `pair`: the rows t and
    t + dilation; `rate` > 1: rate rows, one behind the other, from `late` on. `spread`, `closed`: see `inside_items`.
    """
    in_row: tl.constexpr = (columns + bn - 1) // bn
    pid_m, pid_n = tl.program_id(0) // in_row, tl.program_id(0) % in_row
    branch = tl.num_programs(1) - 1 - tl.program_id(1)  # the longest first
    m = pid_m * bm + tl.arange(0, bm)
    n = pid_n * bn + tl.arange(0, bn)
    k = tl.arange(0, bk)
    row = m * row_step
    if pair:
        row = (m // dilation) * (2 * dilation) + m % dilation
    blocks: tl.constexpr = inner // bk
    center = tl.where(branch == 0, c0, tl.where(branch == 1, c1, c2))
    if finish == MEAN:
        first = branch * 0
        last = t0 + t1 + t2
    else:
        first = tl.where(branch == 0, 0, tl.where(branch == 1, t0, t0 + t1))
        last = tl.where(branch == 0, t0, tl.where(branch == 1, t0 + t1, t0 + t1 + t2))
    acc = tl.zeros([bm, bn], tl.float32)
    for step in range(first * blocks, last * blocks):
        tap = step // blocks
        at = (step - tap * blocks) * bk
        if wrap < inner:
            at = tl.where(at >= wrap, at - wrap, at)
        source = branch
        if finish == MEAN:
            source = (tap >= t0).to(tl.int32) + (tap >= t0 + t1).to(tl.int32)
            center = tl.where(source == 0, c0, tl.where(source == 1, c1, c2))
        shift = (tap - center) * dilation
        if tma:
            part = x.load([source * x_rows + pid_m * bm + shift, at])
            weights = w.load([step * bk, pid_n * bn])
        else:
            seen = row + shift
            there = ((seen >= 0) & (seen < x_rows))[:, None]
            if inner_real < inner:
                there = there & (at + k < inner_real)[None, :]
            start = x + source.to(tl.int64) * x_rows * pitch
            part = tl.load(start + seen[:, None] * pitch + (at + k)[None, :], mask=there, other=0.0)
            lines = w + (step * bk + k)[:, None] * columns + n[None, :]
            if columns % bn == 0:
                weights = tl.load(lines)
            else:
                weights = tl.load(lines, mask=(n < columns)[None, :], other=0.0)
        acc = tl.dot(part, weights, acc)

    if rate > 1:
        phase = pid_n * bn // width
        channel = n - phase * width
        row = m * rate + phase + late
        acc += tl.load(bias + channel)[None, :]
        real = (n < columns)[None, :]
        step = tl.cast(out_rows, tl.int64) * width
        times = 1
        if late:
            # An item's first row mirrors its third: that is written twice, in place of what is computed here.
            times = tl.where(phase == 1, 2, 1)
        for time in tl.range(0, times, num_stages=1):
            here = row
            ok = row < out_rows
            if late:
                here = row - 2 * time
                ok = ok & (_begins_item(flags, here, out_rows, spread) == (time > 0))
            ok = ok[:, None] & real
            at = here[:, None] * width + channel[None, :]
            value = acc + tl.load(res + at, mask=ok, other=0.0).to(tl.float32)
            value = tl.where(inside_items(flags, here, out_rows, spread, closed)[:, None], value, 0.0)
            tl.store(out + at, value.to(out.dtype.element_ty), mask=ok)
            for block in tl.range(0, 3, num_stages=1):
                y = _snake(value, slopes + block * 2 * width, channel[None, :], width, real)
                tl.store(act + block * step + at, y.to(act.dtype.element_ty), mask=ok)
    else:
        if not pair:
            row = m
        keep = inside_items(flags, row, out_rows, spread, closed)[:, None]
        if pair:
            second = (n >= width)[None, :]
            channel = n % width
            behind = row + dilation
            keep_behind = inside_items(flags, behind, out_rows, spread, closed)[:, None]
            keep = tl.where(second, keep_behind, keep)
            place = tl.where(second, behind[:, None], row[:, None])
            ok = (place < out_rows) & (n < columns)[None, :]
            at = place * width + channel[None, :]
        else:
            channel = n
            ok = (row < out_rows)[:, None] & (n < columns)[None, :]
            at = row[:, None] * width + channel[None, :]
        known = n < columns
        value = acc
        if finish == ELU_SPLIT:
            value = value * scale + tl.load(bias + channel, mask=known, other=0.0)[None, :]
            value = tl.where(value > 0, value, tl.exp(value) - 1.0)
            value = tl.where(keep, value, 0.0)
            high = value.to(out.dtype.element_ty)
            wide = (row * (2 * width))[:, None] + channel[None, :]
            tl.store(out + wide, high, mask=ok)
            low = value - high.to(tl.float32)
            tl.store(out + wide + width, low.to(out.dtype.element_ty), mask=ok)
        elif finish == MEAN:
            value += tl.load(bias + channel, mask=known, other=0.0)[None, :]
            for number in range(res_count):
                base = res + tl.cast(number, tl.int64) * out_rows * width
                value += tl.load(base + at, mask=ok, other=0.0).to(tl.float32)
            value = value * scale
            value = tl.where(value >= 0, value, value * leak)
            value = tl.where(keep, value, 0.0)
            tl.store(out + at, value.to(out.dtype.element_ty), mask=ok)
        else:
            value += tl.load(bias + branch * width + channel, mask=known, other=0.0)[None, :]
            far = branch.to(tl.int64) * out_rows * width
            if finish == RESIDUAL:
                if has_res:
                    base = res + branch.to(tl.int64) * res_rows * width
                    value += tl.load(base + at, mask=ok, other=0.0).to(tl.float32)
                value = tl.where(keep, value, 0.0)
                tl.store(out + far + at, value.to(out.dtype.element_ty), mask=ok)
            value = tl.where(keep, value, 0.0)
            y = _snake(value, slopes + branch * 2 * width, channel[None, :], width, known[None, :])
            tl.store(act + far + at, y.to(act.dtype.element_ty), mask=ok)

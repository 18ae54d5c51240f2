"""Triton kernels of the velocity network's linear layers. Import this only where Triton is (`velocity_choice` checks).

All tensors are (rows, channels) with channels side by side; a row stride lets a slice of a wider tensor be one. Every
row is computed from itself alone, in the same order of additions whatever the number of rows: norms and sums in
float32, products of half-precision numbers summed in float32.

Matrices are read in blocks (`block_of`): with `engine` from tensor descriptors, which the copy engine moves without
registers or addresses, else from pointers, where weights have no gaps between rows. (Without an engine Triton would
read a descriptor value by value.) `dependent`: the kernel may start while the one before it still runs (programmatic
dependent launch), and waits before it reads or writes anything but weights.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def let_next_start(dependent: tl.constexpr):  # type: ignore[no-untyped-def]
    """The next kernel may take multiprocessors that this one leaves free."""
    if dependent:
        gdc_launch_dependents()


@triton.jit
def wait_for_last(dependent: tl.constexpr):  # type: ignore[no-untyped-def]
    """Until all kernels before this one are done and seen."""
    if dependent:
        gdc_wait()


@triton.jit
def block_of(  # type: ignore[no-untyped-def]
    matrix, row, column, stride, height, width,
    engine: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr, whole: tl.constexpr,
):  # fmt: skip
    """(rows, columns) of a matrix (height, width) from there on; zero beyond its ends, which `whole` has none of."""
    if engine:
        return matrix.load([row, column])
    else:
        at, along = row + tl.arange(0, rows)[:, None], column + tl.arange(0, columns)[None, :]
        place = matrix + at.to(tl.int64) * stride + along
        if whole:
            return tl.load(place)
        else:
            return tl.load(place, mask=(at < height) & (along < width), other=0.0)


@triton.jit
def gelu(x):  # type: ignore[no-untyped-def]
    """x · Φ(x), within 2e-5: Φ's odd part as a polynomial in x², equal to ½ from 4.5 on. No special function needed."""
    near = tl.minimum(tl.maximum(x, -4.5), 4.5)
    t = near * near * (2.0 / 20.25) - 1.0
    p = t * 0.002070310292765498 - 0.0035140810068696737
    p = p * t + 0.0008658988517709076
    p = p * t - 0.0031720309052616358
    p = p * t + 0.012410329654812813
    p = p * t - 0.020208297297358513
    p = p * t + 0.028126422315835953
    p = p * t - 0.03986890986561775
    p = p * t + 0.054702527821063995
    p = p * t - 0.07720622420310974
    p = p * t + 0.1569051593542099
    return x * (near * p + 0.5)


@triton.jit
def mish(x):  # type: ignore[no-untyped-def]
    """x · tanh(log(1 + eˣ)), with one exponential: tanh(log(1 + e)) = e(e + 2) / (e(e + 2) + 2)."""
    e = tl.exp(tl.minimum(x, 20.0))
    n = e * (e + 2.0)
    return x * (n / (n + 2.0))


@triton.jit
def layer_norm(x, weight, bias, eps, channels: tl.constexpr, padded: tl.constexpr):  # type: ignore[no-untyped-def]
    """Over the columns of a float32 tile whose columns from `channels` on are zero; they come out as zero."""
    columns = tl.arange(0, padded)
    real = columns < channels
    mean = tl.sum(x, 1) / channels
    centred = x - mean[:, None]
    if padded != channels:
        centred = tl.where(real[None, :], centred, 0.0)
    rate = tl.rsqrt(tl.sum(centred * centred, 1) / channels + eps)
    scale = tl.load(weight + columns, mask=real, other=0.0).to(tl.float32)
    shift = tl.load(bias + columns, mask=real, other=0.0).to(tl.float32)
    return centred * rate[:, None] * scale[None, :] + shift[None, :]


@triton.jit
def _finish(  # type: ignore[no-untyped-def]
    product, bias, output, at, column, inside,
    output_stride: tl.constexpr, outputs: tl.constexpr, activate: tl.constexpr, has_bias: tl.constexpr,
):  # fmt: skip
    if has_bias:
        product += tl.load(bias + column, mask=column < outputs, other=0.0).to(tl.float32)[None, :]
    if activate:
        product = gelu(product)
    place = output + at * output_stride + column[None, :]
    tl.store(place, product.to(output.dtype.element_ty), mask=inside & (column[None, :] < outputs))


@triton.jit(do_not_specialize=["rows"])
def norm_linear_kernel(  # type: ignore[no-untyped-def]
    x, norm_weight, norm_bias, weight, bias, output, rows, eps,
    x_stride: tl.constexpr, output_stride: tl.constexpr, whole: tl.constexpr,
    channels: tl.constexpr, padded: tl.constexpr, outputs: tl.constexpr, activate: tl.constexpr,
    has_bias: tl.constexpr, row_block: tl.constexpr, column_block: tl.constexpr, tiles: tl.constexpr,
    engine: tl.constexpr, dependent: tl.constexpr,
):  # fmt: skip
    """LayerNorm, product, bias, GELU. A program keeps its rows' norm and makes `tiles` tiles of columns from it.

    `weight` in blocks of (column_block, padded).
    """
    let_next_start(dependent)
    first_row = tl.program_id(0).to(tl.int64) * row_block
    at = tl.arange(0, row_block)[:, None]
    inside = (first_row + at < rows) | whole
    x += first_row * x_stride
    output += first_row * output_stride
    dims, columns = tl.arange(0, padded), tl.arange(0, column_block)
    known = inside & (dims[None, :] < channels)
    first = tl.program_id(1) * (tiles * column_block)
    even: tl.constexpr = (outputs % (tiles * column_block) == 0) & (channels == padded)
    if tiles == 1:
        matrix = block_of(weight, first, 0, channels, outputs, channels, engine, column_block, padded, even)
        wait_for_last(dependent)
        tile = tl.load(x + at * x_stride + dims[None, :], mask=known, other=0.0)
        normed = layer_norm(tile.to(tl.float32), norm_weight, norm_bias, eps, channels, padded).to(tile.dtype)
        product = tl.dot(normed, matrix.T)
        _finish(
            product, bias, output, at, first + columns, inside, output_stride, outputs, activate, has_bias
        )
    else:
        wait_for_last(dependent)
        tile = tl.load(x + at * x_stride + dims[None, :], mask=known, other=0.0)
        normed = layer_norm(tile.to(tl.float32), norm_weight, norm_bias, eps, channels, padded).to(tile.dtype)
        for column in tl.range(first, first + tiles * column_block, column_block):
            matrix = block_of(
                weight, column, 0, channels, outputs, channels, engine, column_block, padded, even
            )
            product = tl.dot(normed, matrix.T)
            _finish(
                product,
                bias,
                output,
                at,
                column + columns,
                inside,
                output_stride,
                outputs,
                activate,
                has_bias,
            )


@triton.jit(do_not_specialize=["rows"])
def linear_residual_kernel(  # type: ignore[no-untyped-def]
    a, weight, bias, residual, output, rows, inputs, a_stride, residual_stride, output_stride,
    whole: tl.constexpr, outputs: tl.constexpr,
    row_block: tl.constexpr, column_block: tl.constexpr, depth: tl.constexpr,
    engine: tl.constexpr, dependent: tl.constexpr,
):  # fmt: skip
    """residual + a @ weightᵀ + bias. `a` and `weight` come in blocks of (row_block, depth), (column_block, depth);
    `inputs` is a multiple of `depth`."""
    let_next_start(dependent)
    first_row, first = tl.program_id(0) * row_block, tl.program_id(1) * column_block
    at = tl.arange(0, row_block)[:, None]
    column = first + tl.arange(0, column_block)
    inside, real = (first_row + at < rows) | whole, column[None, :] < outputs
    residual += first_row.to(tl.int64) * residual_stride
    output += first_row.to(tl.int64) * output_stride
    wait_for_last(dependent)
    total = tl.zeros([row_block, column_block], tl.float32)
    for k in tl.range(0, inputs, depth):
        part = block_of(a, first_row, k, a_stride, rows, inputs, engine, row_block, depth, whole)
        matrix = block_of(
            weight,
            first,
            k,
            inputs,
            outputs,
            inputs,
            engine,
            column_block,
            depth,
            outputs % column_block == 0,
        )
        total = tl.dot(part, matrix.T, total)
    total += tl.load(bias + column, mask=column < outputs, other=0.0).to(tl.float32)[None, :]
    kept = inside & real
    total += tl.load(residual + at * residual_stride + column[None, :], mask=kept, other=0.0).to(tl.float32)
    tl.store(output + at * output_stride + column[None, :], total.to(output.dtype.element_ty), mask=kept)


@triton.jit(do_not_specialize=["rows"])
def feed_forward_kernel(  # type: ignore[no-untyped-def]
    x, norm_weight, norm_bias, up, up_bias, down, down_bias, rows, eps,
    x_stride: tl.constexpr, whole: tl.constexpr, channels: tl.constexpr, hidden: tl.constexpr,
    row_block: tl.constexpr, width: tl.constexpr, engine: tl.constexpr, dependent: tl.constexpr,
):  # fmt: skip
    """x + down(GELU(up(LayerNorm(x)))), in place; of the hidden values `width` exist at a time.

    `up` and `down` in blocks of (width, channels) and (channels, width).
    """
    let_next_start(dependent)
    first_row = tl.program_id(0).to(tl.int64) * row_block
    at = tl.arange(0, row_block)[:, None]
    inside = (first_row + at < rows) | whole
    dims, units = tl.arange(0, channels), tl.arange(0, width)
    place = x + first_row * x_stride + at * x_stride + dims[None, :]
    kind = x.dtype.element_ty
    wait_for_last(dependent)
    values = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    normed = layer_norm(values, norm_weight, norm_bias, eps, channels, channels).to(kind)
    total = tl.zeros([row_block, channels], tl.float32)
    for unit in tl.range(0, hidden, width):
        first = block_of(up, unit, 0, channels, hidden, channels, engine, width, channels, True)
        inner = tl.dot(normed, first.T)
        inner += tl.load(up_bias + unit + units).to(tl.float32)[None, :]
        second = block_of(down, 0, unit, hidden, channels, hidden, engine, channels, width, True)
        total = tl.dot(gelu(inner).to(kind), second.T, total)
    tl.debug_barrier()  # else the compiler keeps what it read above, in registers
    total += tl.load(down_bias + dims).to(tl.float32)[None, :]
    total += tl.load(place, mask=inside, other=0.0).to(tl.float32)
    tl.store(place, total.to(kind), mask=inside)

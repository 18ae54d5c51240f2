"""A Triton kernel for attention over a packed row's blocks (see `frame_pack.Blocks`). Import only where Triton is."""

from __future__ import annotations

import triton
import triton.language as tl

from inference.runtime.velocity_kernels import block_of, let_next_start, wait_for_last


@triton.jit
def _score_and_mix(  # type: ignore[no-untyped-def]
    query, tiles, keys, key, end, head, scale, best, total, mixed,
    stride: tl.constexpr, inner: tl.constexpr, key_block: tl.constexpr, size: tl.constexpr,
    engine: tl.constexpr, masked: tl.constexpr,
):  # fmt: skip
    """One tile of keys from row `key` on, with a running softmax. `tiles`: all rows, in blocks of (key_block, size)."""
    if masked:  # rows behind the end are another item's, which may not even be finite
        place = tl.arange(0, key_block)
        dims = tl.arange(0, size)
        there = key + place < end
        at = keys + tl.cast(key, tl.int64) * stride
        matrix = tl.load(at + place[None, :] * stride + dims[:, None], mask=there[None, :], other=0.0)
        value = tl.load(at + inner + place[:, None] * stride + dims[None, :], mask=there[:, None], other=0.0)
    else:
        column = inner + head * size
        matrix = block_of(tiles, key, column, stride, end, 3 * inner, engine, key_block, size, True).T
        value = block_of(tiles, key, inner + column, stride, end, 3 * inner, engine, key_block, size, True)
    score = tl.dot(query, matrix)
    if masked:
        score = tl.where(there[None, :], score, float("-inf"))
    better = tl.maximum(best, tl.max(score, 1) * scale)
    share = tl.exp2(score * scale - better[:, None])
    fade = tl.exp2(best - better)
    total = total * fade + tl.sum(share, 1)
    mixed = tl.dot(share.to(value.dtype), value, mixed * fade[:, None])
    return better, total, mixed


@triton.jit
def _attend(  # type: ignore[no-untyped-def]
    qkv, tiles, output, first, last, start, count, head, scale,
    stride: tl.constexpr, output_stride: tl.constexpr, inner: tl.constexpr, size: tl.constexpr,
    query_block: tl.constexpr, key_block: tl.constexpr, engine: tl.constexpr,
):  # fmt: skip
    """Queries first…last, at most `query_block` of them, of one head against `count` ≥ 1 keys from row `start` on."""
    row = first + tl.arange(0, query_block)
    dims = tl.arange(0, size)
    inside = row[:, None] < last
    place = row.to(tl.int64)[:, None]
    query = tl.load(qkv + place * stride + head * size + dims[None, :], mask=inside, other=0.0)
    keys = qkv + inner + head * size
    best = tl.full([query_block], float("-inf"), tl.float32)
    total = tl.zeros([query_block], tl.float32)
    mixed = tl.zeros([query_block, size], tl.float32)
    end = start + count
    whole = start + count // key_block * key_block
    for key in tl.range(start, whole, key_block):
        best, total, mixed = _score_and_mix(
            query,
            tiles,
            keys,
            key,
            end,
            head,
            scale,
            best,
            total,
            mixed,
            stride,
            inner,
            key_block,
            size,
            engine,
            False,
        )
    if whole < end:
        best, total, mixed = _score_and_mix(
            query,
            tiles,
            keys,
            whole,
            end,
            head,
            scale,
            best,
            total,
            mixed,
            stride,
            inner,
            key_block,
            size,
            engine,
            True,
        )
    result = (mixed / total[:, None]).to(output.dtype.element_ty)
    tl.store(output + place * output_stride + head * size + dims[None, :], result, mask=inside)


@triton.jit(do_not_specialize_on_alignment=["bounds", "starts", "counts"])
def attend_blocks_kernel(  # type: ignore[no-untyped-def]
    qkv, tiles, output, bounds, starts, counts, scale,
    stride: tl.constexpr, output_stride: tl.constexpr, inner: tl.constexpr, size: tl.constexpr,
    queries: tl.constexpr, key_block: tl.constexpr, engine: tl.constexpr, dependent: tl.constexpr,
):  # fmt: skip
    """Up to `queries` rows of one block, and one head. `tiles`: qkv in blocks of (key_block, size)."""
    let_next_start(dependent)
    head, block = tl.program_id(0), tl.program_id(1)
    wait_for_last(dependent)
    first, last = tl.load(bounds + block) + tl.program_id(2) * queries, tl.load(bounds + block + 1)
    start, count = tl.load(starts + block), tl.load(counts + block)
    if last > first:
        if (queries > 64) & (last - first <= 64):
            _attend(
                qkv, tiles, output, first, last, start, count, head, scale,
                stride, output_stride, inner, size, 64, key_block, engine,
            )  # fmt: skip
        else:
            _attend(
                qkv, tiles, output, first, last, start, count, head, scale,
                stride, output_stride, inner, size, queries, key_block, engine,
            )  # fmt: skip

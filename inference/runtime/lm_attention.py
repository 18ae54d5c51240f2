"""Attention of a decode step over the slots' cache, each row over exactly its own positions. Import this on CUDA only.

Long rows are cut into spans of a fixed number of positions, which are put together in their order: what a row gets
depends on its own length only, never on its neighbours or on how many spans others need.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from inference.runtime.slot_table import ACTIVE, LENGTH

SPAN = 512  # positions of a program; rows up to here need no second kernel
_BLOCK = 128  # positions of a round
_WARPS = 4
_GROUP_ROWS = 16  # query heads of a key/value head, rounded up to what the matrix units take
LOG2_E = math.log2(math.e)
_LENGTH, _ACTIVE = tl.constexpr(LENGTH), tl.constexpr(ACTIVE)


@triton.jit
def _attend_row(  # type: ignore[no-untyped-def]
    fused, turns, table, cache, result, shares, marks, scale,
    width: tl.constexpr, heads: tl.constexpr, kv_heads: tl.constexpr, size: tl.constexpr,
    room: tl.constexpr, plane: tl.constexpr, span: tl.constexpr, block: tl.constexpr,
    group_rows: tl.constexpr, whole: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """Turn one row's new queries and key, store key and value, attend over one span of the row's positions."""
    row, kv_head, part = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    half: tl.constexpr = size // 2
    group: tl.constexpr = heads // kv_heads
    kind = cache.dtype.element_ty
    live = tl.load(table + row * width + _ACTIVE) > 0
    position = tl.minimum(tl.load(table + row * width + _LENGTH), room - 1).to(tl.int32)
    pair, whole_head, member = tl.arange(0, half), tl.arange(0, size), tl.arange(0, group_rows)
    head = kv_head * group + member
    inside = member[:, None] < group
    cosine = tl.load(turns + position * size + pair)
    sine = tl.load(turns + position * size + half + pair)
    line = fused + row * ((heads + 2 * kv_heads) * size)
    at = line + head[:, None] * size + pair[None, :]
    left = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    right = tl.load(at + half, mask=inside, other=0.0).to(tl.float32)
    query_left = (left * cosine[None, :] - right * sine[None, :]).to(kind)
    query_right = (right * cosine[None, :] + left * sine[None, :]).to(kind)
    at = line + (heads + kv_head) * size + pair
    left, right = tl.load(at).to(tl.float32), tl.load(at + half).to(tl.float32)
    key_left = (left * cosine - right * sine).to(kind)
    key_right = (right * cosine + left * sine).to(kind)
    value = tl.load(line + (heads + kv_heads + kv_head) * size + whole_head).to(kind)
    keys = cache + (row * kv_heads + kv_head) * (room * size)
    values = keys + plane
    start = part * span
    own = live & (position >= start) & (position < start + span)
    tl.store(keys + position * size + pair, key_left, mask=own)
    tl.store(keys + position * size + half + pair, key_right, mask=own)
    tl.store(values + position * size + whole_head, value, mask=own)
    # The new position comes first: it is at hand.
    score = query_left.to(tl.float32) * key_left.to(tl.float32)[None, :]
    score += query_right.to(tl.float32) * key_right.to(tl.float32)[None, :]
    best = tl.where(own, tl.sum(score, 1) * scale, float("-inf"))
    total = tl.where(own, tl.full([group_rows], 1.0, tl.float32), 0.0)
    mixed = tl.where(own, value.to(tl.float32), 0.0)[None, :] + tl.zeros([group_rows, size], tl.float32)
    end = start + live.to(tl.int32) * tl.maximum(tl.minimum(position - start, span), 0)
    for first in range(start, end, block):
        place = first + tl.arange(0, block)
        there = place < end
        from_key = keys + place[:, None] * size + pair[None, :]
        stored_left = tl.load(from_key, mask=there[:, None], other=0.0)
        stored_right = tl.load(from_key + half, mask=there[:, None], other=0.0)
        stored = tl.load(values + place[:, None] * size + whole_head[None, :], mask=there[:, None], other=0.0)
        scores = tl.dot(query_left, tl.trans(stored_left), input_precision=precision)
        scores = tl.dot(query_right, tl.trans(stored_right), scores, input_precision=precision)
        scores = tl.where(there[None, :], scores * scale, float("-inf"))
        better = tl.maximum(best, tl.max(scores, 1))
        share = tl.exp2(scores - better[:, None])
        fade = tl.exp2(best - better)
        total = total * fade + tl.sum(share, 1)
        mixed = mixed * fade[:, None] + tl.dot(share.to(kind), stored, input_precision=precision)
        best = better
    if whole:
        mixed = mixed / tl.where(total > 0.0, total, 1.0)[:, None]
        to = result + (row * heads + head[:, None]) * size + whole_head[None, :]
        tl.store(to, mixed.to(result.dtype.element_ty), mask=inside)
    else:
        place = (row * tl.num_programs(2) + part) * heads + head
        tl.store(shares + place[:, None] * size + whole_head[None, :], mixed, mask=inside)
        tl.store(marks + place * 2, best, mask=member < group)
        tl.store(marks + place * 2 + 1, total, mask=member < group)


@triton.jit(do_not_specialize=["spans"])
def _join_spans(  # type: ignore[no-untyped-def]
    table, result, shares, marks, spans,
    width: tl.constexpr, heads: tl.constexpr, kv_heads: tl.constexpr, size: tl.constexpr,
    room: tl.constexpr, span: tl.constexpr, group_rows: tl.constexpr,
):  # fmt: skip
    """Put the spans of one row together, as if they had been one."""
    row, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    group: tl.constexpr = heads // kv_heads
    live = tl.load(table + row * width + _ACTIVE) > 0
    position = tl.minimum(tl.load(table + row * width + _LENGTH), room - 1).to(tl.int32)
    count = live.to(tl.int32) * (position // span + 1)
    whole_head, member = tl.arange(0, size), tl.arange(0, group_rows)
    head = kv_head * group + member
    inside = member < group
    best = tl.full([group_rows], float("-inf"), tl.float32)
    total = tl.zeros([group_rows], tl.float32)
    mixed = tl.zeros([group_rows, size], tl.float32)
    for part in range(0, count):
        place = (row * spans + part) * heads + head
        mark = tl.load(marks + place * 2, mask=inside, other=0.0)
        sum_of_part = tl.load(marks + place * 2 + 1, mask=inside, other=1.0)
        share = tl.load(shares + place[:, None] * size + whole_head[None, :], mask=inside[:, None], other=0.0)
        better = tl.maximum(best, mark)
        fade, grow = tl.exp2(best - better), tl.exp2(mark - better)
        total = total * fade + sum_of_part * grow
        mixed = mixed * fade[:, None] + share * grow[:, None]
        best = better
    mixed = mixed / tl.where(total > 0.0, total, 1.0)[:, None]
    to = result + (row * heads + head[:, None]) * size + whole_head[None, :]
    tl.store(to, mixed.to(result.dtype.element_ty), mask=inside[:, None])


def precision_of(dtype: torch.dtype) -> str:
    """How the matrix units take float32."""
    return "ieee" if dtype == torch.float32 else "tf32"


class RowAttentionKernel:
    """One new position of each of the first B slots, for all layers of a cache (layers, 2, slots, kv, room, size).

    `turns` (room, size) float32: cosines, then sines, of each position. `rows`: the most that B can be.
    """

    def __init__(self, cache: Tensor, turns: Tensor, heads: int, rows: int, span: int = SPAN) -> None:
        _, _, slots, kv_heads, room, size = cache.shape
        self._cache, self.turns = cache, turns
        self._heads, self._kv_heads, self._size, self._room = heads, kv_heads, size, room
        self._plane = slots * kv_heads * room * size
        self._span, self._spans = span, triton.cdiv(room, span)
        cells = rows * self._spans * heads
        self._shares = torch.empty(cells * size, dtype=torch.float32, device=cache.device)
        self._marks = torch.empty(cells * 2, dtype=torch.float32, device=cache.device)
        self.reset()

    def reset(self) -> None:
        """Blocks as they were measured best; the benchmark tries others."""
        self.block, self.warps, self.stages = _BLOCK, _WARPS, 3

    def __call__(self, layer: int, fused: Tensor, table: Tensor, result: Tensor, longest: int) -> None:
        """fused (B, heads + 2 kv_heads, size): products, not yet turned → result (B, heads × size).

        Reads length and activity of the rows of the slots' `table`; rows that are not active get zeros. No active row
        has more than `longest` positions, the new one included.
        """
        rows = len(fused)
        spans = 1 if longest <= self._span else self._spans
        sizes = {
            "width": table.stride(0), "heads": self._heads, "kv_heads": self._kv_heads, "size": self._size,
            "room": self._room, "span": self._span, "group_rows": _GROUP_ROWS,
        }  # fmt: skip
        _attend_row[(rows, self._kv_heads, spans)](
            fused, self.turns, table, self._cache[layer], result, self._shares, self._marks,
            LOG2_E / math.sqrt(self._size), plane=self._plane, block=self.block, whole=spans == 1,
            precision=precision_of(fused.dtype), **sizes,
            num_warps=self.warps, num_stages=self.stages,
        )  # fmt: skip
        if spans > 1:
            _join_spans[(rows, self._kv_heads)](
                table, result, self._shares, self._marks, spans, **sizes, num_warps=4
            )

    def memory_bytes(self) -> int:
        """Of what spans leave for each other."""
        return self._shares.nbytes + self._marks.nbytes

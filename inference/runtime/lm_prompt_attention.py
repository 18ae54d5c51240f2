"""Attention of prompts, packed one behind the other, over the slots' cache. Import this on CUDA only.

Keys and values are stored first and then read back, so that beginnings and continuations are the same.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl
from torch import Tensor

from inference.runtime.lm_attention import LOG2_E, precision_of

QUERY_BLOCK = 64  # positions of a prompt in one program
_KEY_BLOCK = 64


@triton.jit
def _turn_and_store(  # type: ignore[no-untyped-def]
    fused, turns, positions, slots, cache, queries,
    heads: tl.constexpr, kv_heads: tl.constexpr, size: tl.constexpr, room: tl.constexpr,
    plane: tl.constexpr, padded: tl.constexpr,
):  # fmt: skip
    """One symbol of a prompt: turned queries to `queries`, turned keys and values to its slot."""
    symbol = tl.program_id(0).to(tl.int64)
    half: tl.constexpr = size // 2
    kind = cache.dtype.element_ty
    position, slot = tl.load(positions + symbol), tl.load(slots + symbol)
    head, pair = tl.arange(0, padded), tl.arange(0, half)
    turned: tl.constexpr = heads + kv_heads
    cosine = tl.load(turns + position * size + pair)[None, :]
    sine = tl.load(turns + position * size + half + pair)[None, :]
    at = fused + symbol * ((heads + 2 * kv_heads) * size) + head[:, None] * size + pair[None, :]
    inside = head[:, None] < heads + 2 * kv_heads
    left = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    right = tl.load(at + half, mask=inside, other=0.0).to(tl.float32)
    turns_too = head[:, None] < turned
    new_left = tl.where(turns_too, left * cosine - right * sine, left).to(kind)
    new_right = tl.where(turns_too, right * cosine + left * sine, right).to(kind)
    to = queries + (symbol * heads + head[:, None]) * size + pair[None, :]
    tl.store(to, new_left, mask=head[:, None] < heads)
    tl.store(to + half, new_right, mask=head[:, None] < heads)
    kv = tl.maximum(head - heads, 0)
    where = (kv // kv_heads) * plane + (kv % kv_heads) * (room * size)
    to = cache + slot * (kv_heads * room * size) + position * size + where[:, None] + pair[None, :]
    stored = inside & (head[:, None] >= heads)
    tl.store(to, new_left, mask=stored)
    tl.store(to + half, new_right, mask=stored)


@triton.jit
def _attend_prompt(  # type: ignore[no-untyped-def]
    queries, cache, blocks, result, scale,
    heads: tl.constexpr, kv_heads: tl.constexpr, size: tl.constexpr, room: tl.constexpr,
    plane: tl.constexpr, query_block: tl.constexpr, key_block: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """A block of one prompt's new positions, one head, over all positions of its slot up to each one."""
    about = blocks + tl.program_id(0) * 4
    head = tl.program_id(1)
    kind = cache.dtype.element_ty
    first_symbol, count = tl.load(about), tl.load(about + 1).to(tl.int32)
    slot, begin = tl.load(about + 2), tl.load(about + 3).to(tl.int32)
    member, dim = tl.arange(0, query_block), tl.arange(0, size)
    inside = member[:, None] < count
    at = ((first_symbol + member[:, None]) * heads + head) * size + dim[None, :]
    query = tl.load(queries + at, mask=inside, other=0.0)
    keys = cache + (slot * kv_heads + head // (heads // kv_heads)) * (room * size)
    end = begin + count
    best = tl.full([query_block], float("-inf"), tl.float32)
    total = tl.zeros([query_block], tl.float32)
    mixed = tl.zeros([query_block, size], tl.float32)
    for first in range(0, end, key_block):
        place = first + tl.arange(0, key_block)
        there = place < end
        from_key = keys + place[:, None] * size + dim[None, :]
        key = tl.load(from_key, mask=there[:, None], other=0.0)
        value = tl.load(from_key + plane, mask=there[:, None], other=0.0)
        score = tl.dot(query, tl.trans(key), input_precision=precision) * scale
        visible = there[None, :] & (place[None, :] <= begin + member[:, None])
        score = tl.where(visible, score, float("-inf"))
        better = tl.maximum(best, tl.max(score, 1))
        share = tl.exp2(score - better[:, None])
        fade = tl.exp2(best - better)
        total = total * fade + tl.sum(share, 1)
        mixed = mixed * fade[:, None] + tl.dot(share.to(kind), value, input_precision=precision)
        best = better
    mixed = mixed / tl.where(total > 0.0, total, 1.0)[:, None]
    tl.store(result + at, mixed.to(result.dtype.element_ty), mask=inside)


class PromptAttentionKernel:
    """Runs of new positions of some slots, packed one behind the other, for all layers of the cache."""

    def __init__(self, cache: Tensor, turns: Tensor, heads: int) -> None:
        _, _, slots, kv_heads, room, size = cache.shape
        self._cache, self._turns = cache, turns
        self._plane = slots * kv_heads * room * size
        self._sizes = {"heads": heads, "kv_heads": kv_heads, "size": size, "room": room}

    def store(self, layer: int, fused: Tensor, positions: Tensor, slots: Tensor, queries: Tensor) -> None:
        """Turn products fused (N, heads + 2 kv_heads, size) of symbols at (N,) int64 `positions` of (N,) `slots`.

        Keys and values go to the cache, queries to `queries` (N, heads × size).
        """
        _turn_and_store[(len(fused),)](
            fused, self._turns, positions, slots, self._cache[layer], queries, plane=self._plane,
            padded=triton.next_power_of_2(self._sizes["heads"] + 2 * self._sizes["kv_heads"]),
            **self._sizes, num_warps=4,
        )  # fmt: skip

    def attend(self, layer: int, queries: Tensor, blocks: Tensor, result: Tensor) -> None:
        """queries (N, heads × size), blocks (M, 4) int64 → result (N, heads × size).

        A block: its first symbol, how many (at most `QUERY_BLOCK`, 0 for none), their slot, the first one's position.
        """
        _attend_prompt[(len(blocks), self._sizes["heads"])](
            queries, self._cache[layer], blocks, result, LOG2_E / math.sqrt(self._sizes["size"]),
            plane=self._plane, query_block=QUERY_BLOCK, key_block=_KEY_BLOCK,
            precision=precision_of(queries.dtype), **self._sizes, num_warps=4,
        )  # fmt: skip

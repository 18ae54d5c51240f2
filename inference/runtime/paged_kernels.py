"""Triton kernels over pages: attention of new frames, and what convolutions look back on. Import this on CUDA only."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from inference.runtime import gpu_traits
from inference.runtime.flow_pages import PAIR, TAIL
from inference.runtime.paged_layout import BLOCK_FIELDS, NO_PAGE, DeviceRow
from inference.runtime.paged_memory import PageMemory
from inference.runtime.velocity_kernels import let_next_start, wait_for_last

_LOG2_E = math.log2(math.e)
_BLOCK_FIELDS = tl.constexpr(BLOCK_FIELDS)
_NO_PAGE = tl.constexpr(int(NO_PAGE))
_TAIL, _PAIR = tl.constexpr(TAIL), tl.constexpr(PAIR)


@triton.jit
def _mix(q, key, value, there, scale, best, total, mixed, precision: tl.constexpr):  # type: ignore[no-untyped-def]
    """One tile of keys into the running softmax."""
    score = tl.dot(q, tl.trans(key), input_precision=precision) * scale
    score = tl.where(there[None, :], score, float("-inf"))
    better = tl.maximum(best, tl.max(score, 1))
    share = tl.exp2(score - better[:, None])
    fade = tl.exp2(best - better)
    total = total * fade + tl.sum(share, 1)
    mixed = mixed * fade[:, None] + tl.dot(share.to(value.dtype), value, input_precision=precision)
    return better, total, mixed


@triton.jit(do_not_specialize=["half_rows", "layer"])
def _attend(  # type: ignore[no-untyped-def]
    qkv, output, memory, blocks, entries, step, row_values, output_row, inner, half_rows, layer, layers, scale,
    heads: tl.constexpr, frames: tl.constexpr, padded: tl.constexpr, size: tl.constexpr, precision: tl.constexpr,
    queries: tl.constexpr, parts: tl.constexpr, dependent: tl.constexpr,
):  # fmt: skip
    """Some of a chunk's queries, of one head and guidance half, against the stream's pages, the leader's rows and the
    stream's own rows up to the chunk's end. Keys come a chunk at a time wherever they lie, so that the sums do not
    depend on that.
    """
    let_next_start(dependent)
    block = blocks + (tl.program_id(0) // parts) * _BLOCK_FIELDS
    part = (tl.program_id(0) % parts) * queries
    count = tl.load(block + 1)
    wait_for_last(dependent)  # in every program: who does not wait does not hold up the next kernel either
    if count > part:
        wide = tl.program_id(1)
        half, head = (wide // heads).to(tl.int64), wide % heads
        rows, dims, asked = tl.arange(0, padded), tl.arange(0, size), part + tl.arange(0, queries)
        first = tl.load(block) + half * half_rows
        inside = (asked < count)[:, None]
        here = qkv + (first + asked)[:, None] * row_values + head * size + dims[None, :]
        q = tl.load(here, mask=inside, other=0.0)
        best = tl.full([queries], float("-inf"), tl.float32)
        total = tl.zeros([queries], tl.float32)
        mixed = tl.zeros([queries, size], tl.float32)
        tile = rows[:, None] * size + dims[None, :]
        known = rows < frames
        # Of this step, layer, half and head in every page; a product, which is known to be a multiple of 16.
        place = ((tl.load(step) * layers + layer) * (2 * heads) + wide) * (2 * frames * size)
        entry, pages = entries + tl.load(block + 2), tl.load(block + 3)
        for number in range(0, pages):
            page = memory + tl.multiple_of(tl.load(entry + number), 16) + place
            key = tl.load(page + tile, mask=known[:, None], other=0.0)
            value = tl.load(page + frames * size + tile, mask=known[:, None], other=0.0)
            best, total, mixed = _mix(q, key, value, known, scale, best, total, mixed, precision)
        led, led_count = tl.load(block + 4) + half * half_rows, tl.load(block + 5)
        for start in range(0, led_count, frames):
            at = qkv + inner + (led + start + rows)[:, None] * row_values + head * size + dims[None, :]
            key = tl.load(at, mask=known[:, None], other=0.0)
            value = tl.load(at + inner, mask=known[:, None], other=0.0)
            best, total, mixed = _mix(q, key, value, known, scale, best, total, mixed, precision)
        own = tl.load(block + 6) + half * half_rows
        end = first + count
        for start in range(0, end - own, frames):
            there = known & (own + start + rows < end)
            at = qkv + inner + (own + start + rows)[:, None] * row_values + head * size + dims[None, :]
            key = tl.load(at, mask=there[:, None], other=0.0)
            value = tl.load(at + inner, mask=there[:, None], other=0.0)
            best, total, mixed = _mix(q, key, value, there, scale, best, total, mixed, precision)
        mixed = mixed / total[:, None]
        target = output + (first + asked)[:, None] * output_row + head * size + dims[None, :]
        tl.store(target, mixed.to(output.dtype.element_ty), mask=inside)
        if tl.load(block + 8) > 0:
            # Nobody reads this chunk's page before the next batch.
            page = memory + tl.multiple_of(tl.load(block + 7), 16) + place
            mine = page + asked[:, None] * size + dims[None, :]
            tl.store(mine, tl.load(here + inner, mask=inside, other=0.0), mask=inside)
            value = tl.load(here + 2 * inner, mask=inside, other=0.0)
            tl.store(mine + frames * size, value, mask=inside)


@triton.jit
def _recall(  # type: ignore[no-untyped-def]
    tails, memory, starts, step, tails_at, tail_channels, width: tl.constexpr, dependent: tl.constexpr
):
    """Some channels of one row of the tails, from the page that the stream looks back on."""
    let_next_start(dependent)
    wait_for_last(dependent)
    number, row = tl.program_id(0), tl.program_id(1)
    source = tl.load(starts + number)
    if source != _NO_PAGE:
        half, place = row // _TAIL, row % _TAIL
        channel = tl.program_id(2) * width + tl.arange(0, width)
        there = channel < tail_channels
        part = tails_at + (tl.load(step) * (_PAIR * _TAIL) + row) * tail_channels
        value = tl.load(memory + tl.multiple_of(source, 16) + part + channel, mask=there, other=0.0)
        target = ((half * tl.num_programs(0) + number) * _TAIL + place).to(tl.int64) * tail_channels
        tl.store(tails + target + channel, value, mask=there)


@triton.jit(do_not_specialize=["half_rows", "first_channel"])
def _keep(  # type: ignore[no-untyped-def]
    x, memory, blocks, step, x_row, half_rows, channels, first_channel, tails_at, tail_channels,
    width: tl.constexpr, dependent: tl.constexpr,
):  # fmt: skip
    """One of the last rows of a chunk that is to be kept, into its page."""
    let_next_start(dependent)
    wait_for_last(dependent)
    block = blocks + tl.program_id(0) * _BLOCK_FIELDS
    if tl.load(block + 8) > 0:
        row = tl.program_id(1)
        half, place = (row // _TAIL).to(tl.int64), row % _TAIL
        channel = tl.arange(0, width)
        there = channel < channels
        last = tl.load(block) + tl.load(block + 1) - _TAIL + place
        value = tl.load(x + (half * half_rows + last) * x_row + channel, mask=there, other=0.0)
        part = tails_at + (tl.load(step) * (_PAIR * _TAIL) + row) * tail_channels
        page = memory + tl.multiple_of(tl.load(block + 7), 16) + part + tl.multiple_of(first_channel, 16)
        tl.store(page + channel, value, mask=there)


class Tiles(NamedTuple):
    """A program's queries, and how it is launched."""

    queries: int
    warps: int
    stages: int


FEW, MANY = Tiles(16, 2, 3), Tiles(64, 4, 3)
ALL_TILES = (FEW, MANY)
_FEW_ROWS = 1024


def attention_tiles(rows: int) -> Tiles:
    """For so many rows, both guidance halves counted: few programs are made more by taking fewer queries each."""
    return FEW if rows <= _FEW_ROWS else MANY


def _launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    kernel[grid](*arguments, **constants)


class KernelPages:
    """See `paged_ops.PageOps`.

    `tiles`: those of the attention, whatever the number of rows; `dependent`: kernels may begin before the last one has
    ended, by default where the device can; `start`: what to do with a kernel, its grid, arguments and constants.
    """

    def __init__(
        self,
        memory: PageMemory,
        tiles: Tiles | None = None,
        *,
        dependent: bool | None = None,
        start: Callable[..., None] = _launch,
    ) -> None:
        self._memory = memory
        self.tiles = tiles
        self._dependent = gpu_traits.kernels_overlap(memory.anchor.device) if dependent is None else dependent
        self._start = start

    def attend(self, qkv: Tensor, layer: int, row: DeviceRow, step: Tensor, output: Tensor) -> None:
        shape, anchor = self._memory.shape, self._memory.anchor
        inner = output.shape[1]
        tiles = self.tiles or attention_tiles(len(qkv))
        parts = triton.cdiv(shape.frames, tiles.queries)
        self._start(
            _attend, (len(row.blocks) * parts, PAIR * shape.heads),
            qkv, output, anchor, row.blocks, row.entries, step, qkv.stride(0), output.stride(0), inner,
            len(qkv) // PAIR, layer, shape.layers, _LOG2_E / math.sqrt(shape.head_size),
            heads=shape.heads, frames=shape.frames, padded=max(16, triton.next_power_of_2(shape.frames)),
            size=shape.head_size, precision="ieee" if qkv.dtype == torch.float32 else "tf32",
            queries=tiles.queries, parts=parts, dependent=self._dependent,
            num_warps=tiles.warps, num_stages=tiles.stages, launch_pdl=self._dependent,
        )  # fmt: skip

    def tails(self, row: DeviceRow, step: Tensor) -> Tensor:
        shape, anchor = self._memory.shape, self._memory.anchor
        found = torch.empty(row.tail_rows, shape.tail_channels, dtype=anchor.dtype, device=anchor.device)
        width = 1024
        self._start(
            _recall, (len(row.starts), PAIR * TAIL, triton.cdiv(shape.tail_channels, width)),
            found, anchor, row.starts, step, shape.tails_at, shape.tail_channels,
            width=width, dependent=self._dependent, launch_pdl=self._dependent,
        )  # fmt: skip
        return found

    def keep(self, x: Tensor, first_channel: int, row: DeviceRow, step: Tensor) -> None:
        shape = self._memory.shape
        channels = x.shape[1]
        self._start(
            _keep, (len(row.blocks), PAIR * TAIL),
            x, self._memory.anchor, row.blocks, step,
            x.stride(0), len(x) // PAIR, channels, first_channel,
            shape.tails_at, shape.tail_channels, width=triton.next_power_of_2(channels),
            dependent=self._dependent, num_warps=2, launch_pdl=self._dependent,
        )  # fmt: skip

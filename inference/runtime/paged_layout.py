"""The row of a batch of streams: which frames are new, what they see, and where it lies (compare `frame_pack`).

Each stream's new frames lie together. A chunk's queries see, in this order: the stream's pages; the prompt of its
voice, where another stream of the batch is just computing that (its leader); the stream's own new frames up to the
chunk's end. So no mask is ever made. A causal convolution finds the two frames before each row by number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from inference.runtime.flow_pages import PAIR, TAIL
from inference.runtime.flow_solver import MAX_FRAMES
from inference.runtime.frame_pack import Ints

ROW_FIELDS, BLOCK_FIELDS, START_FIELDS = 3, 9, 1
NO_PAGE = np.iinfo(np.int64).min  # in a start: the stream has no page to look back on
_SMALLEST = 128
_FRAMES_AN_ITEM = 32
_FINE_FROM = 2048


def row_ladder(most: int) -> tuple[int, ...]:
    """Lengths of rows that graphs are captured for, up to the first that holds `most`: two an octave, then four."""
    rungs = [_SMALLEST]
    while rungs[-1] < most:
        octave = 1 << (rungs[-1].bit_length() - 1)
        rungs.append(rungs[-1] + octave // (4 if octave >= _FINE_FROM else 2))
    return tuple(rungs)


def most_items(rows: int, limit: int) -> int:
    """Items that a row is made for; where there are more of them, very short ones, it must be longer."""
    return min(limit, max(1, rows // _FRAMES_AN_ITEM))


def _even(count: int) -> int:
    """Parts of a table begin at multiples of 16 bytes, or else kernels would be compiled for each case."""
    return count + count % 2


@dataclass(frozen=True)
class RowItem:
    """One stream's part: chunks `first` … of which the last may be incomplete.

    `frames`: of the whole stream up to its new end; `pages`: addresses of the chunks it has kept; `kept`: where the
    complete new ones are to be kept, from `first` on, None for those that are not; `leader`: the item of this batch
    that computes the chunks between `pages` and `first`, from its own first row on.
    """

    first: int
    frames: int
    pages: Sequence[int]
    kept: Sequence[int | None]
    leader: int | None = None


@dataclass(frozen=True)
class TableSizes:
    """How long a table's parts are: for a row of `rows` frames, `most_items` items, chunks of `chunk` frames."""

    rows: int
    most_items: int
    chunk: int

    @property
    def starts(self) -> int:
        """Items that there is room for: few in a short row, as every one of them makes all launches larger."""
        return _even(most_items(self.rows, self.most_items))

    @property
    def blocks(self) -> int:
        """Each item may have one incomplete chunk."""
        return _even(self.rows // self.chunk + self.starts)

    @property
    def entries(self) -> int:
        return self.starts * -(-MAX_FRAMES // self.chunk)

    @property
    def fixed(self) -> int:
        """Of the parts before the entries."""
        return ROW_FIELDS * self.rows + BLOCK_FIELDS * self.blocks + START_FIELDS * self.starts

    @property
    def table(self) -> int:
        return self.fixed + self.entries


class RowLayout:
    """Layout of one batch.

    `starts` (n,): the row of each item's first new frame; `lengths`: new frames. `table`: int64, for each row item,
    frame of its stream, is it inside one; for each block of queries row, count, first entry, entries, leader's row
    and count, own first row, address to keep the chunk at, is there one; for each start the page to look back on;
    then the entries, addresses of pages. `past` (2 · rows, 2): for each row of both guidance halves the one before and
    the one before that; -1 for none, -2 - n for row n of the tails, which are (pair, starts, TAIL) of them.
    """

    def __init__(self, items: Sequence[RowItem], sizes: TableSizes) -> None:
        self.items, self.sizes = tuple(items), sizes
        self._chunk = sizes.chunk
        self.lengths = [item.frames - item.first * sizes.chunk for item in items]
        lengths = np.array(self.lengths, dtype=np.int64)
        self.starts: Ints = np.cumsum(lengths) - lengths
        frames = np.zeros((ROW_FIELDS, sizes.rows), dtype=np.int64)
        before = np.full(sizes.starts, NO_PAGE, dtype=np.int64)
        entries: list[int] = []
        blocks: list[tuple[int, ...]] = []
        for number, (item, start, length) in enumerate(zip(items, self.starts.tolist(), self.lengths)):
            frames[0, start : start + length] = number
            frames[1, start : start + length] = np.arange(item.first * sizes.chunk, item.frames)
            frames[2, start : start + length] = 1
            if item.leader is None and item.pages:
                before[number] = item.pages[-1]
            blocks += self._blocks(item, start, length, len(entries))
            entries += item.pages
        table = np.zeros((sizes.blocks, BLOCK_FIELDS), dtype=np.int64)
        table[: len(blocks)] = blocks
        self.past = self._past()
        self.table = np.concatenate(
            (frames.ravel(), table.ravel(), before, np.array(entries, dtype=np.int64))
        )

    def _led(self, item: RowItem) -> int:
        """Frames that the leader computes for the item."""
        return (item.first - len(item.pages)) * self._chunk

    def _blocks(self, item: RowItem, start: int, length: int, entry: int) -> list[tuple[int, ...]]:
        led = (0, 0) if item.leader is None else (int(self.starts[item.leader]), self._led(item))
        found: list[tuple[int, ...]] = []
        for number, place in enumerate(range(0, length, self._chunk)):
            count = min(self._chunk, length - place)
            kept = item.kept[number] if number < len(item.kept) and count == self._chunk else None
            out = (0, 0) if kept is None else (kept, 1)
            found.append((start + place, count, entry, len(item.pages), *led, start, *out))
        return found

    def _past(self) -> Ints:
        rows, starts = self.sizes.rows, self.sizes.starts
        row = np.arange(rows, dtype=np.int64)
        past = np.stack((row - 1, row - 2), axis=1)
        for number, (item, start) in enumerate(zip(self.items, self.starts.tolist())):
            last, before_last = self._look_back(number, item)
            past[start] = last, before_last
            past[start + 1, 1] = last
        past[sum(self.lengths) :] = -1
        free = np.where(past >= 0, past + rows, np.where(past == -1, -1, past - starts * TAIL))
        return np.concatenate((past, free))

    def _look_back(self, number: int, item: RowItem) -> tuple[int, int]:
        """Where the guided half's last frame before the item is, and the one before that."""
        if item.leader is not None:
            end = int(self.starts[item.leader]) + self._led(item)
            return end - 1, end - 2
        if item.pages:
            return -2 - (number * TAIL + 1), -2 - number * TAIL
        return -1, -1


@dataclass(frozen=True)
class DeviceRow:
    """A table on the device, cut into its parts (views)."""

    item: Tensor  # (rows,)
    place: Tensor  # (rows,)
    inside: Tensor  # (rows,) above 0 inside
    blocks: Tensor  # (blocks, BLOCK_FIELDS)
    starts: Tensor  # (starts,)
    entries: Tensor  # (entries,)

    @classmethod
    def of(cls, table: Tensor, sizes: TableSizes) -> DeviceRow:
        rows = sizes.rows
        parts = (rows, rows, rows, sizes.blocks * BLOCK_FIELDS, sizes.starts, sizes.entries)
        item, place, inside, blocks, starts, entries = table.split(parts)
        return cls(item, place, inside, blocks.view(-1, BLOCK_FIELDS), starts, entries)

    @property
    def tail_rows(self) -> int:
        """Rows of the tails of both guidance halves."""
        return PAIR * len(self.starts) * TAIL


def empty_table(sizes: TableSizes) -> Ints:
    """A row without anything in it."""
    table = np.zeros(sizes.table, dtype=np.int64)
    table[sizes.fixed - sizes.starts : sizes.fixed] = NO_PAGE
    return table

"""Many mels in one row: the layout of a padding-free token-to-mel batch, worked out on the host.

Items of any length and mask mode lie behind each other with `GAP` frames between, which the causal convolutions see as
zeros. Attention is cut into blocks of query frames; each block names the run of key frames that it sees, so that no
mask is ever made: a chunk of the causal mode is a block whose keys end with it, a whole segment is several blocks that
see all of their item.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Ints = npt.NDArray[np.int64]

GAP = 2  # reach of the velocity network's causal convolutions
QUERY_BLOCK = 128  # rows that one thread block of the attention kernels works on
SMALLEST_BUCKET = 64
_STEPS = 8  # buckets an octave: at most 12.5 % of a bucket is waste


def bucket(size: int) -> int:
    """The smallest bucket that holds `size` ≥ 1: multiples of 64, from 512 on eight an octave."""
    step = max(SMALLEST_BUCKET, (1 << (size - 1).bit_length()) // (2 * _STEPS))
    return -(-size // step) * step


@dataclass(frozen=True)
class PackedMel:
    """One item: its frames, prompt included, and whether it sees chunk by chunk or all of itself."""

    frames: int
    causal: bool = False


@dataclass(frozen=True)
class Blocks:
    """Attention blocks. Block b's queries are rows bounds[b]…bounds[b + 1], its keys the key_counts[b] rows from
    key_starts[b] on. int32; `key_starts` has one entry more than there are blocks, as the kernels want it."""

    bounds: Tensor  # (S + 1,)
    key_starts: Tensor  # (S + 1,)
    key_counts: Tensor  # (S,)
    most_keys: int  # upper bound


class FramePack:
    """Layout of one batch of at most `most_items` items with causal chunks of `chunk` frames.

    `rows`: frames of the row, a bucket; `starts` (n,): first row of each item. `table` holds everything the device
    needs as one int32 vector (see `DeviceLayout`).
    """

    def __init__(
        self, items: Sequence[PackedMel], most_items: int, chunk: int = 50, rows: int | None = None
    ) -> None:
        lengths = np.array([item.frames for item in items], dtype=np.int64)
        ends = np.cumsum(lengths + GAP)
        self.items = tuple(items)
        self.chunk = chunk
        self.starts: Ints = ends - lengths - GAP
        self.used = int(ends[-1])
        self.rows = bucket(self.used) if rows is None else rows
        self.blocks = block_count(self.rows, most_items, chunk)
        self.table = np.concatenate((*self._frame_columns(lengths), *self._block_columns(lengths))).astype(
            np.int32
        )

    def _frame_columns(self, lengths: Ints) -> tuple[Ints, Ints, Ints]:
        """Which item, which frame of it, and is it one at all: (rows,) each."""
        spans = lengths + GAP
        columns = np.zeros((3, self.rows), np.int64)
        item, place, inside = columns[:, : self.used]
        item[:] = np.repeat(np.arange(len(lengths)), spans)
        place[:] = np.arange(self.used) - np.repeat(self.starts, spans)
        inside[:] = place < np.repeat(lengths, spans)
        place *= inside
        return columns[0], columns[1], columns[2]

    def _block_columns(self, lengths: Ints) -> tuple[Ints, Ints, Ints]:
        """`Blocks` of both guidance halves, the second half's rows behind the first's."""
        causal = np.array([item.causal for item in self.items])
        idle = np.arange(
            self.used, self.rows, QUERY_BLOCK
        )  # nobody reads these rows, but they must be finite
        found = np.concatenate(
            (
                _blocks_of(lengths, self.starts, causal, self.chunk),
                np.stack((idle, idle, np.ones_like(idle))),
            ),
            axis=1,
        )
        unused = np.repeat([[self.rows], [0], [1]], self.blocks - found.shape[1], axis=1)
        first, key, count = np.concatenate((found, unused), axis=1)
        bounds = np.concatenate((first, first + self.rows, [2 * self.rows]))
        keys = np.concatenate((key, key + self.rows, [0]))
        return bounds, keys, np.concatenate((count, count))


def _blocks_of(lengths: Ints, starts: Ints, causal: npt.NDArray[np.bool_], chunk: int) -> Ints:
    """(3, blocks): first query, first key and keys of all items' blocks, in the order of the rows.

    The gap's rows go with the item's last block, which may be as long as the others for them.
    """
    groups = np.where(causal, chunk, QUERY_BLOCK)  # frames that see the same keys, in causal items
    parts = -(-groups // QUERY_BLOCK)
    counts = -(-lengths // groups) * parts
    item = np.repeat(np.arange(len(lengths)), counts)
    number = np.arange(len(item)) - np.repeat(np.cumsum(counts) - counts, counts)
    group, part = np.divmod(number, parts[item])
    offset = group * groups[item] + part * QUERY_BLOCK
    seen = np.where(causal[item], np.minimum(lengths[item], (group + 1) * groups[item]), lengths[item])
    found = np.stack((starts[item] + offset, starts[item], seen))[:, offset < lengths[item]]
    ends = starts + lengths
    last = found[0, np.searchsorted(found[0], ends) - 1]
    long = ends + GAP - last > QUERY_BLOCK
    gaps = np.stack((ends, starts, np.ones_like(ends)))[:, long]
    joined = np.concatenate((found, gaps), axis=1)
    return joined[:, np.argsort(joined[0], kind="stable")]


def block_count(rows: int, most_items: int, chunk: int) -> int:
    """Blocks that suffice for any layout of `rows` frames and up to `most_items` items."""
    return -(-rows // min(chunk, QUERY_BLOCK)) + 2 * most_items + 2


@dataclass(frozen=True)
class DeviceLayout:
    """A `FramePack`'s table on the device, cut into its columns."""

    item: Tensor  # (rows,) int32
    place: Tensor  # (rows,) int32
    marks: Tensor  # (rows,) int32
    blocks: Blocks

    @property
    def inside(self) -> Tensor:
        """(rows,) bool: is it a frame of an item?"""
        return self.marks > 0


def table_size(rows: int, blocks: int) -> int:
    """Entries of a table."""
    return 3 * rows + 3 * (2 * blocks) + 2


def device_layout(table: Tensor, rows: int, blocks: int) -> DeviceLayout:
    """Views of an uploaded table."""
    item, place, marks, bounds, keys, counts = table.split(
        (rows, rows, rows, 2 * blocks + 1, 2 * blocks + 1, 2 * blocks)
    )
    return DeviceLayout(item, place, marks, Blocks(bounds, keys, counts, rows))


def upload(values: npt.NDArray[np.generic], device: torch.device) -> Tensor:
    """To the device without waiting for it."""
    host = torch.from_numpy(values)
    if device.type != "cuda":
        return host.to(device)
    return host.pin_memory().to(device, non_blocking=True)

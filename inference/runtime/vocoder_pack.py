"""Many mels in one row for the vocoder: layout and buffers, worked out on the host (compare `frame_pack`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from inference.runtime.frame_pack import Ints, bucket
from inference.runtime.vocoder_stream import OVERLAP_FRAMES, VocoderState

GAP = 4  # frames between items, zero for the convolutions: their longest reach is 25 samples at 8 a frame
SPARE = 8  # frames at the end of the row that nobody reads, for what is written on behalf of no item
_ITEM_FIELDS = 6


@dataclass(frozen=True)
class VocoderJob:
    """One piece of a stream: new frames (M, 80), M ≥ 1, float32; its state, with all overlap frames, or None."""

    mel: Tensor
    state: VocoderState | None
    final: bool
    seed: int

    @property
    def frames(self) -> int:
        """Frames that go through the vocoder, overlap included."""
        return len(self.mel) + (0 if self.state is None else OVERLAP_FRAMES)

    @property
    def held(self) -> int:
        """Frames held back for the next piece."""
        return 0 if self.final else OVERLAP_FRAMES


class VocoderPack:
    """Layout of one batch: `rows` frames, a bucket; `starts` and `ends` (n,) of the items in it.

    `table`: for each row its item, its frame in the item and whether it is inside one; then for each of `most_items`
    items first row, end, seed, place in the stream, has a state, goes on afterwards. All int64.
    """

    def __init__(self, jobs: Sequence[VocoderJob], most_items: int) -> None:
        lengths = np.array([job.frames for job in jobs], dtype=np.int64)
        self.starts: Ints = GAP + np.cumsum(lengths + GAP) - lengths - GAP
        self.ends: Ints = self.starts + lengths
        self.rows = bucket(self.used(lengths.tolist()))
        self.most_items = most_items
        frames = np.zeros((3, self.rows), dtype=np.int64)
        fields = np.zeros((_ITEM_FIELDS, most_items), dtype=np.int64)
        fields[:2] = self.nobody()
        for number, (job, start, end) in enumerate(zip(jobs, self.starts, self.ends)):
            frames[0, start:end] = number
            frames[1, start:end] = np.arange(end - start)
            frames[2, start:end] = 1
            place = 0 if job.state is None else job.state.frame
            fields[:, number] = start, end, job.seed, place, job.state is not None, not job.final
        self.table: Ints = np.concatenate((frames.ravel(), fields.ravel()))

    @staticmethod
    def used(lengths: Sequence[int]) -> int:
        """Rows that items of these lengths take."""
        return rows_used(lengths)

    def nobody(self) -> Ints:
        """(2, 1): first row and end of what is no item; it happens within the spare rows."""
        return np.array([[self.rows - SPARE + 2], [self.rows - SPARE + 4]], dtype=np.int64)


def rows_used(lengths: Sequence[int]) -> int:
    """Rows that items of these lengths take."""
    return GAP + sum(length + GAP for length in lengths) + SPARE


def table_size(rows: int, most_items: int) -> int:
    """Entries of a `VocoderPack`'s table."""
    return 3 * rows + _ITEM_FIELDS * most_items


@dataclass
class VocoderBuffers:
    """Inputs and outputs of a run over `rows` frames; addresses stay the same from run to run."""

    table: Tensor  # int64
    mel: Tensor  # (rows, 80) float32
    old_source: Tensor  # (most_items, 8, hop): what the streams kept
    old_speech: Tensor  # (most_items, 8, hop)
    old_cycles: Tensor  # (most_items, harmonics), zero without a state
    source: Tensor  # (rows, hop)
    wave: Tensor  # (rows, hop)
    cycles: Tensor  # (rows, harmonics)
    answer: Tensor  # int16: the sound (rows * hop), then for each item 1 if it is not finite

    @staticmethod
    def make(
        rows: int, most_items: int, hop: int, bins: int, harmonics: int, device: torch.device
    ) -> VocoderBuffers:
        """All zeros."""

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        return VocoderBuffers(
            table=zeros(table_size(rows, most_items), dtype=torch.int64),
            mel=zeros(rows, bins),
            old_source=zeros(most_items, OVERLAP_FRAMES, hop),
            old_speech=zeros(most_items, OVERLAP_FRAMES, hop),
            old_cycles=zeros(most_items, harmonics),
            source=zeros(rows, hop),
            wave=zeros(rows, hop),
            cycles=zeros(rows, harmonics),
            answer=zeros(rows * hop + most_items, dtype=torch.int16),
        )


@dataclass(frozen=True)
class VocoderLayout:
    """A table on the device, cut into its columns."""

    item: Tensor  # (rows,)
    place: Tensor  # (rows,)
    inside: Tensor  # (rows,) bool
    starts: Tensor  # (most_items,)
    ends: Tensor
    seeds: Tensor
    numbers: Tensor  # place of the first frame in its stream
    continued: Tensor  # bool: has a state
    open_end: Tensor  # bool: goes on afterwards

    @staticmethod
    def of(table: Tensor, rows: int, most_items: int) -> VocoderLayout:
        item, place, inside = table[: 3 * rows].view(3, rows)
        starts, ends, seeds, numbers, continued, open_end = table[3 * rows :].view(_ITEM_FIELDS, most_items)
        return VocoderLayout(
            item, place, inside > 0, starts, ends, seeds, numbers, continued > 0, open_end > 0
        )

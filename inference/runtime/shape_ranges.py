"""Which batches and lengths an engine is built for, from what the pool's lanes make."""

from __future__ import annotations

from dataclasses import dataclass

from inference.runtime.frame_pack import SMALLEST_BUCKET, bucket
from inference.runtime.vocoder_pack import GAP, SPARE
from inference.runtime.wave_parts import vocoder_frames

Bounds = tuple[int, int, int]  # smallest, tuned for, largest
BINS_A_FRAME = 120
_SHORT_ROW = 512  # first chunks of some streams, or one sentence
_SCORE_BYTES = 1 << 30  # of one layer's attention scores, should they not be fused


@dataclass(frozen=True)
class ShapeRange:
    """One optimisation profile."""

    batch: Bounds
    frames: Bounds

    def takes(self, batch: int, frames: int) -> bool:
        """Whether a shape is within."""
        return self.batch[0] <= batch <= self.batch[2] and self.frames[0] <= frames <= self.frames[2]

    def bounds(
        self, shape: tuple[int, ...], axes: dict[int, str]
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """An input's smallest, tuned and largest shape; `axes` names its dynamic ones."""
        smallest, tuned, largest = (
            tuple(self._size(axes[axis], which) if axis in axes else size for axis, size in enumerate(shape))
            for which in range(3)
        )
        return smallest, tuned, largest

    def _size(self, name: str, which: int) -> int:
        if name == "batch":
            return self.batch[which]
        frames = self.frames[which]
        return BINS_A_FRAME * frames + 1 if name == "bins" else frames


def spectrum_ranges(max_batch: int, max_batch_frames: int) -> tuple[ShapeRange, ...]:
    """Of `PackedVocoder`'s rows: one row a call, of a bucket's length, up to what `wave_parts` cuts a batch into."""
    most = vocoder_frames(max_batch_frames)
    # A single item may be longer; the rest of a row is gaps, overlaps and a bucket's rounding.
    longest = bucket(most + max_batch * (GAP + 8) + GAP + SPARE)
    one = (1, 1, 1)
    short = ShapeRange(one, (SMALLEST_BUCKET, 2 * SMALLEST_BUCKET, min(_SHORT_ROW, longest)))
    if longest <= _SHORT_ROW:
        return (short,)
    return short, ShapeRange(one, (_SHORT_ROW + 1, bucket(max(_SHORT_ROW + 1, longest // 2)), longest))


def velocity_ranges(max_batch: int, max_batch_frames: int, heads: int = 8) -> tuple[ShapeRange, ...]:
    """Of `PaddedSolver`'s batches, both guidance halves counted: up to 4 long items, or up to 16 of sentence length.

    Larger batches are left to the packed row, which wastes nothing.
    """
    few = _velocity_range(2, min(8, 2 * max_batch), 2, max_batch_frames, heads)
    if max_batch <= 4:
        return (few,)
    return few, _velocity_range(9, min(32, 2 * max_batch), 16, max_batch_frames, heads)


def _velocity_range(least: int, most: int, tuned: int, max_frames: int, heads: int) -> ShapeRange:
    longest = int((_SCORE_BYTES / (2 * heads * most)) ** 0.5)
    longest = max(SMALLEST_BUCKET, min(longest, 2 * max_frames // most) // SMALLEST_BUCKET * SMALLEST_BUCKET)
    return ShapeRange(
        (least, max(least, min(tuned, most)), most), (SMALLEST_BUCKET, min(704, longest), longest)
    )

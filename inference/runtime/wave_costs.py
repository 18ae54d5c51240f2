"""How much of what is due makes one batch of the token-to-wave lane: enough for the device, not long to wait for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inference.runtime.frame_pack import bucket
from inference.runtime.paged_layout import row_ladder

# Seconds that one batch may take where somebody waits for a first sound or a next one, and where nobody does.
HURRIED, RELAXED = 0.06, 0.25
# But one batch for all is sooner done than two, whose weights are read twice: up to so many seconds.
CROWDED = 0.12
# Frames instead of seconds, as long as no batch was measured.
HURRIED_FRAMES, CROWDED_FRAMES, RELAXED_FRAMES = 3072, 6144, 12288
_LEAD = 0.012  # seconds before the end of one flow in which the host gets the next one ready
_MOST_TAIL = 0.5
_MEASURED_FROM = 1024  # frames; smaller batches say little about large ones
_MEMORY = 0.9  # weight of earlier measurements
# Batches that are all about as long say nothing of what one costs whatever its length; and that is never all.
_LEAST_SPREAD, _LEAST_SLOPE = 0.05, 0.3
_SPARED = 0.75  # a batch may be made so much shorter to fit a captured row better


@dataclass(frozen=True)
class Cost:
    """Of one item, in frames of the flow model: `row` in its row, `total` with the vocoder."""

    row: int
    total: int
    streamed: bool


class BatchSizer:
    """Chooses batches by how long those before took: something for every batch, and something for every frame."""

    def __init__(self, most_frames: int) -> None:
        self._most = most_frames
        # Of 1, frames, frames², seconds, frames × seconds; older batches weigh less.
        self._sums: tuple[float, ...] = (0.0,) * 5

    def measured(self, costs: Sequence[Cost], seconds: float) -> None:
        """A batch of these items took so long."""
        frames = float(sum(cost.total for cost in costs))
        if frames >= _MEASURED_FROM and seconds > 0:
            new = (1.0, frames, frames * frames, seconds, frames * seconds)
            self._sums = tuple(_MEMORY * old + more for old, more in zip(self._sums, new))

    def _line(self) -> tuple[float, float] | None:
        """(seconds of a batch, seconds a frame), by least squares; None while nothing was measured."""
        count, x, xx, y, xy = self._sums
        if not count:
            return None
        spread = xx / x - x / count  # of the batches' lengths
        slope = (xy / x - y / count) / spread if spread > _LEAST_SPREAD * x / count else y / x
        slope = min(y / x, max(slope, _LEAST_SLOPE * y / x))
        return (y - slope * x) / count, slope

    def _frames(self, seconds: float, unmeasured: int) -> int:
        """Frames that take so long."""
        line = self._line()
        if line is None:
            return min(self._most, unmeasured)
        return min(self._most, max(bucket(512), int((seconds - line[0]) / line[1])))

    def tail_share(self, costs: Sequence[Cost]) -> float:
        """The last share of a batch's flow, long enough to begin the next one in."""
        line = self._line()
        if line is None:
            return 0.0
        expected = line[0] + line[1] * sum(cost.total for cost in costs)
        return min(_MOST_TAIL, _LEAD / max(_LEAD, expected))

    def count(self, costs: Sequence[Cost]) -> int:
        """How many of the items, from the front, make a batch while nobody listens; at least one."""
        return self._within(costs, self._frames(RELAXED, RELAXED_FRAMES))

    def count_hurried(self, costs: Sequence[Cost], firsts: int) -> int:
        """The same while somebody listens; the first `firsts` items are first chunks.

        All first chunks go together where that takes no longer than `CROWDED`, and others with them if there is time
        left; without first chunks that goes for all chunks.
        """
        waiting = sum(cost.total for cost in costs[: firsts or len(costs)] if cost.streamed)
        least, most = self._frames(HURRIED, HURRIED_FRAMES), self._frames(CROWDED, CROWDED_FRAMES)
        return self._within(costs, min(max(waiting, least), most))

    def _within(self, costs: Sequence[Cost], limit: int) -> int:
        total, most = costs[0].total, 1
        for cost in costs[1:]:
            total += cost.total
            if total > limit:
                break
            most += 1
        if most == len(costs):
            return most
        least = max(1, int(_SPARED * most))
        return max(range(least, most + 1), key=lambda count: (_filled(costs[:count]), count))


def _filled(costs: Sequence[Cost]) -> float:
    """Share of the padded rows that is of use, in coarse steps."""
    streamed = sum(cost.row for cost in costs if cost.streamed)
    whole = sum(cost.row for cost in costs if not cost.streamed)
    padded = (bucket(whole) if whole else 0) + (row_ladder(streamed)[-1] if streamed else 0)
    return round((streamed + whole) / max(1, padded), 2)

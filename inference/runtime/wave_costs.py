"""How much of what is due makes one batch of the token-to-wave lane: enough for the device, not long to wait for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inference.runtime.frame_pack import bucket
from inference.runtime.paged_layout import row_ladder

# Seconds that one batch may take where somebody waits for a first sound or a next one, and where nobody does.
HURRIED, RELAXED = 0.06, 0.25
# Frames instead of seconds, as long as no batch was measured.
HURRIED_FRAMES, RELAXED_FRAMES = 3072, 12288
_MEASURED_FROM = 1024  # frames; smaller batches say little about large ones
_MEMORY = 0.8  # weight of earlier measurements
_SPARED = 0.75  # a batch may be made so much shorter to fit a captured row better


@dataclass(frozen=True)
class Cost:
    """Of one item, in frames of the flow model: `row` in its row, `total` with the vocoder."""

    row: int
    total: int
    streamed: bool


class BatchSizer:
    """Chooses batches by the pace of those before."""

    def __init__(self, most_frames: int) -> None:
        self._most = most_frames
        self._pace: float | None = None  # seconds a frame

    def measured(self, costs: Sequence[Cost], seconds: float) -> None:
        """A batch of these items took so long."""
        frames = sum(cost.total for cost in costs)
        if frames >= _MEASURED_FROM and seconds > 0:
            found = seconds / frames
            self._pace = found if self._pace is None else _MEMORY * self._pace + (1 - _MEMORY) * found

    def limit(self, hurried: bool) -> int:
        """Frames of a batch."""
        if self._pace is None:
            return min(self._most, HURRIED_FRAMES if hurried else RELAXED_FRAMES)
        seconds = HURRIED if hurried else RELAXED
        return min(self._most, max(bucket(512), int(seconds / self._pace)))

    def count(self, costs: Sequence[Cost], hurried: bool) -> int:
        """How many of the items, from the front, make a batch; at least one."""
        limit = self.limit(hurried)
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

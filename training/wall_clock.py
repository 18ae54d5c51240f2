"""A learning-rate schedule driven by elapsed time, so that a run always ends annealed whatever the machine's speed."""

from __future__ import annotations

import math
import time


class WallClock:
    """Minutes given at the start; `fraction` goes from 0 to 1. `limit_steps` ends a rehearsal early."""

    def __init__(self, minutes: float, limit_steps: int = 0, warmup_steps: int = 100) -> None:
        self._start = time.monotonic()
        self._seconds = minutes * 60.0
        self._limit = limit_steps
        self._warmup = warmup_steps

    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    def fraction(self, step: int) -> float:
        """Share of the run that is over, by time or by steps, whichever is further."""
        by_steps = step / self._limit if self._limit else 0.0
        return min(1.0, max(self.elapsed() / self._seconds, by_steps))

    def done(self, step: int) -> bool:
        return self.fraction(step) >= 1.0

    def rate(self, step: int) -> float:
        """Factor for the learning rate: linear warm-up in steps, then a cosine to zero over the whole run."""
        warm = min(1.0, (step + 1) / self._warmup)
        return warm * 0.5 * (1.0 + math.cos(math.pi * self.fraction(step)))

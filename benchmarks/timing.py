"""How long work takes that is begun on the host and done on a device."""

from __future__ import annotations

import time
from collections.abc import Callable


def timed(work: Callable[[], object], repeat: int, wait: Callable[[], object]) -> tuple[float, float]:
    """(ms a round, ms of it until the last launch). `wait` returns when the device has done all."""
    total = host = 0.0
    for _ in range(repeat):
        wait()
        started = time.perf_counter()
        work()
        host += time.perf_counter() - started
        wait()
        total += time.perf_counter() - started
    return 1000.0 * total / repeat, 1000.0 * host / repeat

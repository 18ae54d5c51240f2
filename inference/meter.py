"""How busy something is: the share of the last seconds it spent at work, and how long it has been at it now."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

WINDOW = 5.0  # seconds


class BusyMeter:
    """Written by one thread, read by any."""

    def __init__(self, window: float = WINDOW, now: Callable[[], float] = time.perf_counter) -> None:
        self._window = window
        self._now = now
        self._begun = now()
        self._spans: deque[tuple[float, float]] = deque()
        self._since: float | None = None
        self._lock = threading.Lock()

    @contextmanager
    def working(self) -> Iterator[None]:
        """The block is work."""
        started = self._now()
        with self._lock:
            self._since = started
        try:
            yield
        finally:
            with self._lock:
                self._since = None
                self._spans.append((started, self._now()))
                self._forget(self._now() - self._window)

    def share(self) -> float:
        """Of the last seconds, 0 to 1."""
        now = self._now()
        begin = max(now - self._window, self._begun)
        with self._lock:
            self._forget(begin)
            spans = list(self._spans) + ([(self._since, now)] if self._since is not None else [])
        busy = sum(max(0.0, end - max(start, begin)) for start, end in spans)
        return min(1.0, busy / (now - begin)) if now > begin else 0.0

    def current(self) -> float:
        """Seconds since the work began that is under way, 0 when idle."""
        with self._lock:
            return 0.0 if self._since is None else self._now() - self._since

    def _forget(self, before: float) -> None:
        while self._spans and self._spans[0][1] < before:
            self._spans.popleft()

"""SIGINT and SIGTERM as something to wait for, so that a program ends in order and not in the middle of a line."""

from __future__ import annotations

import math
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
LOOK_SECONDS = 0.1


class StopSignals:
    """Context manager that catches both signals; only the main thread can. They do what they did before afterwards."""

    def __init__(self) -> None:
        # A plain value: a handler may run in the middle of anything, so it must not take the lock of an Event.
        self.stopped = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self._before = {name: signal.signal(name, self._note) for name in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, handler in self._before.items():
            signal.signal(name, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.stopped = True

    def wait(self, seconds: float = math.inf) -> bool:
        """Until a signal comes or the time is over; whether one has come since the start or the last `clear`."""
        until = time.monotonic() + seconds
        while not self.stopped and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, LOOK_SECONDS))
        return self.stopped

    def clear(self) -> None:
        """Forget the signals so far."""
        self.stopped = False

"""The start of a pool beside that of the page, which is there long before the models are loaded."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol


class Startable(Protocol):
    """The part of `inference.pool.WorkerPool` that is used here."""

    def start_blocking(self) -> None: ...


class PoolStart:
    """Starts a pool in a thread of its own, at once. Whoever ends the start early closes the pool."""

    def __init__(self, pool: Startable) -> None:
        self._begun = time.monotonic()
        self._ended = 0.0
        executor = ThreadPoolExecutor(1, thread_name_prefix="start")
        self._future = executor.submit(self._run, pool)
        executor.shutdown(wait=False)

    @property
    def seconds(self) -> float:
        """How long it took, or has taken so far."""
        return (self._ended or time.monotonic()) - self._begun

    def done(self) -> bool:
        """Whether all workers have come up or failed. Raises the pool's error if none came up."""
        if not self._future.done():
            return False
        self._future.result()
        return True

    def _run(self, pool: Startable) -> None:
        try:
            pool.start_blocking()
        finally:
            self._ended = time.monotonic()

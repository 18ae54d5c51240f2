"""A pool that starts beside the page: not done, done, failed."""

from __future__ import annotations

import threading

import pytest

from inference.types import EngineError
from webui.pool_start import PoolStart

pytestmark = pytest.mark.unit


class Slow:
    """Starts when it is let."""

    def __init__(self, error: Exception | None = None) -> None:
        self.go = threading.Event()
        self.error = error

    def start_blocking(self) -> None:
        assert self.go.wait(30)
        if self.error is not None:
            raise self.error


def wait_for(start: PoolStart) -> None:
    while not start.done():
        threading.Event().wait(0.01)


def test_it_is_done_when_the_pool_is() -> None:
    pool = Slow()
    start = PoolStart(pool)
    assert not start.done()
    pool.go.set()
    wait_for(start)
    took = start.seconds
    threading.Event().wait(0.02)
    assert start.done() and start.seconds == took > 0


def test_its_error_is_the_pool_s() -> None:
    pool = Slow(EngineError("worker_failed", "It could not start."))
    start = PoolStart(pool)
    pool.go.set()
    with pytest.raises(EngineError, match="could not start"):
        wait_for(start)
    with pytest.raises(EngineError, match="could not start"):
        start.done()

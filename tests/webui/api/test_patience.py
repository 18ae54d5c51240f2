"""Waiting with a limit: its result, its limit, and a cancellation that comes at any moment."""

from __future__ import annotations

import asyncio

import pytest

from webui.api.patience import OutOfTimeError, in_time

pytestmark = pytest.mark.unit


def test_the_result_or_the_error_comes_through() -> None:
    async def fail() -> None:
        raise KeyError("its own")

    assert asyncio.run(in_time(asyncio.sleep(0, "done"), 60.0)) == "done"
    with pytest.raises(KeyError):
        asyncio.run(in_time(fail(), 60.0))


def test_what_takes_too_long_is_cancelled() -> None:
    ended = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    with pytest.raises(OutOfTimeError):
        asyncio.run(in_time(work(), 0.01))
    assert ended


@pytest.mark.parametrize("steps", range(6))
def test_a_cancellation_is_never_lost(steps: int) -> None:
    """Also when it comes between the end of the work and its taker's waking up."""

    async def cancel_after() -> bool:
        done = asyncio.Event()
        waiting = asyncio.ensure_future(in_time(done.wait(), 60.0))
        for _ in range(5):
            await asyncio.sleep(0)
        done.set()
        for _ in range(steps):
            await asyncio.sleep(0)
        if waiting.done():
            return True
        waiting.cancel()
        await asyncio.wait({waiting})
        return waiting.cancelled()

    assert asyncio.run(cancel_after())

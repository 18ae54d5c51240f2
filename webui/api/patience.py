"""Waiting for something for so long and no longer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


class OutOfTimeError(Exception):
    """It did not come in time."""


async def in_time(work: Awaitable[T], seconds: float) -> T:
    """The result of `work`, which is cancelled when it takes longer. Raises `OutOfTimeError`.

    Not `asyncio.wait_for`: until Python 3.12 that goes on as if nothing had been when it is cancelled just as `work`
    is done, and who has left would be spoken to until the end.
    """
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    finally:
        task.cancel()
    if not done:
        await asyncio.gather(task, return_exceptions=True)
        raise OutOfTimeError
    return task.result()

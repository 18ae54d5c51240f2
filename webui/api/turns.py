"""The turns of one session: one after the other, all silenced at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from webui.api.turn import Turn


class Turns:
    """`make` gives a turn whose pieces count from a number on; `failed` hears of what ended one against its will."""

    def __init__(self, make: Callable[[int], Turn], failed: Callable[[BaseException], None]) -> None:
        self._make = make
        self._failed = failed
        self._tasks: dict[asyncio.Task[None], Turn] = {}
        self._open: Turn | None = None
        self._number = 0

    @property
    def speaking(self) -> bool:
        """Something is being spoken, or is still to be."""
        return bool(self._tasks)

    def add(self, piece: str) -> None:
        """To the turn that is open; opens one if none is. Raises as `Turn.add`."""
        if self._open is None:
            self._open = self._make(self._number)
            before = list(self._tasks)
            task = asyncio.ensure_future(_after(before, self._open))
            self._tasks[task] = self._open
            task.add_done_callback(self._over)
        self._open.add(piece)
        self._number = self._open.next_number

    def end(self) -> bool:
        """Nothing more comes for the open turn; False if none is open."""
        turn, self._open = self._open, None
        if turn is not None:
            turn.end()
        return turn is not None

    def decide(self, again: bool) -> bool:
        """See `Turn.decide`."""
        return any(turn.decide(again) for turn in list(self._tasks.values()))

    async def silence(self) -> None:
        """Give up everything."""
        self._open = None
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _over(self, task: asyncio.Task[None]) -> None:
        turn = self._tasks.pop(task)
        if self._open is turn:
            self._open = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)


async def _after(before: list[asyncio.Task[None]], turn: Turn) -> None:
    if before:
        await asyncio.wait(before)
    await turn.run()

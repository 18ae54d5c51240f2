"""The turns of one session: one after the other, all silenced at once, and what is left of them to be spoken."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from webui.api.turn import Turn

_REMEMBERED_TURNS = 8
_REMEMBERED_PIECES = 16  # that have been sent, but may not have arrived


@dataclass
class Script:
    """What one turn was given: (id, text) of its pieces, the latest at least; `told`: its end has been told."""

    number: int
    pieces: list[tuple[int, str]] = field(default_factory=list)
    ended: bool = False
    told: bool = False


class Turns:
    """`make` gives a turn by its number; `failed` hears of what ended one against its
    will.
    """

    def __init__(self, make: Callable[[int], Turn], failed: Callable[[BaseException], None]) -> None:
        self._make = make
        self._failed = failed
        self._tasks: dict[asyncio.Task[None], Turn] = {}
        self._open: Turn | None = None
        self._scripts: deque[Script] = deque(maxlen=_REMEMBERED_TURNS)
        self._turn = 0  # number of the next one
        self._piece = 0

    @property
    def number(self) -> int:
        """Of the turn that is open, else of the next one."""
        return self._turn if self._open is None else self._turn - 1

    @property
    def making(self) -> bool:
        """Something is being made, or waits for that. What waits for the client's decision does not count."""
        return any(turn.making for turn in self._tasks.values())

    @property
    def hungry(self) -> bool:
        """The listener will soon have nothing to hear."""
        if self._open is None:
            return not self._tasks
        return len(self._tasks) == 1 and self._open.hungry

    def add(self, piece: str) -> None:
        """To the turn that is open; opens one if none is. Raises as `Turn.check_room`."""
        turn = self._open or self._begin()
        turn.check_room(piece)
        turn.add(self._piece, piece)
        self._note(turn, piece)

    def end(self) -> int:
        """Nothing more comes for the open turn, or for an empty one; its number."""
        turn, self._open = self._open or self._begin(), None
        self._scripts[-1].ended = True
        turn.end()
        return turn.number

    def decide(self, again: bool) -> bool:
        """See `Turn.decide`."""
        return any(turn.decide(again) for turn in list(self._tasks.values()))

    async def silence(self) -> None:
        """Give up everything that is in work; `scripts` still tells it."""
        self._open = None
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def forget(self) -> None:
        """Nothing that was said before is to be spoken any more."""
        self._scripts.clear()

    # ------------------------------------------------------------------------------------ for another connection
    def restore(self, left: Turns, after: int) -> None:
        """Speak what a silenced session has left, to a client that has all pieces up to `after`."""
        for script in left._after(after):
            self._turn = script.number
            turn = self._begin()
            self._scripts[-1].pieces = script.pieces
            for number, text in script.pieces:
                turn.add(number, text)
            if script.ended:
                self.end()
        self._turn, self._piece = max(left._turn, self._turn), left._piece

    def _after(self, piece: int) -> list[Script]:
        """What is to be sent. The last turn's end is told again: nobody knows whether that arrived."""
        left = []
        for script in self._scripts:
            pieces = [one for one in script.pieces if one[0] > piece]
            if pieces or not script.told or script is self._scripts[-1]:
                left.append(Script(script.number, pieces, script.ended))
        return left

    # -------------------------------------------------------------------------------------------------- inside
    def _begin(self) -> Turn:
        self._open = turn = self._make(self._turn)
        self._scripts.append(Script(self._turn))
        self._turn += 1
        task = asyncio.ensure_future(_behind(list(self._tasks), turn))
        self._tasks[task] = turn
        task.add_done_callback(self._over)
        return turn

    def _note(self, turn: Turn, piece: str) -> None:
        script = self._scripts[-1]
        script.pieces.append((self._piece, piece))
        self._piece += 1
        while len(script.pieces) > _REMEMBERED_PIECES and script.pieces[-_REMEMBERED_PIECES][0] <= turn.sent:
            del script.pieces[0]

    def _over(self, task: asyncio.Task[None]) -> None:
        turn = self._tasks.pop(task)
        if self._open is turn:
            self._open = None
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            self._failed(error)
            return
        for script in self._scripts:
            script.told = script.told or script.number == turn.number


async def _behind(before: list[asyncio.Task[None]], turn: Turn) -> None:
    if before:
        await asyncio.wait(before)
    await turn.run()

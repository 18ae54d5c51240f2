"""Sessions of `/v1/stream` by their ids, so that a client whose connection broke can go on where it was."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from inference.types import SynthesisRequest
from webui.api.errors import ApiError
from webui.api.stream_messages import Start
from webui.api.turns import Turns

RESUME_SECONDS = 60.0  # that a session waits for its client
_MOST_LEFT = 32  # sessions that wait; each may hold a clip


@dataclass(frozen=True)
class Left:
    """What a session was when its connection broke. `received`: characters of text that it had been sent."""

    caller: str
    start: Start
    request: SynthesisRequest
    turns: Turns
    rest: str
    received: int


class Open(Protocol):
    """A session with a connection."""

    @property
    def caller_key(self) -> str: ...

    async def leave(self) -> Left:
        """End it for the sake of another connection."""
        ...


class Sessions:
    """All sessions of one server. To be used from one event loop."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._open: dict[str, Open] = {}
        self._left: OrderedDict[str, tuple[float, Left]] = OrderedDict()

    def begin(self, session: Open, name: str | None = None) -> str:
        """Note an open session; its name, which nobody can guess."""
        self._sweep()
        name = name or secrets.token_urlsafe(16)
        self._open[name] = session
        return name

    def end(self, name: str, session: Open, left: Left | None = None) -> None:
        """It has no connection any more; `left` if it may go on. Does nothing where another one has taken over."""
        if self._open.get(name) is not session:
            return
        del self._open[name]
        if left is not None:
            self._left[name] = (self._now() + RESUME_SECONDS, left)
            asyncio.get_running_loop().call_later(RESUME_SECONDS, self._sweep)
        self._sweep()

    async def take(self, name: str, caller: str) -> Left:
        """What is left of a session of this caller. Raises `ApiError("session_unknown")`."""
        self._sweep()
        if name in self._left and self._left[name][1].caller == caller:
            return self._left.pop(name)[1]
        session = self._open.get(name)
        if session is None or session.caller_key != caller:
            raise _unknown()
        del self._open[name]  # the server has not noticed yet that the connection broke
        return await session.leave()

    def _sweep(self) -> None:
        now = self._now()
        while self._left:
            name, (until, _) = next(iter(self._left.items()))
            if until > now and len(self._left) <= _MOST_LEFT:
                return
            del self._left[name]


def _unknown() -> ApiError:
    return ApiError(
        404, "session_unknown", f"There is no such session, or it broke more than {RESUME_SECONDS:.0f} s ago."
    )

"""One turn of a conversation: pieces of text in, sound out, the next piece already in work while one is heard."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from inference.types import RequestError, SynthesisError, SynthesisRequest
from webui.api.errors import ApiError, as_api_error, error_body
from webui.api.writers import SoundWriter
from webui.metrics import MeteredPool

logger = logging.getLogger("cosyvoice.api")

_AHEAD = 2  # pieces in the pool at once: the one that is heard and the next
_SOUNDLESS = ("empty_text", "nothing_to_speak")
MOST_WAITING = 20_000  # characters
LEAD = 1.5  # seconds of sound ahead of the listener, below which he soon hears nothing


class Listener(Protocol):
    """Who hears a turn."""

    async def tell(self, message: dict[str, Any]) -> None: ...

    async def play(self, sound: bytes) -> None: ...


@dataclass
class _Piece:
    number: int
    text: str
    submission: Any = None
    charged: bool = False  # once, however often it is tried


class Turn:
    """Speaks what is put in until `end`. `run` is to be a task of its own; cancelling it is silence at once.

    `charge` counts a piece's characters and raises where that is too much; `warnings` gives codes for the end to tell.
    """

    def __init__(
        self,
        pool: MeteredPool,
        request: SynthesisRequest,
        writer: SoundWriter,
        listener: Listener,
        charge: Callable[[int], None],
        number: int = 0,
        warnings: Callable[[], tuple[str, ...]] = tuple,
    ) -> None:
        self._warnings = warnings
        self._pool = pool
        self._request = request
        self._writer = writer
        self._listener = listener
        self._charge = charge
        self._waiting: deque[_Piece] = deque()
        self._started: deque[_Piece] = deque()
        self._news = asyncio.Event()
        self._ended = False
        self._decision: asyncio.Future[bool] | None = None
        self._silent_at = 0.0  # when the listener will have heard all that was sent
        self._told_seconds = 0.0
        self.number = number
        self.sent = -1  # the last piece of which all has been sent

    @property
    def making(self) -> bool:
        """A piece is being made or waits for that, but not for the client's decision."""
        return bool(self._started or self._waiting) and (self._decision is None or self._decision.done())

    @property
    def hungry(self) -> bool:
        """Nothing is in work, and the listener has heard nearly all that was sent."""
        return not (self._started or self._waiting) and self._silent_at - time.monotonic() < LEAD

    def check_room(self, text: str) -> None:
        """Raises `ApiError("too_far_ahead")` when too much is waiting to take `text` too."""
        if sum(len(piece.text) for piece in self._waiting) + len(text) > MOST_WAITING:
            raise ApiError(
                429, "too_far_ahead", f"More than {MOST_WAITING} characters wait to be spoken.", retry_after=5
            )

    def add(self, number: int, text: str) -> None:
        """One more piece."""
        self._waiting.append(_Piece(number, text))
        self._news.set()

    def end(self) -> None:
        """Nothing more will come."""
        self._ended = True
        self._news.set()

    def decide(self, again: bool) -> bool:
        """After an error: try the piece again, or leave it out. False when nothing is to be decided."""
        if self._decision is None or self._decision.done():
            return False
        self._decision.set_result(again)
        return True

    async def run(self) -> None:
        """Speak until the end has been spoken."""
        try:
            while (piece := await self._next()) is not None:
                await self._speak(piece)
            duration = round(self._writer.timeline.duration, 3)
            if duration:
                await self._listener.play(await self._writer.finish())
            done: dict[str, Any] = {"type": "done", "turn": self.number, "duration": duration}
            if codes := self._warnings():
                done["warnings"] = list(codes)
            await self._listener.tell(done)
        finally:
            for piece in self._started:
                if piece.submission is not None:
                    await piece.submission.aclose()

    async def _next(self) -> _Piece | None:
        while not (self._started or self._waiting):
            if self._ended:
                return None
            self._news.clear()
            await self._news.wait()
        if not self._started:
            self._started.append(self._waiting.popleft())
        return self._started[0]

    async def _speak(self, piece: _Piece) -> None:
        told = False
        while True:
            try:
                if piece.submission is None:
                    self._submit(piece)
                self._look_ahead()
                start = self._writer.timeline.duration
                async for chunk in piece.submission:
                    sound = await self._writer.encode(chunk.pcm)
                    self._writer.timeline.add(replace(chunk, segment=piece.number, text=piece.text))
                    if not told:
                        told = True
                        await self._tell_begin(piece, start)
                    await self._play(sound)
                    self._look_ahead()
                break
            except SynthesisError as error:
                await self._drop(piece)
                if isinstance(error, RequestError) and error.code in _SOUNDLESS:
                    break
                if not await self._asked(piece, as_api_error(error, self._pool.metrics.retry_after())):
                    break
                told = False  # its sound begins again, which a new message says
            except ApiError as error:
                await self._drop(piece)
                if not await self._asked(piece, error):
                    break
                told = False
        self._started.popleft()
        if told:
            end = round(self._writer.timeline.duration, 3)
            await self._listener.tell({"type": "piece_done", "id": piece.number, "end": end})
        self.sent = piece.number

    async def _play(self, sound: bytes) -> None:
        before, duration = self._told_seconds, self._writer.timeline.duration
        await self._listener.play(sound)
        self._silent_at = max(self._silent_at, time.monotonic()) + duration - before
        self._told_seconds = duration

    async def _tell_begin(self, piece: _Piece, start: float) -> None:
        where = {"id": piece.number, "turn": self.number}
        await self._listener.tell({"type": "piece", **where, "text": piece.text, "start": round(start, 3)})

    def _submit(self, piece: _Piece) -> None:
        submission = self._pool.submit(replace(self._request, text=piece.text))
        try:
            if not piece.charged:
                self._charge(len(piece.text))
        except BaseException:
            submission.cancel()
            raise
        piece.submission, piece.charged = submission, True

    def _look_ahead(self) -> None:
        """Have the next piece made while this one is heard. What is refused is tried again in its turn."""
        while self._waiting and len(self._started) < _AHEAD:
            piece = self._waiting.popleft()
            self._started.append(piece)
            try:
                self._submit(piece)
            except (SynthesisError, ApiError) as error:
                logger.debug("A piece is tried again later: %s", error)
                return

    async def _drop(self, piece: _Piece) -> None:
        if piece.submission is not None:
            await piece.submission.aclose()
            piece.submission = None

    async def _asked(self, piece: _Piece, error: ApiError) -> bool:
        """Tell of an error; True to try again, when the client says so."""
        message: dict[str, Any] = {
            "type": "error",
            "piece": piece.number,
            "text": piece.text,
            "resumable": True,
        }
        if error.retry_after is not None:
            message["retry_after"] = error.retry_after
        self._decision = asyncio.get_running_loop().create_future()
        await self._listener.tell({**message, **error_body(error)})
        return await self._decision

"""One session of `/v1/stream`, from its `start` to the end of its connection."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from inference.logs import REQUEST_ID
from inference.types import Mode, Reference, SynthesisRequest
from webui.api.access import ApiCaller
from webui.api.context import ApiContext, note_caller
from webui.api.doubts import Doubts
from webui.api.errors import ApiError, as_api_error, error_body
from webui.api.pieces import PieceCutter
from webui.api.quota import Lease
from webui.api.requests import choose_voice
from webui.api.sessions import Left
from webui.api.stream_messages import Control, Start, Text
from webui.api.stream_wire import TAKEN_OVER, Wire
from webui.api.tempo import split_speed
from webui.api.turn import Turn
from webui.api.turns import Turns
from webui.api.writers import SoundWriter

logger = logging.getLogger("cosyvoice.api")

START_SECONDS = 15.0  # until the first message
IDLE_SECONDS = 300.0  # without a message while nothing is being made
PAUSE_SECONDS = 0.5  # of the writer, after which a sentence that looks complete is spoken
LOOK_SECONDS = 0.25  # between two looks whether the listener runs dry while a sentence is being written


class Session:
    """One connection's conversation."""

    def __init__(self, websocket: WebSocket, wire: Wire, context: ApiContext) -> None:
        self._socket = websocket
        self._wire = wire
        self._context = context
        self._pool = context.pool.for_front("stream")
        self._cutter = PieceCutter()
        self._turns = Turns(self._turn, self._turn_failed)
        self._terms: tuple[Start, SynthesisRequest, ApiCaller] | None = None
        self._lease: Lease | None = None
        self._doubts: Doubts | None = None
        self._name = ""
        self._received = 0  # characters of text
        self._heard = time.monotonic()  # when the last message came

    @property
    def caller_key(self) -> str:
        """Whose session it is."""
        return self._terms[2].key if self._terms else ""

    # --------------------------------------------------------------------------------------- the conversation
    async def run(self) -> None:
        """Until the client leaves. Raises `ApiError` for what ends the session, `WebSocketDisconnect`."""
        start = await self._started()
        caller = self._context.access.caller_of(self._socket, start.api_key)
        note_caller(self._socket, caller)
        self._lease = self._context.access.enter(caller, 0)
        if start.session is None:
            await self._begin(start, caller)
        else:
            await self._go_on(start.session, start.after, caller)
        if self._terms is not None:
            self._doubts = Doubts(self._terms[1])
        while True:
            await self._round()

    async def _begin(self, start: Start, caller: ApiCaller) -> None:
        self._terms = start, await self._request(start), caller
        self._name = self._context.sessions.begin(self)
        await self._tell_ready(resumed=False)

    async def _go_on(self, name: str, after: int, caller: ApiCaller) -> None:
        """With what another connection has left."""
        left = await self._context.sessions.take(name, caller.key)
        request = replace(left.request, request_id=REQUEST_ID.get())
        self._terms = left.start, request, caller
        self._received = left.received
        self._name = self._context.sessions.begin(self, name)
        await self._tell_ready(resumed=True)
        self._turns.restore(left.turns, after)
        await self._add(self._cutter.push(left.rest))

    async def _tell_ready(self, resumed: bool) -> None:
        if self._terms is None:
            return
        await self._wire.tell(
            {
                "type": "ready",
                "session": self._name,
                "resumed": resumed,
                "received": self._received,
                "sample_rate": self._pool.sample_rate,
                "format": self._terms[0].response_format,
                "request_id": REQUEST_ID.get(),
            }
        )

    async def _round(self) -> None:
        """One message, or what is to be done as none came."""
        try:
            message = await self._wire.receive(self._patience())
        except ApiError as error:
            await self._wire.complain(error)
            return
        if message is not None:
            self._heard = time.monotonic()
            await self._handle(message)
        elif self._cutter.looks_ended:
            await self._add(self._cutter.flush())
        elif self._turns.hungry:
            await self._add(self._cutter.cut(hungry=True))
        if time.monotonic() - self._heard > IDLE_SECONDS and not self._turns.making:
            raise ApiError(408, "idle", f"Nothing was said for {IDLE_SECONDS:.0f} s.")

    async def _handle(self, message: Start | Text | Control) -> None:
        if isinstance(message, Start):
            error = ApiError(409, "started_already", "This session has been started already.")
            await self._wire.complain(error)
        elif isinstance(message, Text):
            self._received += len(message.text)
            await self._add(self._cutter.push(message.text, self._turns.hungry))
        elif message.type == "flush":
            await self._add(self._cutter.flush())
        elif message.type == "end":
            await self._add(self._cutter.flush())
            self._turns.end()
        elif message.type == "cancel":
            self._cutter.flush()
            number = self._turns.number
            await self._turns.silence()
            self._turns.forget()
            await self._wire.tell({"type": "cancelled", "turn": number})
        elif message.type == "ping":
            await self._wire.tell({"type": "pong"})
        elif not self._turns.decide(message.type == "resume"):
            await self._wire.complain(ApiError(409, "nothing_to_resume", "No piece waits for a decision."))

    def _patience(self) -> float:
        if self._cutter.looks_ended:
            return PAUSE_SECONDS
        waits = self._cutter.rest and not self._turns.hungry
        return LOOK_SECONDS if waits else IDLE_SECONDS

    async def _started(self) -> Start:
        try:
            message = await self._wire.receive(START_SECONDS)
        except ApiError as error:
            raise ApiError(422, error.code, error.message, param=error.param) from error
        if not isinstance(message, Start):
            raise ApiError(422, "start_missing", "The first message must be of type start.")
        return message

    async def _request(self, start: Start) -> SynthesisRequest:
        if start.reference is not None:
            voice: Any = Reference(start.reference, start.transcript)
            mode = Mode.CLONE if start.transcript.strip() else Mode.CROSS_LINGUAL
            mode = Mode.INSTRUCT if start.instruction.strip() else mode
        else:
            mode, voice = await choose_voice(self._context, start.voice or "", start.instruction.strip())
        return SynthesisRequest(
            mode=mode,
            voice=voice,
            instruction=start.instruction,
            speed=split_speed(start.speed)[0],
            seed=start.seed,
            stream=True,
            language=start.language,
            request_id=REQUEST_ID.get(),
        )

    async def _add(self, pieces: list[str]) -> None:
        try:
            for piece in pieces:
                self._turns.add(piece)
        except ApiError as error:  # too much at once: the session goes on
            await self._wire.complain(error)

    def _turn(self, number: int) -> Turn:
        if self._terms is None:
            raise ApiError(422, "start_missing", "The first message must be of type start.")
        start, request, caller = self._terms
        writer = SoundWriter(start.response_format, self._pool.sample_rate, split_speed(start.speed)[1])
        access = self._context.access
        return Turn(
            self._pool,
            request,
            writer,
            self._wire,
            lambda count: access.charge(caller, count),
            number,
            lambda: self._doubts.known if self._doubts else (),
        )

    def _turn_failed(self, error: BaseException) -> None:
        if isinstance(error, (WebSocketDisconnect, RuntimeError)):  # the listener has gone, as `run` sees too
            return
        logger.error("A turn failed.", exc_info=error)
        told = {"type": "error", "resumable": False, **error_body(as_api_error(error))}
        self._telling = asyncio.ensure_future(self._wire.tell(told))

    # ---------------------------------------------------------------------------------------------- its end
    async def leave(self) -> Left:
        """See `sessions.Open`."""
        await self._turns.silence()
        left = self._left()
        await self._wire.hang_up(TAKEN_OVER)
        return left

    def _left(self) -> Left:
        assert self._terms is not None
        start, request, caller = self._terms
        return Left(caller.key, start, request, self._turns, self._cutter.rest, self._received)

    async def close(self, may_go_on: bool) -> None:
        """Give up all that is in work; keep what is still to be spoken if the client may come again."""
        await self._turns.silence()
        if self._doubts is not None:
            await self._doubts.close()
        if self._terms is not None:
            self._context.sessions.end(self._name, self, self._left() if may_go_on else None)
        if self._lease is not None:
            self._lease.release()

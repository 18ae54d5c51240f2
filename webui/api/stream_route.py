"""`/v1/stream`: text in pieces as a language model writes it, sound back while it is still being written.

docs/api.md describes the messages. One connection serves one conversation; a turn ends with `end` or `cancel`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from fastapi import APIRouter
from pydantic import ValidationError
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from inference.logs import REQUEST_ID
from inference.types import Mode, Reference, SynthesisRequest
from webui.api.access import ApiCaller
from webui.api.context import ApiContext, context_of
from webui.api.errors import ApiError, as_api_error, error_body, validation_error
from webui.api.pieces import PieceCutter
from webui.api.quota import Lease
from webui.api.requests import choose_voice
from webui.api.stream_messages import CLIENT_MESSAGE, Control, Start, Text
from webui.api.tempo import split_speed
from webui.api.turn import Turn
from webui.api.turns import Turns
from webui.api.writers import SoundWriter

logger = logging.getLogger("cosyvoice.api")

START_SECONDS = 15.0  # until the first message
IDLE_SECONDS = 300.0  # without a message while nothing is spoken
PAUSE_SECONDS = 0.5  # of the writer, after which a sentence that looks complete is spoken
UNAUTHORISED, BAD_MESSAGE, IDLE = 4401, 4400, 4408

router = APIRouter()


@router.websocket("/v1/stream")
async def stream(websocket: WebSocket) -> None:
    """See the module."""
    try:
        context_of(websocket).access.check_site(websocket)
    except ApiError as error:
        logger.info("A WebSocket is refused: %s", error.message)
        await websocket.close(UNAUTHORISED)
        return
    await websocket.accept()
    session = Session(websocket, context_of(websocket))
    try:
        await session.run()
    except WebSocketDisconnect:
        logger.info("The listener has gone.")
    except ApiError as error:
        await session.refuse(error)
    except Exception as error:
        await session.refuse(as_api_error(error))
    finally:
        await session.close()


class Session:
    """One connection."""

    def __init__(self, websocket: WebSocket, context: ApiContext) -> None:
        self._socket = websocket
        self._context = context
        self._pool = context.pool.for_front("stream")
        self._cutter = PieceCutter()
        self._turns = Turns(self._turn, self._turn_failed)
        self._terms: tuple[Start, SynthesisRequest, ApiCaller] | None = None
        self._sending = asyncio.Lock()
        self._lease: Lease | None = None

    # --------------------------------------------------------------------------------------- the conversation
    async def run(self) -> None:
        """Until the client leaves. Raises `ApiError` for what ends the session."""
        start = await self._started()
        caller = self._context.access.caller_of(self._socket, start.api_key)
        self._lease = self._context.access.enter(caller, 0)
        request = await self._request(start)
        await self.tell(
            {
                "type": "ready",
                "session": REQUEST_ID.get(),
                "sample_rate": self._pool.sample_rate,
                "format": start.response_format,
            }
        )
        self._terms = start, request, caller
        while True:
            message = await self._receive(self._patience())
            if message is not None:
                await self._handle(message)
            elif self._cutter.looks_ended:
                await self._add(self._cutter.flush())
            elif not self._turns.speaking:
                raise ApiError(408, "idle", f"Nothing was said for {IDLE_SECONDS:.0f} s.")

    async def _handle(self, message: Start | Text | Control) -> None:
        if isinstance(message, Start):
            await self._complain(ApiError(409, "started_already", "This session has been started already."))
        elif isinstance(message, Text):
            await self._add(self._cutter.push(message.text))
        elif message.type == "flush":
            await self._add(self._cutter.flush())
        elif message.type == "end":
            await self._add(self._cutter.flush())
            if not self._turns.end():
                await self.tell({"type": "done", "duration": 0.0})
        elif message.type == "cancel":
            self._cutter.flush()
            await self._turns.silence()
            await self.tell({"type": "cancelled"})
        elif message.type == "ping":
            await self.tell({"type": "pong"})
        elif not self._turns.decide(message.type == "resume"):
            await self._complain(ApiError(409, "nothing_to_resume", "No piece waits for a decision."))

    async def _started(self) -> Start:
        try:
            message = await self._receive(START_SECONDS)
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
            await self._complain(error)

    def _turn(self, number: int) -> Turn:
        if self._terms is None:
            raise ApiError(422, "start_missing", "The first message must be of type start.")
        start, request, caller = self._terms
        writer = SoundWriter(start.response_format, self._pool.sample_rate, split_speed(start.speed)[1])
        access = self._context.access
        return Turn(self._pool, request, writer, self, lambda count: access.charge(caller, count), number)

    def _turn_failed(self, error: BaseException) -> None:
        if isinstance(error, (WebSocketDisconnect, RuntimeError)):  # the listener has gone, as `run` sees too
            return
        logger.error("A turn failed.", exc_info=error)
        told = {"type": "error", "resumable": False, **error_body(as_api_error(error))}
        self._telling = asyncio.ensure_future(self.tell(told))

    # ------------------------------------------------------------------------------------------------ the wire
    async def tell(self, message: dict[str, Any]) -> None:
        """Send a JSON message."""
        async with self._sending:
            await self._socket.send_json(message)

    async def play(self, sound: bytes) -> None:
        """Send sound."""
        if sound:
            async with self._sending:
                await self._socket.send_bytes(sound)

    async def _receive(self, patience: float) -> Start | Text | Control | None:
        """The next message; None when none comes in time. Raises `ApiError` for one that cannot be understood."""
        while True:
            try:
                raw = await asyncio.wait_for(self._socket.receive(), patience)
            except (asyncio.TimeoutError, TimeoutError):
                return None
            if raw["type"] == "websocket.disconnect":
                raise WebSocketDisconnect(raw.get("code", 1000))
            try:
                return CLIENT_MESSAGE.validate_json(raw.get("text") or raw.get("bytes") or b"")
            except ValidationError as error:
                fault = validation_error(error.errors(include_input=False, include_url=False))
                if self._lease is None:
                    raise fault from error
                await self._complain(fault)

    def _patience(self) -> float:
        return PAUSE_SECONDS if self._cutter.looks_ended else IDLE_SECONDS

    async def _complain(self, error: ApiError) -> None:
        await self.tell({"type": "error", "resumable": False, **error_body(error)})

    async def refuse(self, error: ApiError) -> None:
        """Tell why the session ends, and end it."""
        if self._socket.application_state is not WebSocketState.CONNECTED:
            return
        codes = {401: UNAUTHORISED, 403: UNAUTHORISED, 408: IDLE, 422: BAD_MESSAGE}
        try:
            await self._complain(error)
            await self._socket.close(codes.get(error.status, 1013 if error.status in (429, 503) else 1011))
        except (WebSocketDisconnect, RuntimeError):
            return

    async def close(self) -> None:
        """Give up all that is in work."""
        await self._turns.silence()
        if self._lease is not None:
            self._lease.release()

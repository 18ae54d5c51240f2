"""The connection of one `/v1/stream` session: messages in and out, one at a time, and a reader that takes nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from pydantic import ValidationError
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from webui.api.errors import ApiError, error_body, validation_error
from webui.api.patience import OutOfTimeError, in_time
from webui.api.stream_messages import CLIENT_MESSAGE, Control, Start, Text

logger = logging.getLogger("cosyvoice.api")

STALL_SECONDS = 120.0  # that a client may take nothing of what it is sent
HANG_UP_SECONDS = 1.0  # for a client to say good-bye, who may be gone already
UNAUTHORISED, BAD_MESSAGE, IDLE, TAKEN_OVER = 4401, 4400, 4408, 4409
_CLOSED_ABNORMALLY = 1006
_LARGE = 2**16  # bytes of a message


class Wire:
    """Sends and receives; all of it raises `WebSocketDisconnect` when the client has gone."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self._sending = asyncio.Lock()
        self._incoming: asyncio.Task[Any] | None = None
        self._lost = asyncio.get_running_loop().create_future()

    async def tell(self, message: dict[str, Any]) -> None:
        """Send a JSON message."""
        async with self._sending:
            await self._in_time(self._socket.send_json(message))

    async def play(self, sound: bytes) -> None:
        """Send sound."""
        if sound:
            async with self._sending:
                await self._in_time(self._socket.send_bytes(sound))

    async def complain(self, error: ApiError) -> None:
        """Tell of an error that nothing follows from."""
        await self.tell({"type": "error", "resumable": False, **error_body(error)})

    async def receive(self, patience: float) -> Start | Text | Control | None:
        """The next message; None when none comes in time. Raises `ApiError` for one that cannot be understood."""
        if self._incoming is None:
            self._incoming = asyncio.ensure_future(self._socket.receive())
        # Waiting for it may be given up, receiving it not: no message is lost.
        both = {self._incoming, self._lost}
        done, _ = await asyncio.wait(both, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        if self._lost in done:
            raise WebSocketDisconnect(_CLOSED_ABNORMALLY)
        if not done:
            return None
        raw, self._incoming = self._incoming.result(), None
        if raw["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(raw.get("code") or _CLOSED_ABNORMALLY)
        content = raw.get("text") or raw.get("bytes") or b""
        try:
            if len(content) > _LARGE:  # a clip in base64, which must not hold up everybody else
                return await asyncio.to_thread(CLIENT_MESSAGE.validate_json, content)
            return CLIENT_MESSAGE.validate_json(content)
        except ValidationError as error:
            raise validation_error(error.errors(include_input=False, include_url=False)) from error

    async def refuse(self, error: ApiError) -> None:
        """Tell why the session ends, and end it."""
        codes = {401: UNAUTHORISED, 403: UNAUTHORISED, 408: IDLE, 429: 1013, 503: 1013}
        code = codes.get(error.status, 1011 if error.status >= 500 else BAD_MESSAGE)
        if self._socket.application_state is not WebSocketState.CONNECTED:
            return
        try:
            await self.complain(error)
            await self._socket.close(code)
        except (WebSocketDisconnect, RuntimeError):
            return

    async def hang_up(self, code: int) -> None:
        """End the connection."""
        try:
            await in_time(self._socket.close(code), HANG_UP_SECONDS)
        except (WebSocketDisconnect, RuntimeError, OutOfTimeError):
            return

    def close(self) -> None:
        """Nothing is received any more."""
        self._lost.cancel()
        if self._incoming is not None:
            self._incoming.cancel()

    async def _in_time(self, sending: Coroutine[Any, Any, None]) -> None:
        try:
            await in_time(sending, STALL_SECONDS)
        except OutOfTimeError as error:
            logger.warning("The listener takes nothing for %.0f s and is left.", STALL_SECONDS)
            if not self._lost.done():
                self._lost.set_result(None)  # whoever waits for a message hears of it
            raise WebSocketDisconnect(_CLOSED_ABNORMALLY) from error

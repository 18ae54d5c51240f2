"""The outermost layer of the API: request ids, size limits, access log, and no answer without the one error shape."""

from __future__ import annotations

import logging
import re
import secrets
import time
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException

from inference.logs import REQUEST_ID
from webui.api.errors import ApiError, as_api_error, error_response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from webui.metrics import Metrics

logger = logging.getLogger("cosyvoice.api")

_ID = "cosyvoice.request_id"
_SAFE_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_QUIET = ("/health", "/ready", "/metrics")
MEGABYTE = 2**20
TEXT_BODY = 1 * MEGABYTE  # of requests without a clip
CLIP_BODY = 64 * MEGABYTE  # two clips, or one in base64; more than the five minutes that are read of one
_CLIP_PATHS = ("/v1/clone", "/v1/cross-lingual", "/v1/instruct", "/v1/convert", "/v1/voices", "/v1/jobs")


def body_limit(method: str, path: str) -> int:
    """Bytes that a request may send."""
    return CLIP_BODY if method == "POST" and path in _CLIP_PATHS else TEXT_BODY


class BodyTooLargeError(HTTPException):
    """Raised while a body is read that told no length, or a wrong one."""

    def __init__(self, limit: int) -> None:
        super().__init__(413, f"The request is larger than {limit // MEGABYTE} MB.")


def request_id_of(scope: Scope) -> str:
    """The caller's own id of a request if it is a sensible one, else a new one."""
    given = Headers(scope=scope).get("x-request-id", "")
    return given if _SAFE_ID.fullmatch(given) else f"req_{secrets.token_hex(10)}"


class RequestIds:
    """ASGI middleware around everything: ids also for what never comes to the API, as the page or a CORS refusal."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        request_id = request_id_of(scope)

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message.setdefault("headers", [])
                MutableHeaders(scope=message).setdefault("x-request-id", request_id)
            await send(message)

        token = REQUEST_ID.set(request_id)
        try:
            await self._app({**scope, _ID: request_id}, receive, named)
        finally:
            REQUEST_ID.reset(token)


class Guard:
    """ASGI application around the API's."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = scope.get(_ID) or request_id_of(scope)
        token = REQUEST_ID.set(request_id)
        try:
            if scope["type"] == "http":
                await self._http(scope, receive, send, request_id)
            else:
                await self._app(scope, receive, send)
        finally:
            REQUEST_ID.reset(token)

    async def _http(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        wire = _Wire(send, request_id)
        started = time.perf_counter()
        limit = body_limit(scope["method"], scope["path"])
        try:
            length = Headers(scope=scope).get("content-length", "")
            if length.isdigit() and int(length) > limit:
                raise ApiError(413, "body_too_large", BodyTooLargeError(limit).detail)
            await self._app(scope, _limited(receive, limit), wire.send)
        except Exception as error:
            # What the API's own handlers were given is logged there; a 500 from them raises once more.
            if wire.status is None:
                await error_response(as_api_error(error))(scope, receive, wire.send)
            elif not wire.complete:
                logger.exception("An answer broke off.")
        finally:
            self._told(scope, wire, time.perf_counter() - started)

    def _told(self, scope: Scope, wire: _Wire, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "other")
        method = scope["method"] if scope["method"] in _METHODS else "other"
        status = wire.status or 499  # the reader had gone before the answer began
        self._metrics.http.labels(route, method, str(status)).inc()
        fields = {"method": method, "path": scope["path"], "status": status, "seconds": round(seconds, 4)}
        caller = scope.get("state", {}).get("caller", "")
        if caller:
            fields["caller"] = caller
        level = logging.DEBUG if route in _QUIET else logging.INFO
        ending = "" if wire.complete else ", not finished"
        logger.log(
            level,
            "%s %s %s in %.2f s%s",
            *(method, scope["path"], status, seconds, ending),
            extra={"fields": fields},
        )


_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class _Wire:
    """Adds the headers that every answer has, and remembers what became of it."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._request_id = request_id
        self.status: int | None = None
        self.complete = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            own = [(b"x-request-id", self._request_id.encode()), (b"x-content-type-options", b"nosniff")]
            message = {**message, "headers": [*message.get("headers", []), *own]}
        elif message["type"] == "http.response.body":
            self.complete = not message.get("more_body", False)
        await self._send(message)


def _limited(receive: Receive, limit: int) -> Receive:
    received = 0

    async def counted() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > limit:
            raise BodyTooLargeError(limit)
        return message

    return counted

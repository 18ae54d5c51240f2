"""Middleware: a file that a visitor names must be one they have uploaded, never an address for us to fetch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

ANSWER = (
    "Upload the file itself: this studio fetches nothing from other addresses. "
    "请直接上传文件：工作室不会从其他网址取文件。"
)
LARGEST = 16 * 2**20  # bytes of a call; uploads go another way, so all that a call holds is text
_FILE_KEYS = ("path", "url")
_ADDRESS = ("http:", "https:", "ftp:", "file:", "data:", "//")


class OwnFilesOnly:
    """Answers 400 to a call of the page whose JSON names an address as a file, 413 to one that is far too long.

    Gradio would fetch such an address (a public one; it has a guard of its own for others) and treat what it gets
    as the visitor's upload.
    """

    def __init__(self, app: ASGIApp, prefix: str = "/gradio_api/") -> None:
        self._app = app
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._is_call(scope):
            await self._app(scope, receive, send)
            return
        messages, body = await _read(receive)
        status = 413 if body is None else 400 if names_an_address(body) else 0
        if status:
            from starlette.responses import JSONResponse

            await JSONResponse({"detail": ANSWER, "error": ANSWER}, status)(scope, receive, send)
            return
        await self._app(scope, _again(messages, receive), send)

    def _is_call(self, scope: Scope) -> bool:
        if scope["type"] != "http" or scope["method"] not in ("POST", "PUT", "PATCH"):
            return False
        kind = next((value for name, value in scope["headers"] if name == b"content-type"), b"")
        return scope["path"].startswith(self._prefix) and not kind.lower().startswith(b"multipart/")


async def _read(receive: Receive) -> tuple[list[Message], bytes | None]:
    """All messages of the request and its body; None for a body that is too long."""
    messages: list[Message] = []
    size = 0
    while True:
        message = await receive()
        messages.append(message)
        size += len(message.get("body", b""))
        if size > LARGEST:
            return messages, None
        if message["type"] != "http.request" or not message.get("more_body"):
            return messages, b"".join(part.get("body", b"") for part in messages)


def _again(messages: list[Message], receive: Receive) -> Receive:
    """Gives what was read once more, then what comes after it."""
    waiting = list(messages)

    async def next_message() -> Message:
        return waiting.pop(0) if waiting else await receive()

    return next_message


def names_an_address(body: bytes) -> bool:
    """Whether the JSON holds a file (an object with a path or a URL) that is not a plain path of this studio.

    A page sends back the `url` under which it was given a file: that one may lead to `/gradio_api/file=`.
    """
    try:
        call = json.loads(body)
    except (ValueError, RecursionError):
        return False  # Gradio refuses it
    return any(_is_address(found) for found in _files(call))


def _is_address(found: dict[str, Any]) -> bool:
    path, url = (str(found.get(key) or "").strip().lower() for key in _FILE_KEYS)
    if path.startswith(_ADDRESS):
        return True
    return not path and url.startswith(_ADDRESS)  # with a path, Gradio uses that


def _files(call: Any) -> Iterator[dict[str, Any]]:
    stack = [call]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            if any(isinstance(value.get(key), str) for key in _FILE_KEYS):
                yield value
            stack.extend(value.values())
        elif isinstance(value, list):
            stack.extend(value)

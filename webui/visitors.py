"""Who asks: a browser, known by a cookie that only it has; for limits, a user or an address."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from http.cookies import SimpleCookie
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "cosyvoice_visitor"
_SECRET = re.compile(r"[A-Za-z0-9_-]{32,64}")
_YEAR = 365 * 24 * 3600


@dataclass(frozen=True)
class Caller:
    """`visitor` owns history and batches ("" without the cookie); `key` is whom the limits count."""

    visitor: str
    user: str
    address: str

    @property
    def key(self) -> str:
        return f"user:{self.user}" if self.user else f"address:{self.address}"


def caller_of(request: Any, user: str = "") -> Caller:
    """Of a `gr.Request`, or of a Starlette request with the name of its user, if any.

    Two users of one browser are two visitors. The cookie itself is kept nowhere on the server, only its hash.
    """
    if request is None:  # a handler called by a test
        return Caller("", "", "")
    user = user or getattr(request, "username", None) or ""
    cookie = _cookies(request).get(COOKIE, "")
    visitor = ""
    if _SECRET.fullmatch(cookie):
        visitor = hashlib.sha256(f"{cookie}\n{user}".encode()).hexdigest()[:32]
    client = getattr(request, "client", None)
    return Caller(visitor, user, str(getattr(client, "host", "") or ""))


def visitor_of(request: Any) -> str:
    """The id of this browser; "" for a client that keeps no cookies."""
    return caller_of(request).visitor


def _cookies(request: Any) -> Mapping[str, str]:
    cookies = getattr(request, "cookies", None)
    if isinstance(cookies, Mapping):
        return cookies
    return dict(vars(cookies)) if cookies is not None and hasattr(cookies, "__dict__") else {}


class VisitorCookie:
    """Middleware: gives each browser that opens the page a secret of its own."""

    def __init__(self, app: ASGIApp, path: str = "/") -> None:
        self._app = app
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "GET" or scope["path"] not in (self._path, "", "/"):
            await self._app(scope, receive, send)
            return
        if _SECRET.fullmatch(_sent_cookie(scope)):
            await self._app(scope, receive, send)
            return
        # Not readable by scripts; `Lax`: no other site can make a browser send it with a request of its own.
        cookie = f"{COOKIE}={secrets.token_urlsafe(32)}; Path=/; Max-Age={_YEAR}; HttpOnly; SameSite=Lax"
        if scope["scheme"] == "https":
            cookie += "; Secure"

        async def with_cookie(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), (b"set-cookie", cookie.encode())]
            await send(message)

        await self._app(scope, receive, with_cookie)


def _sent_cookie(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"cookie":
            found = SimpleCookie(value.decode("latin-1")).get(COOKIE)
            if found is not None:
                return str(found.value)
    return ""

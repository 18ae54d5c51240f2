"""Who asks: the cookie, users of one browser, addresses."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from webui.visitors import COOKIE, VisitorCookie, caller_of, visitor_of

pytestmark = pytest.mark.unit
SECRET = "s" * 43


class Request:
    def __init__(self, cookie: str = "", username: str | None = None, host: str = "10.0.0.9") -> None:
        self.cookies = {COOKIE: cookie} if cookie else {}
        self.username = username
        self.client = type("Client", (), {"host": host})()


def test_a_browser_is_known_by_its_cookie_alone() -> None:
    here, there = visitor_of(Request(SECRET, host="1.1.1.1")), visitor_of(Request(SECRET, host="2.2.2.2"))
    assert here == there and SECRET not in here
    assert visitor_of(Request("t" * 43)) != here


@pytest.mark.parametrize("cookie", ["", "short", "s" * 65, "s" * 42 + "'"])
def test_no_cookie_and_a_made_up_one_are_nobody(cookie: str) -> None:
    assert visitor_of(Request(cookie)) == ""
    assert visitor_of(None) == ""


def test_two_users_of_one_browser_are_two_visitors() -> None:
    assert len({visitor_of(Request(SECRET, username=name)) for name in (None, "ann", "bob")}) == 3


def test_limits_count_users_else_addresses() -> None:
    assert caller_of(Request(SECRET, username="ann")).key == "user:ann"
    assert caller_of(Request(SECRET)).key == caller_of(Request("t" * 43)).key == "address:10.0.0.9"
    assert caller_of(Request(username=None), user="bob").key == "user:bob"


async def _page(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"x", b"y")]})
    await send({"type": "http.response.body", "body": b"page"})


def cookies_set(path: str = "/", cookie: str = "", scheme: str = "http", method: str = "GET") -> list[str]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"cookie", f"other=1; {COOKIE}={cookie}".encode())] if cookie else []
    scope = {"type": "http", "method": method, "path": path, "scheme": scheme, "headers": headers}
    asyncio.run(VisitorCookie(_page)(scope, None, send))  # type: ignore[arg-type]
    return [value.decode() for name, value in sent[0]["headers"] if name == b"set-cookie"]


def test_a_new_browser_gets_a_secret_that_scripts_cannot_read() -> None:
    (first,), (second,) = cookies_set(), cookies_set(scheme="https")
    assert re.match(rf"{COOKIE}=[\w-]{{43}}; Path=/; Max-Age=\d+; HttpOnly; SameSite=Lax$", first)
    assert second.endswith("; Secure") and second.split(";")[0] != first.split(";")[0]


def test_a_known_browser_keeps_its_own() -> None:
    assert cookies_set(cookie=SECRET) == []
    assert len(cookies_set(cookie="broken")) == 1


def test_only_the_page_sets_it() -> None:
    assert cookies_set("/gradio_api/queue/join") == [] and cookies_set(method="POST") == []

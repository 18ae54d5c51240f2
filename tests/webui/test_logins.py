"""Names and passwords from `--auth`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from inference.types import RequestError
from webui import logins as logins_module
from webui.logins import Logins

pytestmark = pytest.mark.unit


def test_values_and_files_and_passwords_with_colons(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text("# people\nbob: with space:and colon \n\n小美:密码\n", encoding="utf-8")
    logins = Logins.read(["ann:secret", str(file)])
    assert logins.required and logins.users == ("ann", "bob", "小美")
    assert (
        logins.check("ann", "secret")
        and logins.check("bob", " with space:and colon")
        and logins.check("小美", "密码")
    )
    assert not logins.check("ann", "Secret") and not logins.check("eve", "") and not logins.check("ann", "")


def test_none_are_asked_for_without_any() -> None:
    assert not Logins.read([]).required and not Logins.read([]).check("", "")


@pytest.mark.parametrize("entry", ["nobody", "ann:", ":secret", ""])
def test_a_mistake_does_not_open_the_page_and_is_not_repeated(entry: str) -> None:
    with pytest.raises(RequestError) as raised:
        Logins.read([entry])
    assert raised.value.code == "auth_unusable"
    assert "secret" not in raised.value.message and "nobody" not in raised.value.message


def test_a_file_with_a_bad_line_or_none_is_told_by_its_number(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text("ann:secret\nhunter2\n", encoding="utf-8")
    with pytest.raises(RequestError, match="line 2") as raised:
        Logins.read([str(file)])
    assert "hunter2" not in raised.value.message
    file.write_text("\n# nobody\n", encoding="utf-8")
    with pytest.raises(RequestError, match="names no user"):
        Logins.read([str(file)])


def test_a_wrong_password_is_answered_late(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(logins_module.asyncio, "sleep", sleep)
    logins = Logins({"ann": "secret"})
    assert asyncio.run(logins.answer("ann", "secret")) and waited == []
    assert not asyncio.run(logins.answer("ann", "guess")) and waited == [logins_module.WRONG_SECONDS]


def test_who_is_logged_in_on_the_page() -> None:
    logins = Logins({"ann": "secret"})
    request = SimpleNamespace(cookies={"access-token-unsecure-x": "token"})
    assert logins.user_of(request) is None
    logins.watch(SimpleNamespace(cookie_id="x", tokens={"token": "ann"}))
    assert logins.user_of(request) == "ann"
    assert logins.user_of(SimpleNamespace(cookies={})) is None

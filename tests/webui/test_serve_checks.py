"""Settings that are told to be wrong at the start, before a model is loaded."""

from __future__ import annotations

import errno
import os
import socket
import tempfile
from pathlib import Path
from typing import Any

import pytest

import app
from inference.types import EngineError, RequestError, SynthesisError
from tests.browser.conftest import free_port
from webui.flags import build_parser
from webui.logins import Logins
from webui.options import Options
from webui.serve import _check_port
from webui.start_checks import check_start

pytestmark = pytest.mark.unit


def check(folder: Path, users: dict[str, str] | None = None, **settings: Any) -> None:
    usual = {"voices_dir": folder / "voices", "api_keys": folder / "keys.json"}
    check_start(Options(**{**usual, **settings}), Logins(users or {}))


def refusal(folder: Path, users: dict[str, str] | None = None, **settings: Any) -> str:
    with pytest.raises(SynthesisError) as raised:
        check(folder, users, **settings)
    assert "\n" not in raised.value.message
    return raised.value.message


def test_the_usual_settings_are_fine_and_make_nothing(tmp_path: Path) -> None:
    check(tmp_path)
    check(tmp_path, {"ann": "x", "bob": "y"}, admin="bob")
    check(tmp_path, voices_dir=tmp_path / "a" / "b" / "voices")
    assert list(tmp_path.iterdir()) == []


def test_an_administrator_is_a_user(tmp_path: Path) -> None:
    assert "--admin bob needs --auth" in refusal(tmp_path, admin="bob")
    assert "which names ann, eve." in refusal(tmp_path, {"ann": "secret", "eve": "x"}, admin="bob")
    many = {f"u{number}": "secret" for number in range(9)}
    said = refusal(tmp_path, many, admin="bob")
    assert "u4, …" in said and "u5" not in said and "secret" not in said


@pytest.mark.parametrize("content", ["garbage", "[]", '{"keys": [{"id": 1}]}', "\0\1"])
def test_a_file_that_holds_no_keys_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "keys.json").write_text(content)
    assert "keys.json is no file of API keys" in refusal(tmp_path)
    check(tmp_path, api=False)


def test_keys_in_a_folder_that_is_not_there_are_refused(tmp_path: Path) -> None:
    assert "there is no folder" in refusal(tmp_path, api_keys=tmp_path / "nowhere" / "keys.json")
    assert "--api-keys" in refusal(tmp_path, api_keys=tmp_path)


def test_voices_that_cannot_be_saved_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for folder in (file, file / "voices"):
        assert f"{file} is no folder" in refusal(tmp_path, voices_dir=folder)

    def refuse(**_: object) -> None:  # whom the tests run as may write anywhere
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    said = refusal(tmp_path)
    assert "Permission denied" in said and "--voices-dir" in said
    check(tmp_path, lock_voices=True)


@pytest.mark.parametrize(
    "flags",
    [["--admin", "bob"], ["--api-keys", "/nowhere/keys.json"], ["--voices-dir", "/dev/null/voices"]],
)
def test_the_studio_does_not_start_with_them(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    usual = ["--server-port", str(free_port()), "--model-dir", "/nowhere"]
    assert app.main([*usual, *flags]) == 2
    said = capsys.readouterr().err
    assert flags[0] in said and "no model folder" not in said and "Traceback" not in said


@pytest.mark.parametrize("name", ["192.0.2.1", "no-such-host.invalid", "a" * 64 + ".b"])
def test_an_address_of_another_machine_wants_another_name(name: str) -> None:
    with pytest.raises(EngineError, match="choose --server-name") as raised:
        _check_port(name, free_port())
    assert "other program" not in raised.value.message and "--server-port" not in raised.value.message


@pytest.mark.parametrize(
    ("number", "way"), [(errno.EADDRINUSE, "stop the other program"), (errno.EACCES, "special rights")]
)
def test_a_port_that_cannot_be_had_wants_another_port(
    number: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bind(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(socket.socket, "bind", bind)
    with pytest.raises(EngineError, match=way) as raised:
        _check_port("127.0.0.1", 80)
    assert "--server-port" in raised.value.message and "--server-name" not in raised.value.message


def test_the_help_says_what_nought_means() -> None:
    text = " ".join(build_parser().format_help().split())
    for said in ("0: one a GPU, one on the CPU", "0: as many as fit", "0: nobody waits"):
        assert said in text


def test_a_start_error_is_one_of_the_request(tmp_path: Path) -> None:
    with pytest.raises(RequestError):
        check(tmp_path, admin="bob")

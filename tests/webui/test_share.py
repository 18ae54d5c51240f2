"""The public link, and what is said when there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from webui.page.sharing_note import sharing_text
from webui.page.texts import LANGUAGES
from webui.share import Sharing, TunnelError, is_public, own_address, tunnel

networking = pytest.importorskip("gradio.networking")
tunneling = pytest.importorskip("gradio.tunneling")
from gradio.exceptions import ChecksumMismatchError  # noqa: E402

pytestmark = pytest.mark.unit


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the tunnel's program belongs; it is not there yet."""
    path = tmp_path / "frpc"
    monkeypatch.setattr(tunneling, "BINARY_PATH", str(path))
    monkeypatch.delenv("GRADIO_SHARE_SERVER_ADDRESS", raising=False)
    return path


def answer(monkeypatch: pytest.MonkeyPatch, outcome: Any) -> list[tuple[Any, ...]]:
    asked = []

    def setup_tunnel(*given: Any) -> str:
        asked.append(given)
        if isinstance(outcome, Exception):
            raise outcome
        return str(outcome)

    monkeypatch.setattr(networking, "setup_tunnel", setup_tunnel)
    return asked


def opened(port: int = 7860) -> Sharing:
    sharing = Sharing()
    sharing.open(port, timeout=10)
    return sharing


def test_the_link_is_printed_and_shown(
    program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = answer(monkeypatch, "http://abc.gradio.live")
    sharing = opened(8001)
    assert sharing.url == "https://abc.gradio.live" and asked[0][:2] == ("127.0.0.1", 8001)
    assert "Public link: https://abc.gradio.live" in capsys.readouterr().out
    assert all("https://abc.gradio.live" in sharing_text(sharing, language) for language in LANGUAGES)


def test_an_own_server_is_taken_as_named(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADIO_SHARE_SERVER_ADDRESS", "tunnel.example.org:7000")
    asked = answer(monkeypatch, "https://x.example.org")
    assert tunnel(7860) == "http://x.example.org" and asked[0][3] == "tunnel.example.org:7000"


@pytest.mark.parametrize(
    ("failure", "there", "code"),
    [
        (RuntimeError("Could not get share link from Gradio API Server."), True, "share_no_network"),
        (httpx.ConnectError("no route"), False, "share_no_program"),
        (httpx.ConnectError("no route"), True, "share_no_network"),
        (ChecksumMismatchError("mismatch"), True, "share_bad_program"),
        (ValueError("Could not open share link\nquota"), True, "share_refused"),
    ],
)
def test_what_is_missing_is_said_and_the_studio_goes_on(
    program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], failure: Exception,
    there: bool, code: str,
) -> None:  # fmt: skip
    if there:
        program.touch()
    answer(monkeypatch, failure)
    sharing = opened()
    assert sharing.url is None and sharing.problem == code
    printed = capsys.readouterr().out
    assert printed.startswith("No public link: ") and "runs locally" in printed
    for language in LANGUAGES:
        text = sharing_text(sharing, language)
        assert text and "{" not in text
        assert (str(program) in text) == (code in ("share_no_program", "share_bad_program"))
    with pytest.raises(TunnelError):
        tunnel(7860)


def test_a_studio_of_one_machine_says_nothing() -> None:
    assert sharing_text(Sharing(), "en") == ""


def test_without_a_password_everybody_is_warned() -> None:
    sharing = Sharing()
    sharing.unguarded = True
    assert "--auth" in sharing_text(sharing, "en") and "--auth" in sharing_text(sharing, "zh")
    sharing.wanted = True
    assert "Opening" in sharing_text(sharing, "en")


@pytest.mark.parametrize(
    ("name", "public"),
    [("127.0.0.1", False), ("127.0.0.9", False), ("localhost", False), ("::1", False), ("0.0.0.0", True), ("::", True),
     ("192.168.1.5", True), ("studio.example.org", True)],
)  # fmt: skip
def test_which_addresses_others_can_reach(name: str, public: bool) -> None:
    assert is_public(name) is public


def test_the_address_in_the_network_is_no_loopback() -> None:
    address = own_address()
    assert address == "" or is_public(address)

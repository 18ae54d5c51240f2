"""Which model a start takes, with hubs that answer, fail, sleep or lie."""

from __future__ import annotations

import shutil
import socket
import time
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from inference import download as downloads
from inference import model_choice
from inference.fetch import Hub, part_of
from inference.hub_probe import probe
from inference.model_choice import choose_model_dir
from inference.types import CheckpointError
from tests.hub_server import CONTENT, FILES, VARIABLES, Server, running_server

pytestmark = pytest.mark.unit
Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def server() -> Iterator[Server]:
    with running_server() as running:
        yield running


@pytest.fixture
def said() -> list[str]:
    """The lines told before a download."""
    return []


@pytest.fixture
def nano(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bundled checkpoint, nothing downloaded, nothing in the environment."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "nano"
    folder.mkdir()
    (folder / "cosyvoice2.yaml").touch()
    monkeypatch.setattr(downloads, "BUNDLED", folder)
    monkeypatch.setattr(downloads, "DOWNLOADED", tmp_path / "full")
    monkeypatch.setattr(downloads, "public_files", lambda: tuple(FILES))
    monkeypatch.setattr(model_choice, "ROOM_BYTES", 1000)
    return folder


def choose(said: list[str], *sources: Hub) -> tuple[Path, str]:
    folder, sentence = choose_model_dir(tell=said.append, sources=sources)
    assert "\n" not in sentence and sentence.startswith("Model: ")
    return folder, sentence


def nowhere() -> Hub:
    """A hub whose port nobody listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return Hub("Nowhere", f"http://127.0.0.1:{taken.getsockname()[1]}")


def test_the_public_model_is_fetched_when_a_hub_answers(server: Server, nano: Path, said: list[str]) -> None:
    folder, sentence = choose(said, nowhere(), server.hub("good"))
    assert folder == downloads.DOWNLOADED and str(folder) in sentence
    for path, content in CONTENT.items():
        assert (folder / path).read_bytes() == content
    assert (
        len(said) == 1 and "from good" in said[0] and "--model-dir" in said[0]
    )  # the hub that answered comes first
    asked = len(server.asked)
    assert choose(said, server.hub("good"))[0] == folder
    assert len(server.asked) == asked and len(said) == 1


@pytest.mark.parametrize("name", ["missing", "ill", "hotel"])
def test_no_usable_hub_means_the_bundled_model_in_one_line(
    server: Server, nano: Path, said: list[str], name: str
) -> None:
    folder, sentence = choose(said, server.hub(name), nowhere())
    assert folder == nano and said == []
    assert "no hub can be reached" in sentence and name in sentence and "Nowhere" in sentence
    assert f"--model-dir {nano}" in sentence
    assert not downloads.DOWNLOADED.exists()


def test_a_silent_hub_costs_no_more_than_the_time_allowed(server: Server, nano: Path) -> None:
    started = time.monotonic()
    answers = probe([server.hub("asleep"), server.hub("good")], FILES[-1], seconds=0.5)
    assert time.monotonic() - started < 10  # the hub sleeps for twenty
    assert [(answer.hub.name, answer.problem == "") for answer in answers] == [
        ("good", True),
        ("asleep", False),
    ]


def test_a_named_endpoint_comes_first_when_it_answers(
    server: Server, nano: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror.example")
    choose(said, server.hub("moved"), server.hub("good"))
    assert "from moved" in said[0]


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "MODELSCOPE_OFFLINE"])
def test_offline_asks_nobody(
    server: Server, nano: Path, said: list[str], monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "1")
    folder, sentence = choose(said, server.hub("good"))
    assert folder == nano and variable in sentence and server.asked == []


def test_a_failed_download_keeps_what_came_and_the_next_start_goes_on(
    server: Server, nano: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference.fetch.time.sleep", lambda seconds: None)
    server.cuts = 5
    folder, sentence = choose(said, server.hub("breaks"))
    assert folder == nano and "goes on where this one stopped" in sentence
    part = part_of(downloads.DOWNLOADED, FILES[0])
    have = part.stat().st_size
    assert 0 < have < FILES[0].bytes
    assert choose(said, server.hub("good"))[0] == downloads.DOWNLOADED
    assert server.asked_for("good/a.bin") == [f"bytes={have}-"]


def test_ctrl_c_goes_on_with_the_bundled_model(
    server: Server, nano: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(downloads, "fetch", interrupted)
        folder, sentence = choose(said, server.hub("good"))
    assert folder == nano and "interrupted" in sentence
    assert choose(said, server.hub("good"))[0] == downloads.DOWNLOADED  # the lock was given back


def test_a_disk_without_room_is_told_before_anything_moves(
    server: Server, nano: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: Usage(10**12, 0, 351_000)
    )  # the files, but not the room
    folder, sentence = choose(said, server.hub("good"))
    assert folder == nano and "GB are free" in sentence
    assert server.asked_for("good/a.bin") == []


def test_a_second_start_does_not_wait_for_the_first_ones_download(
    server: Server, nano: Path, said: list[str]
) -> None:
    downloads.DOWNLOADED.mkdir()
    with FileLock(downloads.DOWNLOADED / ".download.lock"):
        folder, sentence = choose(said, server.hub("good"))
    assert folder == nano and "another program" in sentence


def test_a_named_folder_asks_nobody(
    server: Server, nano: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert choose_model_dir("mine", sources=[server.hub("good")])[0] == Path("mine")
    monkeypatch.setenv("COSYVOICE_MODEL_DIR", "/elsewhere")
    assert choose(said, server.hub("good"))[0] == Path("/elsewhere")
    assert server.asked == [] and said == []


def test_without_a_bundled_model_the_failure_is_told(server: Server, nano: Path, said: list[str]) -> None:
    (nano / "cosyvoice2.yaml").unlink()
    with pytest.raises(CheckpointError) as caught:
        choose(said, server.hub("missing"))
    assert caught.value.code == "download_no_hub"

"""The folder of uploads: ours alone, and gone with us, also after a crash."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from webui.caretaker import Caretaker
from webui.uploads import VARIABLE, private_uploads, remove_leftovers

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)


def test_it_is_ours_alone_and_goes_with_us(tmp_path: Path) -> None:
    with private_uploads() as folder:
        assert os.environ[VARIABLE] == str(folder) and folder.parent == tmp_path
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        (folder / "clip.wav").touch()
    assert not folder.exists() and VARIABLE not in os.environ


def test_a_folder_that_was_named_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "mine"))
    (tmp_path / "mine").mkdir()
    with private_uploads() as folder:
        assert folder == tmp_path / "mine"
    assert folder.exists() and os.environ[VARIABLE] == str(folder)


def test_what_a_killed_studio_left_is_removed_and_a_running_one_s_is_not(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left, running, other = (
        tmp_path / f"cosyvoice-studio-{name}" for name in (f"{ended.pid}-a", f"{os.getpid()}-b", "x")
    )
    for folder in (left, running, other):
        folder.mkdir()
    assert remove_leftovers(tmp_path) == [left]
    assert running.exists() and other.exists()


def test_the_caretaker_comes_again_whatever_happens() -> None:
    import threading

    calls, twice = [], threading.Event()

    def clean() -> None:
        calls.append(1)
        if len(calls) >= 2:
            twice.set()
        raise OSError("the disk is gone")

    with Caretaker(clean, every=0.001):
        assert twice.wait(20)
    count = len(calls)
    assert threading.Event().wait(0.05) is False and len(calls) == count

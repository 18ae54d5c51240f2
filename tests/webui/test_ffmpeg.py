"""Finding an ffmpeg program, or doing without."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from webui.ffmpeg import ensure_ffmpeg

pytestmark = pytest.mark.unit


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_an_installed_ffmpeg_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "ffmpeg")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ensure_ffmpeg()
    assert os.environ["PATH"] == str(tmp_path)


def test_the_wheel_s_program_is_put_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = pytest.importorskip("imageio_ffmpeg")
    bundled = program(tmp_path / "wheel" / "ffmpeg-linux-v9")
    monkeypatch.setattr(wheel, "get_ffmpeg_exe", lambda: str(bundled))
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert ensure_ffmpeg()
    found = shutil.which("ffmpeg")
    assert found is not None and Path(found).resolve() == bundled
    shutil.rmtree(Path(found).parent)


def test_without_any_the_page_can_do_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not ensure_ffmpeg()
    assert len(caplog.records) == 1

"""Finding an ffmpeg program, or doing without."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from webui.ffmpeg import be_patient_with_encoder, ensure_ffmpeg

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


def test_gradio_is_made_to_wait_for_its_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = pytest.importorskip("gradio.audio_stream_encoder")
    monkeypatch.setattr(encoder, "STARTUP_WAIT", encoder.STARTUP_WAIT)
    assert be_patient_with_encoder(4.5)
    assert encoder.STARTUP_WAIT == 4.5


def test_a_gradio_without_that_setting_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = pytest.importorskip("gradio.audio_stream_encoder")
    monkeypatch.delattr(encoder, "STARTUP_WAIT")
    assert not be_patient_with_encoder()
    assert not hasattr(encoder, "STARTUP_WAIT")

"""The start of the studio as a whole: what ends it, and how soon."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.browser.conftest import free_port
from tests.golden_data import ROOT

pytestmark = pytest.mark.e2e

NANO = ROOT / "assets" / "nano"


def start(folder: Path, model: Path, port: int) -> subprocess.Popen[str]:
    command = [sys.executable, "app.py", "--model-dir", str(model), "--device", "cpu"]
    command += ["--server-port", str(port), "--output-dir", str(folder / "out")]
    command += ["--voices-dir", str(folder / "voices")]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )


def status_of(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_weights_that_cannot_be_read_end_it_with_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "model"
    shutil.copytree(NANO, broken)
    (broken / "llm.pt").write_bytes(b"PK\x03\x04 and no more")
    process = start(tmp_path, broken, free_port())
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 2
    assert "llm.pt" in errors.strip().splitlines()[-1] and "Traceback" not in errors


def test_the_page_is_there_before_the_model_and_both_are_told(tmp_path: Path) -> None:
    port = free_port()
    with start(tmp_path, NANO, port) as process:
        assert process.stdout is not None
        told = [process.stdout.readline() for _ in range(3)]
        assert told[0].startswith("Model: ") and told[1] == f"Studio: http://127.0.0.1:{port}\n"
        assert told[2].startswith("The model is ready")
        assert status_of(f"http://127.0.0.1:{port}/ready") == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_it_can_be_stopped_while_the_model_loads(tmp_path: Path) -> None:
    process = start(tmp_path, NANO, free_port())
    assert process.stdout is not None and process.stdout.readline()
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=60)
    assert process.returncode in (0, 130) and "Traceback" not in errors
    assert "The model is ready" not in rest

"""The real studio in a process of its own, and a real Chromium to visit it."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome")
START_SECONDS = 90


def chromium() -> str | None:
    """Path of an installed Chromium, if any."""
    found = [path for name in CHROMIUM_NAMES if (path := shutil.which(name))]
    return found[0] if found else None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="session")
def studio_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a studio running the bundled checkpoint."""
    folder = tmp_path_factory.mktemp("studio")
    port = free_port()
    log = folder / "studio.log"
    environment = dict(os.environ, GRADIO_TEMP_DIR=str(folder / "gradio"), OMP_NUM_THREADS="2")
    command = [sys.executable, "app.py", "--server-port", str(port), "--output-dir", str(folder / "outputs")]
    command += ["--model-dir", str(ROOT / "assets" / "nano")]
    with log.open("wb") as sink:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=sink, stderr=sink)
    url = f"http://127.0.0.1:{port}/"
    try:
        wait_until_up(url, process, log)
        yield url
    finally:
        process.terminate()
        process.wait(timeout=20)


def wait_until_up(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.3)
    pytest.fail(f"the studio did not start:\n{log.read_text(errors='replace')[-3000:]}")


def seconds_in(facts: str) -> float:
    """The length told in the line of facts under a result."""
    match = re.search(r"(?:length|时长) ([\d.]+)", facts)
    assert match, facts
    return float(match.group(1))

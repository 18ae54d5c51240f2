"""The real studio in a process of its own, and a real Chromium to visit it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.browser.visitor import Visitor

ROOT = Path(__file__).resolve().parents[2]
MODEL = Path(os.environ.get("COSYVOICE_TEST_MODEL_DIR", ROOT / "assets" / "nano"))
EXAMPLE = ROOT / "assets" / "examples" / "studio_voice.flac"
RECORDINGS = ROOT.parent / "shared" / "reference" / "audio"
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome")
START_SECONDS = 90


def chromium() -> str | None:
    """Path of an installed Chromium, if any."""
    found = [path for name in CHROMIUM_NAMES if (path := shutil.which(name))]
    return found[0] if found else None


def why_not() -> str:
    """The reason why no browser test can run here; "" when they can."""
    if chromium() is None:
        return "no Chromium on this machine (apt-get install chromium)"
    if not any((MODEL / name).is_file() for name in ("llm.pt", "llm.safetensors")):
        return f"no weights in {MODEL}"
    return ""


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="session")
def clips() -> list[Path]:
    """The bundled example, then real recordings where there are some, the shortest first."""
    return [EXAMPLE, *sorted(RECORDINGS.glob("*.wav"), key=lambda path: path.stat().st_size)]


@pytest.fixture(scope="session")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the studio keeps finished sound."""
    return tmp_path_factory.mktemp("outputs")


@pytest.fixture(scope="session")
def studio_url(tmp_path_factory: pytest.TempPathFactory, outputs: Path) -> Iterator[str]:
    """Address of a studio running the bundled checkpoint (or the folder in COSYVOICE_TEST_MODEL_DIR)."""
    with running_studio(tmp_path_factory.mktemp("studio"), outputs) as (url, _):
        yield url


@contextmanager
def running_studio(folder: Path, outputs: Path, *flags: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A studio with its log and uploads in `folder`: address and process. It is told to stop at the end."""
    port = free_port()
    log = folder / "studio.log"
    environment = dict(os.environ, GRADIO_TEMP_DIR=str(folder / "gradio"), OMP_NUM_THREADS="2")
    command = [sys.executable, "app.py", "--server-port", str(port), "--output-dir", str(outputs)]
    command += ["--model-dir", str(MODEL), "--device", "cpu", "--voices-dir", str(folder / "voices"), *flags]
    with log.open("wb") as sink:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=sink, stderr=sink)
    url = f"http://127.0.0.1:{port}/"
    try:
        wait_until_up(url, process, log)
        yield url, process
    finally:
        process.terminate()
        try:
            process.wait(timeout=40)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until_up(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Return when the page answers; fail with the end of the log when it never does."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.3)
    pytest.fail(f"the studio did not start:\n{log.read_text(errors='replace')[-3000:]}")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One Chromium for the tests of a module."""
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as engine:
        instance = engine.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield instance
        instance.close()


@pytest.fixture(scope="module")
def windows(browser: Any) -> Iterator[dict[str, Any]]:
    """Browser profiles that the tests of a module share, by their settings: a page opens sooner with a filled cache."""
    contexts: dict[str, Any] = {}
    yield contexts
    for context in contexts.values():
        context.close()


@pytest.fixture
def visit(browser: Any, studio_url: str, windows: dict[str, Any]) -> Iterator[Callable[..., Visitor]]:
    """Opens the page; takes what `browser.new_context` takes. `new`: as somebody who has never been here."""
    opened: list[Any] = []

    def open_page(locale: str = "en-US", new: bool = False, **settings: Any) -> Visitor:
        key = repr((locale, sorted(settings.items())))
        context = None if new else windows.get(key)
        if context is None:
            context = browser.new_context(locale=locale, accept_downloads=True, **settings)
            if new:
                opened.append(context)
            else:
                windows[key] = context
        page = context.new_page()
        opened.append(page)
        return Visitor(page, studio_url)

    yield open_page
    for one in reversed(opened):
        one.close()

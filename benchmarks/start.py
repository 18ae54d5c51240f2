"""How long a start takes, as a person at a browser sees it: from the command to a page that can be used, and to sound.

    python -m benchmarks.start --starts 3 --first

Each start is `python app.py` (or `--command`) with a Chromium that is open already. Seconds since the command:
"served": the page's first bytes; "shown": the text box is there; "usable": the page is in the browser's language and
counts what is typed, as its server does; "clicked": a clip is uploaded and Generate clicked, as a script can;
"ready": a worker is warm (`/ready`); "sound": the first piece of the answer to that click. "CPU s": of the program and
its workers until that answer is whole.

`--first` gives every start a cache folder of its own: choices of backends and exported graphs are made anew. Needs
playwright and Chromium. Measure on a machine that does nothing else: the browser, the page and the worker share it.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.material import clip
from benchmarks.watch import process_tree

STAMPS = ("served", "shown", "usable", "clicked", "ready", "sound", "CPU s")
NAME = "3s Clone"  # of the tab, once the page speaks the language of its browser
TEXT = "The page is open, and this is the first thing that it says."
LIMIT = 120.0  # seconds for everything
_CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome")
_LOOK = 0.1  # seconds between two looks
_GRACE = 40.0


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.start", description=__doc__)
    add = parser.add_argument
    add("--starts", type=int, default=3)
    add("--first", action="store_true", help="with a new cache folder for each start")
    add("--model-dir", type=Path, default=Path("assets/nano"))
    add("--command", default=f"{shlex.quote(sys.executable)} app.py", help="what is started, without flags")
    add("--chromium", default=None, help="path of the browser")
    add("--log", type=Path, default=None, help="file for what the program prints")
    add("--out", type=Path, default=None, help="JSON file to write")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(arguments)
    browser = args.chromium or next(filter(None, map(shutil.which, _CHROMIUM_NAMES)), None)
    if browser is None:
        raise SystemExit("no Chromium on this machine; name it with --chromium")
    with tempfile.TemporaryDirectory() as folder:
        starts = [_start(args, browser, Path(folder), number) for number in range(args.starts)]
    print(table(starts))
    if args.out:
        args.out.write_text(json.dumps(starts, indent=2) + "\n", encoding="utf-8")
    return 0


def table(starts: Sequence[dict[str, float]]) -> str:
    """A line for each start and one of medians."""
    rows = [[str(number), *_cells(start)] for number, start in enumerate(starts, 1)]
    if len(starts) > 1:
        middle = {
            name: statistics.median(found)
            for name in STAMPS
            if (found := [start[name] for start in starts if name in start])
        }
        rows.append(["median", *_cells(middle)])
    lines = [["start", *STAMPS], ["---"] * (1 + len(STAMPS)), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cells(start: dict[str, float]) -> list[str]:
    return [f"{start[name]:.1f}" if name in start else "" for name in STAMPS]


# ----------------------------------------------------------------------------------------------- one start
def _start(args: argparse.Namespace, browser: str, folder: Path, number: int) -> dict[str, float]:
    from playwright.sync_api import sync_playwright

    reference = folder / "clip.wav"
    reference.write_bytes(clip(4.0))
    with sync_playwright() as engine:
        window = engine.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        page = window.new_context(locale="en-US").new_page()
        with running(args, folder, number) as (url, begun, process):
            visit = _Visit(page, url, begun)
            stamps = visit.run(reference)
            stamps["CPU s"] = process_tree(process.pid).cpu_seconds
        window.close()
    return stamps


@contextmanager
def running(
    args: argparse.Namespace, folder: Path, number: int
) -> Iterator[tuple[str, float, subprocess.Popen[bytes]]]:
    """The program: its address, when it was started (`time.monotonic`), its process."""
    port = _free_port()
    own = folder / f"start-{number}"
    own.mkdir()
    environment = dict(os.environ, GRADIO_TEMP_DIR=str(own / "gradio"))
    if args.first:
        environment |= {"COSYVOICE_GRAPHS": str(own / "graphs"), "XDG_CACHE_HOME": str(own / "cache")}
    command = [*shlex.split(args.command), "--server-port", str(port), "--model-dir", str(args.model_dir)]
    command += ["--output-dir", str(own / "outputs"), "--voices-dir", str(own / "voices")]
    sink: Any = open(args.log, "ab") if args.log else subprocess.DEVNULL  # noqa: SIM115
    begun = time.monotonic()
    process = subprocess.Popen(command, env=environment, stdout=sink, stderr=sink)
    try:
        yield f"http://127.0.0.1:{port}", begun, process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if args.log:
            sink.close()


class _Visit:
    """One person in a hurry."""

    def __init__(self, page: Any, url: str, begun: float) -> None:
        self._page, self._url, self._begun = page, url, begun
        self._stamps: dict[str, float] = {}
        page.on("response", self._note)

    def run(self, reference: Path) -> dict[str, float]:
        page = self._page
        watching = threading.Thread(target=self._wait_until_ready, daemon=True)
        watching.start()
        self._wait(lambda: _answers(self._url + "/"))
        self._stamp("served")
        page.goto(self._url + "/", timeout=LIMIT * 1000)
        page.locator("#clone-text textarea").wait_for(timeout=LIMIT * 1000)
        self._stamp("shown")
        page.get_by_role("tab", name=NAME, exact=True).wait_for(timeout=LIMIT * 1000)
        self._type()
        self._stamp("usable")
        page.locator("#clone-reference input[type=file]").set_input_files(reference)
        page.locator("#clone-reference").get_by_role("button", name="Clear").first.wait_for()
        page.locator("#clone-generate").click()
        self._stamp("clicked")
        self._wait(lambda: "sound" in self._stamps)
        watching.join(LIMIT)
        page.locator("#clone-status").get_by_text("RTF").wait_for(timeout=LIMIT * 1000)
        return self._stamps

    def _type(self) -> None:
        """Write until the page's server has counted it: what comes before the page has loaded may go uncounted."""
        from playwright.sync_api import TimeoutError as NotThereError

        box, count = self._page.locator("#clone-text textarea"), self._page.locator("#clone-count")
        for number in range(1, int(LIMIT)):
            text = TEXT + "." * number
            box.fill(text)
            with suppress(NotThereError):
                count.get_by_text(str(len(text))).first.wait_for(timeout=1000)
                return

    def _note(self, response: Any) -> None:
        if response.url.endswith(".aac"):
            self._stamp("sound")

    def _stamp(self, name: str) -> None:
        self._stamps.setdefault(name, time.monotonic() - self._begun)

    def _wait_until_ready(self) -> None:
        while time.monotonic() < self._begun + LIMIT:
            if _answers(self._url + "/ready"):
                self._stamp("ready")
                return
            time.sleep(_LOOK)

    def _wait(self, done: Callable[[], bool]) -> None:
        while not done():
            if time.monotonic() > self._begun + LIMIT:
                raise SystemExit(f"nothing came within {LIMIT:.0f} s; so far: {self._stamps}")
            if "served" in self._stamps:
                self._page.wait_for_timeout(_LOOK * 1000)  # lets the page's messages in
            else:
                time.sleep(_LOOK)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5.0) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    raise SystemExit(main())

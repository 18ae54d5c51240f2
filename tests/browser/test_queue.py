"""A studio with one place and one chair: who waits is told so, who finds no chair too, and all ends in order."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.watch import family
from tests.browser.conftest import running_studio, why_not
from tests.browser.visitor import Visitor

pytestmark = [pytest.mark.browser, pytest.mark.skipif(bool(why_not()), reason=why_not())]

SENTENCE = "The train to the city leaves at nine in the morning."


@pytest.fixture
def small_studio(tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    (tmp_path / "log").mkdir()
    flags = ("--concurrency-count", "1", "--queue-size", "1", "--max-workers", "1")
    with running_studio(tmp_path / "log", tmp_path / "outputs", *flags) as studio:
        yield studio


def ask(browser: Any, url: str, clip: Path, seed: int, text: str, language: str = "en") -> Visitor:
    """A new visitor who has just pressed the button."""
    context = browser.new_context(locale={"en": "en-US", "zh": "zh-CN"}[language])
    visitor = Visitor(context.new_page(), url)
    visitor.fill("cross_lingual", text, clip, language)
    visitor.page.locator("#cross_lingual-seed input").fill(str(seed))
    visitor.generate("cross_lingual")
    return visitor


def test_waiting_busy_stop_and_the_end(
    browser: Any, small_studio: tuple[str, subprocess.Popen[bytes]], clips: list[Path], tmp_path: Path
) -> None:
    url, process = small_studio
    served = ask(browser, url, clips[0], 1, " ".join([SENTENCE] * 60))
    served.wait_for_sound()
    waiting = ask(browser, url, clips[-1], 2, SENTENCE, language="zh")
    waiting.wait_for_refusal("cross_lingual", "排队中，您是第 1 位")
    refused = ask(browser, url, clips[-1], 3, SENTENCE)
    assert refused.wait_for_refusal("cross_lingual", "busy").startswith("⚠️")

    served.page.locator("#cross_lingual-stop").click()
    served.wait_for_refusal("cross_lingual", "Stopped.")
    waiting.page.locator("#cross_lingual-status").get_by_text("实时率").wait_for(timeout=60_000)
    for visitor in (served, waiting, refused):
        assert visitor.problems == []
    assert [path.stem.split("_")[3] for path in (tmp_path / "outputs").glob("*.wav")] == ["2"]

    # Told to stop in the middle of a sentence, it finishes that and leaves nothing behind.
    last = ask(browser, url, clips[0], 4, f"{SENTENCE} {SENTENCE}")
    last.wait_for_sound()
    members = family(process.pid)
    assert len(members) >= 2  # with its worker
    process.terminate()
    last.wait_for_facts("cross_lingual")
    assert process.wait(timeout=40) == 0
    assert len(list((tmp_path / "outputs").glob("*_4.wav"))) == 1
    deadline = time.monotonic() + 10  # the resource tracker of multiprocessing leaves a moment later
    while left := [member for member in members if Path(f"/proc/{member}").exists()]:
        assert time.monotonic() < deadline, f"processes {left} are left"
        time.sleep(0.1)

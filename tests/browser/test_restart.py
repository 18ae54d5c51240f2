"""A studio that goes down in the middle of a batch, comes up again with one place and one chair, and ends in order."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.watch import family
from tests.browser.conftest import running_studio, why_not
from tests.browser.test_batch import fetch, open_tab, start
from tests.browser.visitor import SYNTHESIS_MS, USABLE_MS, Visitor

pytestmark = [pytest.mark.browser, pytest.mark.skipif(bool(why_not()), reason=why_not())]

SENTENCE = "The train to the city leaves at nine in the morning."
ROWS = 6
SMALL = ("--concurrency-count", "1", "--queue-size", "1", "--max-workers", "1", "--server-name", "0.0.0.0")


def results(outputs: Path) -> list[dict[str, Any]]:
    """The rows of the only batch that have ended."""
    (file,) = outputs.glob(".studio/batches/*/results.jsonl")
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_a_batch_goes_on_after_a_crash_and_a_full_studio_says_so_and_ends_in_order(
    browser: Any, clips: list[Path], tmp_path: Path
) -> None:
    log, outputs = tmp_path / "log", tmp_path / "outputs"
    log.mkdir()
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(f"Line {number}." for number in range(ROWS)), encoding="utf-8")
    owner = browser.new_context(locale="en-US", accept_downloads=True)
    with running_studio(log, outputs) as (url, process):
        _crash_in_a_batch(Visitor(owner.new_page(), url), process, lines, clips[0])
    before = results(outputs)
    assert 1 <= len(before) < ROWS
    with running_studio(log, outputs, *SMALL) as (url, process):
        visitor = Visitor(owner.new_page(), url)
        _see_it_finished(visitor)
        after = results(outputs)
        assert after[: len(before)] == before  # nothing was spoken twice
        assert sorted(line["row"] for line in after) == list(range(ROWS))
        visitor.page.close()
        _wait_in_the_queue(browser, url, clips)
        assert [path.stem.split("_")[3] for path in outputs.glob("*.wav")] == ["2"]
        _end_in_the_middle_of_a_sentence(browser, url, clips[0], process)
    assert len(list(outputs.glob("*_4.wav"))) == 1
    assert "--auth" in (log / "studio.log").read_text(encoding="utf-8")
    owner.close()


def _crash_in_a_batch(visitor: Visitor, process: subprocess.Popen[bytes], lines: Path, clip: Path) -> None:
    page = open_tab(visitor, "batch")
    listed = page.locator("#batch-list")
    start(page, lines, clip)
    listed.get_by_text("speaking").wait_for(timeout=USABLE_MS)
    listed.get_by_text(f"1 of {ROWS}").or_(listed.get_by_text(f"2 of {ROWS}")).wait_for(timeout=SYNTHESIS_MS)
    page.locator("#batch-stop").click()
    listed.get_by_text("stopped").wait_for(timeout=USABLE_MS)
    assert fetch(page)  # what there is can be had
    page.locator("#batch-resume").click()
    listed.get_by_text("speaking").wait_for(timeout=USABLE_MS)
    process.kill()  # the machine goes down
    process.wait()
    page.close()


def _see_it_finished(visitor: Visitor) -> None:
    visitor.page.locator("#sharing").get_by_text("--auth").wait_for(
        timeout=USABLE_MS
    )  # others can reach it now
    page = open_tab(visitor, "batch")
    page.locator("#batch-list").get_by_text(f"done · {ROWS} of {ROWS} rows").wait_for(
        timeout=2 * SYNTHESIS_MS
    )
    assert len(fetch(page)) == ROWS + 1
    assert visitor.problems == []


def ask(browser: Any, url: str, clip: Path, seed: int, text: str, language: str = "en") -> Visitor:
    """A new visitor who has just pressed the button."""
    context = browser.new_context(locale={"en": "en-US", "zh": "zh-CN"}[language])
    visitor = Visitor(context.new_page(), url)
    visitor.fill("cross_lingual", text, clip, language)
    visitor.page.locator("#cross_lingual-seed input").fill(str(seed))
    visitor.generate("cross_lingual")
    return visitor


def _wait_in_the_queue(browser: Any, url: str, clips: list[Path]) -> None:
    """One is served, the next waits and is told so, the third finds no chair; a stop lets the second in."""
    served = ask(browser, url, clips[0], 1, " ".join([SENTENCE] * 60))
    served.wait_for_sound()
    waiting = ask(browser, url, clips[1 % len(clips)], 2, "Good morning.", language="zh")
    waiting.wait_for_refusal("cross_lingual", "排队中，您是第 1 位")
    refused = ask(browser, url, clips[0], 3, "Good morning.")
    assert refused.wait_for_refusal("cross_lingual", "busy").startswith("⚠️")
    served.page.locator("#cross_lingual-stop").click()
    served.wait_for_refusal("cross_lingual", "Stopped.")
    waiting.page.locator("#cross_lingual-status").get_by_text("实时率").wait_for(timeout=SYNTHESIS_MS)
    for visitor in (served, waiting, refused):
        assert visitor.problems == []
        visitor.page.context.close()


def _end_in_the_middle_of_a_sentence(
    browser: Any, url: str, clip: Path, process: subprocess.Popen[bytes]
) -> None:
    """Told to stop, the studio finishes what it speaks and leaves nothing behind."""
    last = ask(browser, url, clip, 4, f"{SENTENCE} {SENTENCE}")
    last.wait_for_sound()
    members = family(process.pid)
    assert len(members) >= 2  # with its worker
    process.terminate()
    last.wait_for_facts("cross_lingual")
    assert process.wait(timeout=40) == 0
    deadline = time.monotonic() + 10  # the resource tracker of multiprocessing leaves a moment later
    while left := [member for member in members if Path(f"/proc/{member}").exists()]:
        assert time.monotonic() < deadline, f"processes {left} are left"
        time.sleep(0.1)
    last.page.context.close()

"""Batch and history in a real browser: rows to a zip, what a browser has had made, and that no other sees it."""

from __future__ import annotations

import csv
import io
import wave
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import why_not
from tests.browser.visitor import SYNTHESIS_MS, USABLE_MS, Visitor

pytestmark = [pytest.mark.browser, pytest.mark.skipif(bool(why_not()), reason=why_not())]

Visit = Callable[..., Visitor]
NAMES = {"batch": ("Batch", "批量合成"), "history": ("History", "历史")}


def open_tab(visitor: Visitor, name: str, language: str = "en") -> Any:
    visitor.page.get_by_role("tab", name=NAMES[name][language == "zh"], exact=True).click(timeout=USABLE_MS)
    return visitor.page


def give_file(page: Any, path: Path) -> None:
    page.locator("#batch-file input[type=file]").set_input_files(path)


def start(page: Any, path: Path, clip: Path) -> None:
    give_file(page, path)
    page.locator("#batch-reference input[type=file]").set_input_files(clip)
    page.locator("#batch-verdict").get_by_text("usable").wait_for(timeout=USABLE_MS)
    page.locator("#batch-start").click()
    page.locator("#batch-status").get_by_text("Started").wait_for(timeout=USABLE_MS)


def fetch(page: Any) -> dict[str, bytes]:
    with page.expect_download() as waiting:
        page.locator("#batch-archive").click()
    assert "_batch_" in waiting.value.suggested_filename
    with zipfile.ZipFile(waiting.value.path()) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def seconds_of(data: bytes) -> float:
    with wave.open(io.BytesIO(data)) as sound:
        return sound.getnframes() / sound.getframerate()


def frames_of(path: Path) -> bytes:
    with wave.open(str(path)) as sound:
        return sound.readframes(sound.getnframes())


def test_a_file_becomes_a_zip_and_only_its_owner_sees_it(
    visit: Visit, clips: list[Path], tmp_path: Path
) -> None:
    visitor, other = visit(), visit(new=True)
    page = open_tab(visitor, "batch")
    page.locator("#batch-start").click()
    page.locator("#batch-status").get_by_text("Choose a batch file").wait_for(timeout=USABLE_MS)
    give_file(page, _write(tmp_path / "broken.jsonl", "{half"))
    page.locator("#batch-status").get_by_text("Row 1 cannot be used").wait_for(timeout=USABLE_MS)
    page.locator("#batch-file").get_by_label("Clear").click()

    start(
        page,
        _write(tmp_path / "lines.csv", "name,text\nhello,Good morning.\nempty,\nbye,Good night.\n"),
        clips[0],
    )
    page.locator("#batch-list").get_by_text("done · 2 of 3 rows").wait_for(timeout=SYNTHESIS_MS)
    page.locator("#batch-progress").get_by_text("row 2: Write the text").wait_for(timeout=USABLE_MS)
    files = fetch(page)
    assert sorted(files) == ["bye.wav", "hello.wav", "report.csv"]
    assert seconds_of(files["hello.wav"]) > 0.3 and files["hello.wav"] != files["bye.wav"]
    report = list(csv.DictReader(io.StringIO(files["report.csv"].decode("utf-8-sig"))))
    assert [bool(line["error"]) for line in report] == [False, True, False]

    open_tab(other, "batch")
    other.page.wait_for_timeout(500)
    assert other.page.locator("#batch-list").is_hidden() and "lines.csv" not in other.page.content()
    page.locator("#batch-delete").click()
    page.locator("#batch-list").wait_for(state="hidden", timeout=USABLE_MS)
    assert visitor.problems == [] and other.problems == []


def _write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_history_replays_reuses_and_deletes_what_is_mine(
    visit: Visit, clips: list[Path], outputs: Path
) -> None:
    visitor, other = visit(new=True), visit("zh-CN", new=True)
    visitor.fill("cross_lingual", "Good morning.", clips[0])
    visitor.page.locator("#cross_lingual-seed input").fill("4321")
    visitor.generate("cross_lingual")
    page = open_tab(visitor, "history")  # at once: it comes while the visitor waits there
    page.locator("#history-list").get_by_text("Good morning.").wait_for(timeout=SYNTHESIS_MS)
    (kept,) = outputs.glob("*_4321.wav")
    page.locator("#history-facts").get_by_text(kept.name).wait_for(timeout=USABLE_MS)
    with page.expect_download() as waiting:
        page.locator("#history-download").click()
    assert waiting.value.suggested_filename == kept.name
    assert Path(waiting.value.path()).read_bytes() == kept.read_bytes()

    open_tab(other, "history", "zh")
    other.page.locator("#history-status").get_by_text("还没有结果").wait_for(timeout=USABLE_MS)
    assert "4321" not in other.page.content()

    page.reload()  # it is the browser's, not the page's
    page.locator("#clone-text textarea").wait_for(timeout=USABLE_MS)
    open_tab(visitor, "history")
    page.locator("#history-reuse").click(timeout=USABLE_MS)
    page.wait_for_function(
        "document.querySelector('#cross_lingual-seed input')?.value === '4321'"
        " && document.querySelector('#cross_lingual-text textarea')?.value === 'Good morning.'",
        timeout=USABLE_MS,
    )
    assert page.locator("#cross_lingual-text textarea").is_visible()
    page.locator("#cross_lingual-verdict .findings").wait_for(timeout=USABLE_MS)  # the clip is there again
    visitor.generate("cross_lingual")
    visitor.wait_for_facts("cross_lingual")
    assert visitor.download("cross_lingual").pcm.tobytes() == frames_of(kept)
    page.locator("#language").get_by_text("中文").click()
    page.wait_for_function(
        "!document.querySelector('#cross_lingual-status').innerText.trim()", timeout=USABLE_MS
    )
    page.locator("#language").get_by_text("English").click()
    visitor.wait_for_tab("cross_lingual", "en")

    open_tab(visitor, "history")
    page.locator("#history-list").get_by_text("Good morning.").nth(1).wait_for(
        timeout=USABLE_MS
    )  # it is read anew
    page.locator("#history-clear").click()
    page.locator("#history-clear-sure").click()
    page.locator("#history-status").get_by_text("Nothing here yet").wait_for(timeout=USABLE_MS)
    assert not kept.exists()
    assert visitor.problems == [] and other.problems == []

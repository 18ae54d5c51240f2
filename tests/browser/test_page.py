"""A person's way through each tab, in a real browser, on the bundled checkpoint and real clips."""

from __future__ import annotations

import io
import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.browser.conftest import ROOT, chromium, seconds_in

playwright = pytest.importorskip("playwright.sync_api")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium() is None, reason="no Chromium on this machine (apt-get install chromium)"),
    pytest.mark.skipif(not (ROOT / "assets/nano/cosyvoice2.yaml").exists(), reason="assets/nano is not there"),
]

CLIP = ROOT / "assets" / "examples" / "reference_en.wav"
SENTENCE = "The train to the city leaves at nine in the morning."
SYNTHESIS_MS = 90_000
TABS = {"clone": "3s Clone", "cross_lingual": "Cross-lingual", "instruct": "Instruct"}


@pytest.fixture(scope="module")
def browser() -> Iterator["playwright.Browser"]:
    with playwright.sync_playwright() as engine:
        instance = engine.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield instance
        instance.close()


@pytest.fixture
def page(browser: "playwright.Browser", studio_url: str) -> Iterator["playwright.Page"]:
    context = browser.new_context(locale="en-US", accept_downloads=True)
    visitor = context.new_page()
    visitor.problems = []
    visitor.on("console", lambda message: message.type == "error" and visitor.problems.append(message.text))
    visitor.on("request", lambda request: _note_outside(visitor.problems, request.url, studio_url))
    visitor.goto(studio_url)
    visitor.get_by_role("tab", name=TABS["clone"], exact=True).wait_for(timeout=20_000)
    yield visitor
    context.close()


def _note_outside(problems: list[str], url: str, studio_url: str) -> None:
    if url.startswith("http") and not url.startswith(studio_url):
        problems.append(f"asked for {url}")


def _fill(page: "playwright.Page", mode: str, text: str, clip: Path | None) -> None:
    page.get_by_role("tab", name=TABS[mode], exact=True).click()
    page.locator(f"#{mode}-text textarea").fill(text)
    if clip is not None:
        page.locator(f"#{mode}-reference input[type=file]").set_input_files(clip)
        page.locator(f"#{mode}-reference audio, #{mode}-reference #waveform").first.wait_for(state="attached")


def _generate(page: "playwright.Page", mode: str) -> None:
    page.locator(f"#{mode}-generate").click()


def _download(page: "playwright.Page", mode: str) -> tuple[str, np.ndarray, int]:
    with page.expect_download() as waiting:
        page.locator(f"#{mode}-download").click()
    data = Path(waiting.value.path()).read_bytes()
    with wave.open(io.BytesIO(data)) as sound:
        pcm = np.frombuffer(sound.readframes(sound.getnframes()), np.int16)
        return waiting.value.suggested_filename, pcm, sound.getframerate()


@pytest.mark.parametrize("mode", list(TABS))
def test_a_clip_and_a_text_become_speech(page: "playwright.Page", mode: str) -> None:
    _fill(page, mode, SENTENCE, CLIP)
    if mode == "instruct":
        page.locator("#instruct-instruction textarea").fill("Speak slowly.")
    _generate(page, mode)
    status = page.locator(f"#{mode}-status")
    status.get_by_text("RTF").wait_for(timeout=SYNTHESIS_MS)
    name, pcm, rate = _download(page, mode)
    assert name.endswith(".wav") and mode in name
    assert rate == 24000
    seconds = len(pcm) / rate
    assert 1.5 < seconds < 12
    assert seconds_in(status.inner_text()) == pytest.approx(seconds, abs=0.1)
    level = np.sqrt(np.mean((pcm / 32768.0) ** 2))
    assert 0.005 < level < 0.5
    assert page.problems == []


def test_whole_mode_gives_the_same_kind_of_file(page: "playwright.Page") -> None:
    _fill(page, "cross_lingual", "A short test.", CLIP)
    page.locator("#cross_lingual-streaming input").uncheck()
    _generate(page, "cross_lingual")
    page.locator("#cross_lingual-status").get_by_text("RTF").wait_for(timeout=SYNTHESIS_MS)
    _, pcm, rate = _download(page, "cross_lingual")
    assert 0.3 < len(pcm) / rate < 6


def test_mistakes_are_told_in_a_sentence(page: "playwright.Page", tmp_path: Path) -> None:
    status = page.locator("#clone-status")
    _fill(page, "clone", "", CLIP)
    _generate(page, "clone")
    status.get_by_text("⚠️").wait_for(timeout=20_000)
    first = status.inner_text()
    _fill(page, "clone", SENTENCE, None)
    page.locator("#clone-reference").get_by_role("button", name="Clear").first.click()
    _generate(page, "clone")
    page.wait_for_function(
        "(old) => { const t = document.querySelector('#clone-status').innerText;"
        " return t.includes('⚠️') && t !== old }",
        arg=first,
        timeout=20_000,
    )
    assert "Traceback" not in page.content()


def test_the_language_follows_the_browser_and_the_switch(
    browser: "playwright.Browser", studio_url: str
) -> None:
    context = browser.new_context(locale="zh-CN")
    visitor = context.new_page()
    visitor.goto(studio_url)
    visitor.get_by_role("tab", name="3s极速复刻", exact=True).wait_for(timeout=20_000)
    visitor.locator("#language").get_by_text("English").click()
    visitor.get_by_role("tab", name="3s Clone", exact=True).wait_for(timeout=20_000)
    context.close()

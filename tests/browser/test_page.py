"""A person's way through each tab, in a real browser, on the bundled checkpoint and real clips."""

from __future__ import annotations

import hashlib
import io
import re
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.browser.conftest import why_not
from tests.browser.visitor import TABS, USABLE_MS, Visitor
from webui.outputs import file_word

pytestmark = [pytest.mark.browser, pytest.mark.skipif(bool(why_not()), reason=why_not())]

SENTENCE = "The train to the city leaves at nine in the morning."
ENCODER_SAMPLES = 1024  # an AAC encoder starts with one frame of silence, and fills up its last one
Visit = Callable[..., Visitor]


def check_speech(pcm: np.ndarray, rate: int, shortest: float, longest: float) -> None:
    assert rate == 24000
    assert shortest < len(pcm) / rate < longest
    level = np.sqrt(np.mean((pcm / 32768.0) ** 2))
    assert 0.005 < level < 0.5


def seconds_in(facts: str) -> float:
    """The length told in the line of facts under a result."""
    match = re.search(r"length ([\d.]+)", facts)
    assert match, facts
    return float(match.group(1))


@pytest.mark.parametrize("mode", list(TABS))
def test_a_clip_and_a_text_become_speech(visit: Visit, clips: list[Path], mode: str) -> None:
    visitor = visit()
    visitor.fill(mode, SENTENCE, clips[0])
    if mode == "instruct":
        visitor.page.locator("#instruct-instruction textarea").fill("Speak calmly.")
    visitor.generate(mode)
    facts = visitor.wait_for_facts(mode)
    result = visitor.download(mode)
    voice = file_word(clips[0].stem)
    assert re.fullmatch(rf"\d{{8}}-\d{{6}}_{mode.replace('_', '-')}_{voice}_0\.wav", result.name)
    check_speech(result.pcm, result.rate, 1.0, 15.0)
    assert seconds_in(facts) == pytest.approx(len(result.pcm) / result.rate, abs=0.1)
    assert visitor.problems == []


def test_the_live_sound_comes_early_and_is_the_file_without_a_gap(visit: Visit, clips: list[Path]) -> None:
    av = pytest.importorskip("av")
    visitor = visit()
    visitor.fill("cross_lingual", f"{SENTENCE} It is late again, and so we wait here for a while.", clips[0])
    visitor.generate("cross_lingual")
    visitor.wait_for_facts("cross_lingual")
    finished = time.monotonic()
    result = visitor.download("cross_lingual")
    assert visitor.first_piece is not None and visitor.first_piece < finished

    with av.open(io.BytesIO(visitor.streamed()), format="aac") as stream:
        live = np.concatenate([frame.to_ndarray()[0] for frame in stream.decode(audio=0)])
    assert 0 <= len(live) - len(result.pcm) <= 3 * ENCODER_SAMPLES
    heard = live[ENCODER_SAMPLES : ENCODER_SAMPLES + len(result.pcm)]
    # Every tenth of a second that is not silent is where it belongs, at its level.
    original = result.pcm / 32768.0
    windows = [slice(start, start + 2400) for start in range(0, len(original) - 2400, 2400)]
    loud = [window for window in windows if np.std(original[window]) > 0.01]
    assert len(loud) > 5
    for window in loud:
        assert np.corrcoef(original[window], heard[window])[0, 1] > 0.7
        assert np.std(heard[window]) == pytest.approx(np.std(original[window]), rel=0.3)


def test_without_streaming_only_the_file_is_made(visit: Visit, clips: list[Path]) -> None:
    visitor = visit()
    visitor.fill("cross_lingual", "This is a short test.", clips[0])
    visitor.page.locator("#cross_lingual-streaming input").uncheck()
    visitor.generate("cross_lingual")
    visitor.wait_for_facts("cross_lingual")
    result = visitor.download("cross_lingual")
    check_speech(result.pcm, result.rate, 0.3, 8.0)
    assert visitor.playlists == [] and visitor.problems == []


def test_two_visitors_at_once_get_their_own_voice_and_text(visit: Visit, clips: list[Path]) -> None:
    """What each one gets beside the other is, to the bit, what they get alone."""
    wishes = {
        11: ("Good morning, it is late again.", clips[0]),
        22: ("The train leaves at nine.", clips[1 % len(clips)]),
    }
    visitors = {seed: visit(new=True) for seed in wishes}
    for seed, (text, clip) in wishes.items():
        visitors[seed].fill("cross_lingual", text, clip)
        visitors[seed].page.locator("#cross_lingual-seed input").fill(str(seed))
    for visitor in visitors.values():
        visitor.generate("cross_lingual")
    for visitor in visitors.values():  # both are being served: nobody waits for the other's end
        visitor.wait_for_sound()
    together = {seed: _result(visitor, seed) for seed, visitor in visitors.items()}
    assert together[11] != together[22]
    for seed, visitor in visitors.items():
        visitor.generate("cross_lingual")
        visitor.page.locator("#cross_lingual-status").get_by_text("Working").wait_for()
        assert _result(visitor, seed) == together[seed]
        assert visitor.problems == []


def _result(visitor: Visitor, seed: int) -> str:
    """Hash of the samples of a finished file, whose name and facts must tell the seed."""
    assert f"seed {seed}" in visitor.wait_for_facts("cross_lingual")
    result = visitor.download("cross_lingual")
    assert f"_{seed}." in result.name
    check_speech(result.pcm, result.rate, 0.3, 15.0)
    return hashlib.sha256(result.pcm.tobytes()).hexdigest()


def test_a_closed_tab_does_not_keep_others_waiting(visit: Visit, clips: list[Path], outputs: Path) -> None:
    leaver, other = visit(new=True), visit()
    leaver.fill("cross_lingual", " ".join([SENTENCE] * 60), clips[0])
    leaver.page.locator("#cross_lingual-seed input").fill("77")
    leaver.generate("cross_lingual")
    leaver.wait_for_sound()
    leaver.page.close()
    other.fill("cross_lingual", "Good morning.", clips[0])
    other.generate("cross_lingual")
    other.wait_for_facts("cross_lingual")
    assert list(outputs.glob("*_77*.*")) == []  # what nobody waits for was not finished first


def test_stop_ends_the_work_and_leaves_the_page_ready(visit: Visit, clips: list[Path], outputs: Path) -> None:
    visitor = visit()
    stop = visitor.page.locator("#cross_lingual-stop")
    visitor.fill("cross_lingual", " ".join([SENTENCE] * 60), clips[0])
    assert stop.is_disabled()
    visitor.page.locator("#cross_lingual-seed input").fill("88")
    visitor.generate("cross_lingual")
    visitor.wait_for_sound()
    stop.click()
    visitor.wait_for_refusal("cross_lingual", "Stopped.")
    assert stop.is_disabled()
    visitor.fill("cross_lingual", "Good morning.")
    visitor.page.locator("#cross_lingual-seed input").fill("89")
    visitor.generate("cross_lingual")
    assert "seed 89" in visitor.wait_for_facts("cross_lingual")
    assert stop.is_disabled() and visitor.problems == []
    assert list(outputs.glob("*_88*.*")) == []


def test_mistakes_are_told_in_a_sentence(visit: Visit, clips: list[Path], tmp_path: Path) -> None:
    visitor = visit()
    visitor.fill("clone", SENTENCE)
    visitor.generate("clone")
    visitor.wait_for_refusal("clone", "Upload or record a clip")
    visitor.fill("clone", "", clips[0])
    visitor.generate("clone")
    visitor.wait_for_refusal("clone", "Write the text")
    visitor.fill("instruct", SENTENCE, clips[0])
    visitor.generate("instruct")
    visitor.wait_for_refusal("instruct", "Write an instruction")
    assert visitor.playlists == [] and visitor.problems == []

    wrong = tmp_path / "holiday.wav"
    wrong.write_bytes(b"This is no sound at all.\n" * 40)
    visitor.fill("cross_lingual", SENTENCE, wrong)
    visitor.generate("cross_lingual")
    sentence = visitor.wait_for_refusal("cross_lingual", "not audio")
    assert sentence.startswith("⚠️") and "\n" not in sentence
    assert visitor.page.locator("#cross_lingual-download").is_disabled()
    assert "Traceback" not in visitor.page.content()


def test_the_language_follows_the_browser_and_the_switch(visit: Visit) -> None:
    visitor = visit("zh-CN", new=True)
    visitor.wait_for_tab("clone", "zh")
    visitor.generate("clone")
    visitor.wait_for_refusal("clone", "请先上传或录制一段参考音频")
    visitor.page.locator("#language").get_by_text("English").click()
    for mode in TABS:
        visitor.wait_for_tab(mode, "en")
    visitor.generate("clone")
    visitor.wait_for_refusal("clone", "Upload or record a clip")
    assert visitor.problems == []


def test_a_newcomer_without_a_clip_hears_something(visit: Visit) -> None:
    """One click for a voice, its words and a text, one for the sound."""
    visitor = visit(new=True)
    visitor.wait_for_tab("clone", "en")
    visitor.page.locator("#clone-example").click()
    visitor.page.locator("#clone-verdict").get_by_text("Good", exact=True).wait_for(timeout=USABLE_MS)
    assert visitor.page.locator("#clone-text textarea").input_value()
    assert "this voice will say it" in visitor.page.locator("#clone-transcript textarea").input_value()
    visitor.generate("clone")
    visitor.wait_for_sound()
    assert "RTF" in visitor.wait_for_facts("clone")
    assert visitor.problems == []


def test_the_words_are_the_reader_s_from_the_first_moment(visit: Visit, studio_url: str) -> None:
    visitor = visit(new=True)
    names = "() => [...document.querySelectorAll('[role=tab]')].map((tab) => tab.innerText).join(' ')"
    visitor.page.add_init_script(
        "window.seen = []; new MutationObserver(() => window.seen.push((" + names + ")()))"
        ".observe(document, { childList: true, subtree: true, characterData: true });"
    )
    visitor.page.goto(studio_url)
    visitor.wait_for_tab("clone", "en")
    visitor.page.wait_for_function("document.documentElement.lang === 'en'", timeout=USABLE_MS)
    seen = visitor.page.evaluate("window.seen")
    assert any("3s Clone" in words for words in seen)
    assert [words for words in seen if re.search("[\u4e00-\u9fff]", words)] == []

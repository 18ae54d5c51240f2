"""The parts of the page in a real browser: clip, text, saved voices, seed, language, colours, keyboard, phone."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.browser.conftest import why_not
from tests.browser.visitor import TABS, USABLE_MS, Visitor
from tests.make_clips import speech, wav_bytes

pytestmark = [pytest.mark.browser, pytest.mark.skipif(bool(why_not()), reason=why_not())]

Visit = Callable[..., Visitor]
ALL_TABS = re.compile("Clone|Cross|Instruct|Voices|Batch|History")
# Controls that a screen reader would have no name for.
NAMELESS = """() => [...document.querySelectorAll('button, input, textarea, select, [role=listbox]')]
    .filter((node) => node.offsetParent !== null && node.type !== 'file')
    .filter((node) => !(node.getAttribute('aria-label') || node.getAttribute('aria-labelledby') || node.title
        || node.innerText?.trim() || [...(node.labels || [])].some((label) => label.innerText.trim())
        || node.closest('label')?.innerText.trim()))
    .map((node) => node.outerHTML.slice(0, 160))"""


def upload(visitor: Visitor, part: str, clip: Path) -> Any:
    """Give a clip to a reference box; the words about it, once they are there."""
    visitor.page.locator(f"#{part}-reference input[type=file]").set_input_files(clip)
    verdict = visitor.page.locator(f"#{part}-verdict .findings")
    verdict.wait_for(timeout=USABLE_MS)
    return visitor.page.locator(f"#{part}-verdict")


def box(visitor: Visitor, name: str) -> Any:
    return visitor.page.locator(f"#{name} input, #{name} textarea").first


def wait_for_value(visitor: Visitor, name: str, value: str) -> None:
    script = "([id, value]) => document.querySelector(`#${id} input, #${id} textarea`)?.value === value"
    visitor.page.wait_for_function(script, arg=[name, value], timeout=USABLE_MS)


def open_tab(visitor: Visitor, name: str) -> None:
    visitor.page.get_by_role("tab", name=name, exact=True).click()


def test_a_long_clip_is_judged_cut_and_heard(visit: Visit, tmp_path: Path) -> None:
    long = tmp_path / "long.wav"
    long.write_bytes(wav_bytes(speech(25.0, 16000), 16000))
    visitor = visit(new=True)
    visitor.wait_for_tab("clone", "en")
    words = upload(visitor, "clone", long).inner_text()
    assert "s usable" in words and "of 25.0 are used" in words and "No transcript" in words
    player = visitor.page.locator("#clone-heard")
    player.get_by_role("button", name=re.compile("Play")).wait_for(timeout=USABLE_MS)
    visitor.page.locator("#language").get_by_text("中文").click()
    visitor.page.locator("#clone-verdict").get_by_text("没有参考文字").wait_for(timeout=USABLE_MS)
    assert visitor.problems == []


@pytest.mark.parametrize(
    ("locale", "words", "table"),
    [
        ("en-US", "choose a sound or a video", "a batch is a .txt"),
        ("zh-CN", "请选一个声音或视频文件", "批量文件应为 .txt"),
    ],
)
def test_gradios_own_messages_are_sentences_too(
    visit: Visit, tmp_path: Path, locale: str, words: str, table: str
) -> None:
    (tmp_path / "notes.txt").write_text("no sound")
    visitor = visit(locale)
    visitor.page.wait_for_function(f"document.documentElement.lang === '{locale.removesuffix('-US')}'")
    files = visitor.page.locator("#clone-reference input[type=file]")
    files.set_input_files(tmp_path / "notes.txt")
    told = visitor.page.get_by_test_id("toast-body")
    told.get_by_text(words).wait_for(timeout=USABLE_MS)
    assert "audio/" not in told.inner_text() and "Warning" not in told.inner_text()
    visitor.page.get_by_role("tab", name=re.compile("^Batch$|^批量合成$")).click()
    (tmp_path / "b.pdf").write_text("no table")
    visitor.page.locator("#batch-file input[type=file]").set_input_files(tmp_path / "b.pdf")
    visitor.page.get_by_test_id("toast-body").get_by_text(table).wait_for(timeout=USABLE_MS)


def test_a_voice_is_saved_used_renamed_and_deleted(visit: Visit, clips: list[Path], tmp_path: Path) -> None:
    visitor = visit()
    visitor.wait_for_tab("clone", "en")
    upload(visitor, "clone", clips[0])
    visitor.page.locator("#tabs").get_by_role("button", name="Save this voice").click()
    box(visitor, "clone-voice-name").fill("Anna")
    visitor.page.locator("#clone-voice-save").click()
    visitor.page.locator("#clone-voice-told").get_by_text("is saved").wait_for(timeout=USABLE_MS)

    other = visit(new=True)  # the library is the studio's
    other.fill("cross_lingual", "Good morning.")
    box(other, "cross_lingual-voice").click()
    other.page.get_by_role("option", name="Anna").click()
    other.page.locator("#cross_lingual-verdict").get_by_text("“Anna”").wait_for(timeout=USABLE_MS)
    assert other.page.locator("#cross_lingual-reference").is_hidden()
    other.generate("cross_lingual")
    other.wait_for_facts("cross_lingual")
    assert "_Anna_" in other.download("cross_lingual").name

    open_tab(visitor, "Voices")
    visitor.page.locator("#voices-list").get_by_text("Anna").click()
    wait_for_value(visitor, "voices-name", "Anna")
    with visitor.page.expect_download() as waiting:
        visitor.page.locator("#voices-export").click()
    assert waiting.value.suggested_filename == "Anna.voice.safetensors"
    box(visitor, "voices-name").fill("Berta")
    visitor.page.locator("#voices-apply").click()
    visitor.page.locator("#voices-list").get_by_text("Berta").wait_for(timeout=USABLE_MS)
    waiting.value.save_as(tmp_path / "anna.voice.safetensors")
    with visitor.page.expect_file_chooser() as choosing:
        visitor.page.locator("#voices-import").click()
    choosing.value.set_files(tmp_path / "anna.voice.safetensors")
    for name in ("Anna", "Berta"):
        visitor.page.locator("#voices-list").get_by_text(name).wait_for(timeout=USABLE_MS)
        visitor.page.locator("#voices-list").get_by_text(name).click()
        wait_for_value(visitor, "voices-name", name)
        visitor.page.locator("#voices-delete").click()
        visitor.page.locator("#voices-delete-sure").click()
        visitor.page.locator("#voices-list").get_by_text(name).wait_for(state="hidden", timeout=USABLE_MS)
    visitor.page.locator("#voices-empty").get_by_text("no saved voices").wait_for(timeout=USABLE_MS)
    assert visitor.problems == [] and other.problems == []


def test_buttons_write_into_the_text_and_the_instruction(visit: Visit) -> None:
    visitor = visit()
    text = visitor.page.locator("#instruct-text textarea")
    open_tab(visitor, "Instruct")
    text.fill("one two three")
    text.evaluate("box => box.setSelectionRange(4, 7)")
    panel = visitor.page.get_by_role("tabpanel").filter(has=text)
    panel.get_by_role("button", name="+ Stress").click()
    wait_for_value(visitor, "instruct-text", "one <strong>two</strong> three")
    text.evaluate("box => box.setSelectionRange(0, 0)")
    panel.get_by_role("button", name="+ Laughter").click()
    wait_for_value(visitor, "instruct-text", "[laughter]one <strong>two</strong> three")
    panel.get_by_role("button", name="Sichuan").click()
    wait_for_value(visitor, "instruct-instruction", "用四川话说这句话")
    panel.get_by_role("button", name="日本語").click()
    count = visitor.page.locator("#instruct-count")
    count.get_by_text("spoken in 1 segment").click()
    count.get_by_text("今日はとてもいい天気ですね").wait_for(timeout=USABLE_MS)
    assert visitor.problems == []


def test_a_new_seed_is_written_back_and_the_format_kept(visit: Visit, clips: list[Path]) -> None:
    av = pytest.importorskip("av")
    visitor = visit()
    visitor.fill("cross_lingual", "Good morning.", clips[0])
    visitor.page.locator("#cross_lingual-keep input").uncheck()
    visitor.page.locator("#cross_lingual-format").get_by_text("ogg").click()
    visitor.page.locator("#cross_lingual-text textarea").press("Control+Enter")
    facts = visitor.wait_for_facts("cross_lingual")
    seed = re.search(r"seed (\d+)", facts)
    assert seed and seed[1] != "0"
    wait_for_value(visitor, "cross_lingual-seed", seed[1])
    with visitor.page.expect_download() as waiting:
        visitor.page.locator("#cross_lingual-download").click()
    assert waiting.value.suggested_filename.endswith(f"_{seed[1]}.ogg")
    with av.open(io.BytesIO(waiting.value.path().read_bytes())) as file:
        samples = np.concatenate([frame.to_ndarray()[0] for frame in file.decode(audio=0)])
    assert np.abs(samples).max() > 0.01
    assert visitor.problems == []


def test_language_and_colours_are_remembered(visit: Visit) -> None:
    visitor = visit(new=True, color_scheme="light")
    page = visitor.page
    visitor.wait_for_tab("clone", "en")
    assert not page.evaluate("document.body.classList.contains('dark')")
    page.locator("#colours").click()
    page.locator("#language").get_by_text("中文").click()
    visitor.wait_for_tab("clone", "zh")
    page.reload()
    visitor.wait_for_tab("clone", "zh")
    page.wait_for_function("document.body.classList.contains('dark')", timeout=USABLE_MS)
    page.wait_for_function("document.documentElement.lang === 'zh-CN'", timeout=USABLE_MS)
    assert visitor.problems == []


@pytest.mark.parametrize("locale", ["en-US", "zh-CN"])
def test_every_control_has_a_name_and_fits_a_phone(visit: Visit, locale: str) -> None:
    visitor = visit(locale, viewport={"width": 390, "height": 844}, is_mobile=True, color_scheme="dark")
    visitor.wait_for_tab("clone", locale[:2])
    for tab in ("clone", "cross_lingual", "instruct", "voices", "batch", "history"):
        visitor.page.locator(f"#tab-{tab}-button").click()
        visitor.page.locator(f"#tab-{tab}").wait_for(timeout=USABLE_MS)
        assert visitor.page.evaluate(NAMELESS) == []
        assert visitor.page.evaluate("document.documentElement.scrollWidth") <= 390
    visitor.page.locator("#tab-clone-button").click()
    visitor.page.locator("#clone-dice").click()
    visitor.page.wait_for_function(
        "document.querySelector('#clone-seed input').value !== '0'", timeout=USABLE_MS
    )
    assert visitor.problems == []


def test_all_tabs_are_named_in_chinese_and_reached_by_keyboard(visit: Visit) -> None:
    visitor = visit(new=True)
    visitor.wait_for_tab("clone", "en").focus()
    names = set()
    for _ in range(6):
        names.add(visitor.page.evaluate("document.activeElement.innerText"))
        visitor.page.keyboard.press("Tab")
    assert {english for english, _ in TABS.values()} <= names
    visitor.page.locator("#language").get_by_text("中文").click()
    visitor.wait_for_tab("instruct", "zh")
    shown = " ".join(visitor.page.get_by_role("tab").all_inner_texts())
    assert not ALL_TABS.search(shown)


def test_the_named_endpoints_speak(studio_url: str, clips: list[Path], tmp_path: Path) -> None:
    """What the page offers to programs: the same three modes, by name."""
    client_module = pytest.importorskip("gradio_client")
    client = client_module.Client(studio_url, verbose=False, download_files=tmp_path, analytics_enabled=False)
    endpoints = client.view_api(return_format="dict", print_info=False)["named_endpoints"]
    assert set(endpoints) == {"/clone", "/cross_lingual", "/instruct"}
    result = client.predict(
        text="Good morning.",
        reference=client_module.handle_file(str(clips[0])),
        extra="",
        seed=5,
        streaming=False,
        language="en",
        audio_format="flac",
        api_name="/cross_lingual",
    )
    assert "seed 5" in str(result)
    values = [value["value"] if isinstance(value, dict) and "value" in value else value for value in result]
    (path,) = {value for value in values if isinstance(value, str) and value.endswith(".flac")}
    assert Path(path).read_bytes()[:4] == b"fLaC"

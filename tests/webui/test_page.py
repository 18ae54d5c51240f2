"""The page's handlers over an engine without a model."""

from __future__ import annotations

import asyncio
import io
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inference.types import Mode, Reference
from tests.webui.fake_pool import FakePool, spoken

gr = pytest.importorskip("gradio")

from webui.page.layout import CSS, MODES, build_page  # noqa: E402
from webui.page.tab import SynthesisTab  # noqa: E402
from webui.page.texts import TEXTS  # noqa: E402
from webui.studio import Studio  # noqa: E402

pytestmark = pytest.mark.unit


def tab_over(engine: FakePool, folder: Path, mode: Mode = Mode.CLONE) -> SynthesisTab:
    with gr.Blocks():
        return SynthesisTab(Studio(engine, folder), mode, gr.Radio(["zh", "en"]), can_stream=True)


def speak(tab: SynthesisTab, *, text: str = "Hello.", clip: str | None = "clip.wav", extra: str = "",
          seed: float | None = 3, streaming: bool = True, language: str = "en") -> list[tuple[Any, ...]]:  # fmt: skip
    async def steps() -> list[tuple[Any, ...]]:
        return [step async for step in tab._speak(text, clip, extra, 1.0, seed, streaming, language)]

    return asyncio.run(steps())


def is_update(value: Any) -> bool:
    return isinstance(value, dict) and value.get("__type__") == "update"


def test_streaming_hands_out_every_chunk_as_a_wav(tmp_path: Path) -> None:
    first, *chunks, last = speak(tab_over(FakePool(), tmp_path))
    assert first[3] == TEXTS["working"]["en"]
    pieces = []
    for live, *rest in chunks:
        with wave.open(io.BytesIO(live)) as sound:
            pieces.append(np.frombuffer(sound.readframes(sound.getnframes()), np.int16))
        assert all(is_update(value) for value in rest)
    np.testing.assert_array_equal(np.concatenate(pieces), spoken(3))
    assert Path(last[1]["value"]).is_file() and last[2]["value"] == last[1]["value"]
    assert last[2]["interactive"] is True
    assert "length 0.6 s" in last[3] and "seed 3" in last[3]


@pytest.mark.parametrize("case", ["whole", "refused", "failed"])
def test_no_stream_is_opened_without_sound_for_it(case: str, tmp_path: Path) -> None:
    # Gradio opens a stream for any value that is no update, and its player then polls an empty one for ever.
    engine = FakePool(fail_after=0 if case == "failed" else None)
    steps = speak(
        tab_over(engine, tmp_path), text="" if case == "refused" else "Hi.", streaming=case != "whole"
    )
    assert all(is_update(step[0]) for step in steps)


@pytest.mark.parametrize(
    ("language", "sentence"), [("zh", "请先填写要合成的文字。"), ("en", "Write the text")]
)
def test_a_refusal_is_a_sentence_in_the_readers_language(
    language: str, sentence: str, tmp_path: Path
) -> None:
    *_, last = speak(tab_over(FakePool(), tmp_path), text="", language=language)
    assert last[3].startswith("⚠️") and sentence in last[3]
    assert last[1] is None and last[2]["interactive"] is False


def test_a_bug_is_logged_and_told_without_its_insides(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    *_, last = speak(tab_over(FakePool(fail_after=1), tmp_path))
    assert TEXTS["unexpected"]["en"] in last[3] and "bug" not in last[3]
    assert "ZeroDivisionError" in caplog.text


def test_warnings_follow_the_facts(tmp_path: Path) -> None:
    *_, last = speak(tab_over(FakePool(warnings=("noisy",)), tmp_path))
    assert "Note: the clip is noisy." in last[3]


def test_leaving_the_page_ends_the_work(tmp_path: Path) -> None:
    pool = FakePool(chunks=1000)

    async def leave() -> None:
        steps = tab_over(pool, tmp_path)._speak("Hi.", "clip.wav", "", 1.0, 0, True, "en")
        await anext(steps), await anext(steps)
        assert pool.running == 1
        await steps.aclose()

    asyncio.run(leave())
    assert (pool.running, pool.closed) == (0, 1)


@pytest.mark.parametrize(("language", "words"), [("zh", "第 2 位"), ("en", "number 2 in the queue")])
def test_the_place_in_the_queue_is_told_in_the_readers_language(
    language: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webui.studio.SIGN_SECONDS", 0.001)
    steps = speak(tab_over(FakePool(position=2, pause=0.01), tmp_path), language=language)
    told = [step[3] for step in steps if isinstance(step[3], str)]
    assert any(words in status for status in told)
    assert told[0] == TEXTS["working"][language]
    assert all(first != second for first, second in zip(told, told[1:]))  # no text is sent again


def test_stop_can_be_pressed_while_there_is_something_to_stop(tmp_path: Path) -> None:
    for pool in (FakePool(), FakePool(fail_after=1)):
        steps = speak(tab_over(pool, tmp_path))
        assert steps[0][4]["interactive"] is True and steps[-1][4]["interactive"] is False


@pytest.mark.parametrize(
    ("mode", "transcript", "instruction"),
    [(Mode.CLONE, "extra", ""), (Mode.CROSS_LINGUAL, "", ""), (Mode.INSTRUCT, "", "extra")],
)
def test_each_tab_asks_for_its_mode(mode: Mode, transcript: str, instruction: str, tmp_path: Path) -> None:
    engine = FakePool()
    speak(tab_over(engine, tmp_path, mode), extra="extra", seed=None)
    (asked,) = engine.requests
    assert asked.mode is mode and asked.seed == 0 and asked.stream and asked.instruction == instruction
    assert asked.voice == Reference(Path("clip.wav"), transcript)


@pytest.mark.parametrize("can_stream", [True, False])
def test_the_page_has_the_three_tabs(can_stream: bool, tmp_path: Path) -> None:
    page = build_page(Studio(FakePool(), tmp_path), can_stream=can_stream, notice="notice_bundled")
    names = {getattr(block, "elem_id", None) for block in page.blocks.values()}
    for mode in MODES:
        for part in (
            "text",
            "reference",
            "speed",
            "seed",
            "dice",
            "streaming",
            "generate",
            "stop",
            "result",
            "download",
        ):
            assert f"{mode.value}-{part}" in names
    assert {"clone-transcript", "instruct-instruction", "notice"} <= names
    assert CSS.is_file()


def test_without_ffmpeg_streaming_is_off_and_cannot_be_chosen(tmp_path: Path) -> None:
    page = build_page(Studio(FakePool(), tmp_path), can_stream=False)
    boxes = [block for block in page.blocks.values() if isinstance(block, gr.Checkbox)]
    assert len(boxes) == len(MODES)
    assert all(box.value is False and box.interactive is False for box in boxes)

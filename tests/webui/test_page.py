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
from inference.voices import VoiceLibrary
from tests.voice_support import made_voice, prepared_clip
from tests.webui.fake_pool import FakePool, spoken

gr = pytest.importorskip("gradio")

from webui.page.context import PageContext  # noqa: E402
from webui.page.layout import CSS, MODES, build_page  # noqa: E402
from webui.page.tab import SynthesisTab  # noqa: E402
from webui.page.texts import TEXTS  # noqa: E402
from webui.studio import Studio  # noqa: E402

pytestmark = pytest.mark.unit


def tab_over(
    engine: FakePool, folder: Path, mode: Mode = Mode.CLONE, voices: VoiceLibrary | None = None
) -> SynthesisTab:
    with gr.Blocks():
        studio = Studio(engine, folder, voices=voices)
        return SynthesisTab(PageContext(studio, gr.Radio(["zh", "en"]), can_stream=True), mode)


def speak(tab: SynthesisTab, *, text: str = "Hello.", clip: str | None = "clip.wav", extra: str = "",
          seed: float | None = 3, streaming: bool = True, language: str = "en", voice: str = "",
          keep_seed: bool = True, audio_format: str = "wav") -> list[tuple[Any, ...]]:  # fmt: skip
    async def steps() -> list[tuple[Any, ...]]:
        given = (text, clip, extra, 1.0, seed, streaming, language, voice, keep_seed, audio_format)
        return [step async for step in tab._speak(*given)]

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
        assert all(is_update(value) for value in (*rest[:2], *rest[3:]))
        assert "made" in rest[2]
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
    monkeypatch.setattr("webui.speaking.SIGN_SECONDS", 0.001)
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


@pytest.mark.parametrize("mode", MODES)
def test_what_is_missing_is_left_to_the_pool_to_say(mode: Mode, tmp_path: Path) -> None:
    engine = FakePool()
    speak(tab_over(engine, tmp_path, mode), clip=None)
    assert engine.requests[-1].voice is None


def test_a_seed_that_is_not_kept_is_drawn_and_written_back(tmp_path: Path) -> None:
    engine = FakePool()
    tab = tab_over(engine, tmp_path)
    for _ in range(2):
        first, *_, last = speak(tab, seed=3, keep_seed=False)
        assert first[5] == engine.requests[-1].seed and f"seed {first[5]}" in last[3]
    assert len({request.seed for request in engine.requests} | {3}) == 3
    kept = speak(tab, seed=3)
    assert engine.requests[-1].seed == 3 and all(is_update(step[5]) for step in kept)


@pytest.mark.parametrize("audio_format", ["flac", "mp3", "ogg"])
def test_the_file_has_the_format_that_was_asked_for(audio_format: str, tmp_path: Path) -> None:
    *_, last = speak(tab_over(FakePool(), tmp_path), audio_format=audio_format)
    assert Path(last[1]["value"]).suffix == f".{audio_format}"


@pytest.mark.parametrize(
    ("mode", "transcript", "told"),
    [(Mode.CLONE, "", True), (Mode.CLONE, "Words.", False), (Mode.CROSS_LINGUAL, "", False)],
)
def test_a_clone_without_a_transcript_is_told_to_be_none(
    mode: Mode, transcript: str, told: bool, tmp_path: Path
) -> None:
    *_, last = speak(tab_over(FakePool(), tmp_path, mode), extra=transcript)
    assert (TEXTS["spoken_without_transcript"]["en"] in last[3]) is told


def test_a_saved_voice_goes_before_the_clip(tmp_path: Path) -> None:
    library = VoiceLibrary(tmp_path / "voices")
    entry = library.save("Anna", made_voice(), prepared_clip())
    engine = FakePool()
    tab = tab_over(engine, tmp_path / "out", voices=library)
    *_, last = speak(tab, voice=entry.id)
    assert engine.requests[-1].voice == entry.id and "_Anna_" in Path(last[1]["value"]).name
    *_, last = speak(tab, voice="nobody")
    assert len(engine.requests) == 1 and "no saved voice" in last[3]


def test_what_was_set_can_be_filled_in_again(tmp_path: Path) -> None:
    tab = tab_over(FakePool(), tmp_path)
    components = tab.settings_components
    updates = tab.settings_updates({"text": "Again.", "seed": 7, "mode": "clone"})
    assert len(updates) == len(components)
    filled = {
        component.elem_id: update["value"]
        for component, update in zip(components, updates)
        if "value" in update
    }
    assert filled == {"clone-text": "Again.", "clone-seed": 7}


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
            "format",
            "keep",
            "count",
            "verdict",
        ):
            assert f"{mode.value}-{part}" in names
    assert {"clone-transcript", "instruct-instruction", "notice"} <= names
    assert CSS.is_file()


def test_without_ffmpeg_streaming_is_off_and_cannot_be_chosen(tmp_path: Path) -> None:
    page = build_page(Studio(FakePool(), tmp_path), can_stream=False)
    boxes = [block for block in page.blocks.values() if str(block.elem_id).endswith("-streaming")]
    assert len(boxes) == len(MODES)
    assert all(box.value is False and box.interactive is False for box in boxes)

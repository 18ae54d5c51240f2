"""The parts of the tabs: what is said about a clip, the count of a text, saving a voice, presets, the tab of voices."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inference.frontend.audio import Clip
from inference.frontend.reference import prepare_clip
from inference.types import EngineError, Mode, Reference, Voice
from inference.voices import VoiceLibrary
from tests.make_clips import noise, silence, speech, wav_bytes
from tests.voice_support import made_voice, prepared_clip
from tests.webui.fake_pool import FakePool

gr = pytest.importorskip("gradio")

from webui.page.context import PageContext  # noqa: E402
from webui.page.examples import EXAMPLES, PRESETS, VOICE  # noqa: E402
from webui.page.layout import build_page  # noqa: E402
from webui.page.reference import ReferencePicker  # noqa: E402
from webui.page.tab import SynthesisTab  # noqa: E402
from webui.page.text_part import TextPart  # noqa: E402
from webui.page.texts import TEXTS  # noqa: E402
from webui.page.verdict import verdict_html  # noqa: E402
from webui.page.video import playable, sound_of_video  # noqa: E402
from webui.page.voice_saving import VoiceSaver  # noqa: E402
from webui.page.voices_tab import VoicesTab  # noqa: E402
from webui.preview import TextPreview  # noqa: E402
from webui.studio import Studio  # noqa: E402

pytestmark = pytest.mark.unit

NANO = Path(__file__).resolve().parents[2] / "assets" / "nano"
RATE = 16000


class PreparingPool(FakePool):
    """One whose voices can be saved; notes the clips it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.clips: list[Reference] = []

    async def voice(self, reference: Reference) -> Voice:
        self.clips.append(reference)
        return made_voice(reference.transcript)


@pytest.fixture
def context(tmp_path: Path) -> PageContext:
    library = VoiceLibrary(tmp_path / "voices")
    studio = Studio(
        PreparingPool(), tmp_path / "out", voices=library, texts=TextPreview(NANO) if NANO.is_dir() else None
    )
    with gr.Blocks():
        return PageContext(studio, gr.Radio(["zh", "en"]), can_stream=True)


def build(kind: Any, context: PageContext, *arguments: Any, **named: Any) -> Any:
    with gr.Blocks():
        return kind(context, *arguments, **named)


def clip_file(folder: Path, samples: np.ndarray, name: str = "anna.wav") -> str:
    path = folder / name
    path.write_bytes(wav_bytes(samples, RATE))
    return str(path)


# -------------------------------------------------------------------------------------------- reference clips
@pytest.mark.parametrize(
    ("samples", "quality", "chips"),
    [
        (speech(5.0, RATE), "Good", {"good level", "clean background", "no clipping"}),
        (0.01 * speech(5.0, RATE), "Usable", {"quiet", "no clipping"}),
        (0.3 * speech(5.0, RATE) + noise(5.0, RATE, -24), "Better record again", {"noisy"}),
        (np.clip(9 * speech(5.0, RATE), -1, 1), "Better record again", {"clipped"}),
        (speech(1.0, RATE), "Better record again", {"good level"}),
    ],
    ids=["clean", "quiet", "noisy", "clipped", "short"],
)
def test_a_clip_is_judged_in_words(samples: np.ndarray, quality: str, chips: set[str]) -> None:
    html = verdict_html(prepare_clip(Clip(samples.astype(np.float32), RATE)).report, "en")
    assert f">{quality}</strong>" in html and re.search(r"\d\.\d s usable", html)
    assert chips <= set(re.findall(r'class="chip \w+">([^<]+)<', html))
    chinese = verdict_html(prepare_clip(Clip(samples.astype(np.float32), RATE)).report, "zh")
    assert "可用" in chinese and not re.search(r">[^<]*[a-z]{4,}[^<]*<", chinese)


def test_a_long_clip_is_cut_and_the_cut_can_be_heard(context: PageContext, tmp_path: Path) -> None:
    picker = build(ReferencePicker, context, "x")
    path = clip_file(tmp_path, speech(25.0, RATE))
    html, player = asyncio.run(picker._examine("", path, "", "en"))
    rate, pcm = player["value"]
    assert player["visible"] is True and pcm.dtype == np.int16 and 3.0 <= len(pcm) / rate <= 11.0
    seconds = float(re.search(r"([\d.]+) s usable", html)[1])  # type: ignore[index]
    assert seconds == pytest.approx(len(pcm) / rate, abs=0.1) and "of 25.0 are used" in html
    html, player = asyncio.run(picker._examine("", clip_file(tmp_path, speech(5.0, RATE)), "", "en"))
    assert player["visible"] is False and "are used" not in html


def test_a_clip_is_prepared_while_the_visitor_types(context: PageContext, tmp_path: Path) -> None:
    picker = build(ReferencePicker, context, "x")
    path = clip_file(tmp_path, speech(5.0, RATE))

    async def upload() -> None:
        await picker._examine("", path, "Said.", "en")
        await asyncio.gather(*picker._tasks)

    asyncio.run(upload())
    pool = context.studio.pool
    assert isinstance(pool, PreparingPool) and pool.clips == [Reference(Path(path), "Said.")]


def test_what_the_transcript_means_is_told(context: PageContext, tmp_path: Path) -> None:
    path = clip_file(tmp_path, speech(5.0, RATE))
    asking = build(ReferencePicker, context, "x")
    told = {
        said: asyncio.run(asking._examine("", path, said, "en"))[0]
        for said in ("", "Word.", "one two three four five")
    }
    assert TEXTS["without_transcript"]["en"] in told[""]
    assert TEXTS["doubtful"]["en"] in told["Word."].replace("&#x27;", "'")
    assert "ranscript" not in told["one two three four five"]
    silent = build(ReferencePicker, context, "x", transcript=False)
    assert "ranscript" not in asyncio.run(silent._examine("", path, "", "en"))[0]
    assert silent.voice_of("", path, "left over")[0] == Reference(Path(path), "")


def test_what_is_wrong_with_a_clip_is_a_sentence_in_both_languages(
    context: PageContext, tmp_path: Path
) -> None:
    picker = build(ReferencePicker, context, "x")
    path = clip_file(tmp_path, silence(4.0, RATE))
    for language, words in (("en", "The reference clip is silent"), ("zh", "参考音频没有声音")):
        html, player = asyncio.run(picker._examine("", path, "", language))
        assert words in html and player["visible"] is False
    assert asyncio.run(picker._examine("", None, "", "en"))[0] == ""
    # The answer to the opening of the page may come after that to an upload, and must not wipe it out.
    assert picker._retell("", None, "", "en")[0] == gr.skip()


def test_html_in_a_name_or_transcript_stays_text(context: PageContext) -> None:
    library = context.studio.voices
    assert library is not None
    entry = library.save("<b>Anna</b>", made_voice("<img src=x onerror=alert(1)>"), prepared_clip())
    picker = build(ReferencePicker, context, "x")
    html, player = asyncio.run(picker._examine(entry.id, None, "", "en"))
    assert "<b>" not in html and "<img" not in html and player["visible"] is True


def test_a_transcriber_fills_in_the_words(context: PageContext, tmp_path: Path) -> None:
    def write_down(clip: Path) -> str:
        if clip.name == "bad.wav":
            raise EngineError("transcription_failed", "The clip could not be transcribed.")
        return "What is said."

    assert build(ReferencePicker, context, "x")._transcribe.visible is False
    context.studio.transcriber = write_down
    picker = build(ReferencePicker, context, "x")
    path = clip_file(tmp_path, speech(5.0, RATE))
    assert picker._transcribe.visible is True
    assert asyncio.run(picker._write_down(path, "en"))[0] == "What is said."
    bad = clip_file(tmp_path, speech(5.0, RATE), "bad.wav")
    assert "没能识别" in asyncio.run(picker._write_down(bad, "zh"))[1]
    said, verdict, *_ = asyncio.run(picker._fill_in("", path, "en"))
    assert said == "What is said." and "5.0 s usable" in verdict
    for clip, words in ((None, "Upload or record a clip"), (bad, "could not be transcribed")):
        said, verdict, *rest = asyncio.run(picker._fill_in("", clip, "en"))
        assert said == gr.skip() and words in verdict and rest == [gr.skip()] * 2


def test_the_example_voice_comes_with_its_words_and_a_text(context: PageContext, tmp_path: Path) -> None:
    asking, silent = (build(ReferencePicker, context, "x", transcript=asked) for asked in (True, False))
    clip, said = asking._take_example()
    assert VOICE.stat().st_size < 200_000 and Path(clip).read_bytes() == VOICE.read_bytes()
    assert "voice" in said and silent._take_example()[1] == gr.skip()
    html, player = asyncio.run(asking._examine("", clip, said, "en"))
    assert ">Good</strong>" in html and player["visible"] is False and "transcript" not in html
    tab = build(SynthesisTab, context, Mode.CLONE)
    assert tab._suggest(" ", "zh") == EXAMPLES["中文"] and tab._suggest(None, "en") == EXAMPLES["English"]
    assert tab._suggest("My own.", "en") == gr.skip()


def test_a_clip_that_no_browser_plays_is_made_playable(tmp_path: Path) -> None:
    path = tmp_path / "phone.caf"  # the name alone decides; what is in it is found out by the decoder
    path.write_bytes(wav_bytes(speech(2.0, RATE), RATE))
    rate, pcm = playable(str(path))["value"]
    assert rate == RATE and pcm.dtype == np.int16 and len(pcm) == 2 * RATE
    path.write_bytes(b"no sound at all")
    for given in (str(path), clip_file(tmp_path, speech(2.0, RATE), "me.WAV"), None):
        assert playable(given) == gr.skip()


@pytest.mark.parametrize("name", ["phone.mp4", "recorder.webm"])
def test_of_a_video_the_sound_is_kept(tmp_path: Path, name: str) -> None:
    rate, pcm = playable(clip_file(tmp_path, speech(2.0, RATE), name))["value"]
    assert rate == RATE and len(pcm) == 2 * RATE


@pytest.mark.parametrize(("language", "words"), [("en", "not audio"), ("zh", "不是音频")])
def test_a_video_that_fails_is_told_in_passing_and_the_clip_stays(
    context: PageContext, tmp_path: Path, language: str, words: str
) -> None:
    path = tmp_path / "film.mp4"
    path.write_bytes(b"no film at all" * 100)
    with pytest.warns(UserWarning, match=f"^⚠️ .*{words}"):
        assert sound_of_video(str(path), language) == gr.skip()
    with gr.Blocks() as page:
        picker = ReferencePicker(context, "x")
    (event,) = (one for one in page.fns.values() if one.fn and one.fn.__name__ == "sound_of_video")
    assert event.outputs == [picker.audio]  # what is said of the clip before stays too


def test_a_clip_can_be_saved_once_there_is_one(context: PageContext, tmp_path: Path) -> None:
    picker = build(ReferencePicker, context, "x")
    path = clip_file(tmp_path, speech(5.0, RATE))
    assert picker._saver.fold.visible is False
    for voice, clip, offered in (("", path, True), ("", None, False), ("anna", path, False)):
        assert asyncio.run(picker._tell(voice, clip, "", "en"))[-1]["visible"] is offered


# -------------------------------------------------------------------------------------------------- the text
@pytest.mark.skipif(not NANO.is_dir(), reason="needs the bundled tokenizer")
def test_the_segments_that_will_be_spoken_are_shown(context: PageContext) -> None:
    part = build(TextPart, context, "x")
    html = part._tell("In 2024 we sold 1,305 <units>.", "en")
    assert "30 / 5000 characters" in html and "1 segment" in html
    assert "twenty twenty four" in html and "one thousand three hundred" in html
    assert "<units>" not in html
    many = part._tell("这是一句比较长的话，用来看看它会被分成几段。" * 20, "zh")
    count = int(re.search(r"分 (\d+) 段朗读", many)[1])  # type: ignore[index]
    assert count > 1 and many.count("<li>") == count
    assert "没有可以朗读的内容" in part._tell("。。。", "zh")
    assert "0 / 5000" in part._tell("", "en") and "<li>" not in part._tell("  ", "en")


def test_presets_are_grouped_named_in_both_languages_and_valid_instructions() -> None:
    assert list(PRESETS) == ["presets_dialect", "presets_emotion", "presets_pace", "presets_role"]
    for group, presets in PRESETS.items():
        assert group in TEXTS and len(presets) >= 4
        for key, instruction in presets:
            assert key in TEXTS and 0 < len(instruction) < 30 and "<|" not in instruction
    assert len(EXAMPLES) >= 4


def test_scripts_of_buttons_are_well_formed(tmp_path: Path) -> None:
    """What the buttons put in is one JSON string, whatever is in the text."""
    page = build_page(Studio(FakePool(), tmp_path), can_stream=True)
    scripts = [
        str(event.js) for event in page.fns.values() if event.js and str(event.js).startswith('() => "')
    ]
    assert len(scripts) == 3 * len(EXAMPLES) + sum(map(len, PRESETS.values()))
    assert all(json.loads(script[len("() => ") :]) for script in scripts)


# ----------------------------------------------------------------------------------------------- saved voices
def test_a_clip_is_saved_from_a_tab(context: PageContext, tmp_path: Path) -> None:
    saver = build(VoiceSaver, context, "x", gr.Audio(render=False), gr.Textbox(render=False))
    path = clip_file(tmp_path, speech(5.0, RATE))
    box, told = asyncio.run(saver._keep("Anna", path, "Said.", "en"))
    assert box == "" and "“Anna” is saved" in told
    library = context.studio.voices
    assert library is not None and [entry.transcript for entry in library.voices()] == ["Said."]
    assert "already" in asyncio.run(saver._keep("anna", path, "", "en"))[1]
    assert "名字" in asyncio.run(saver._keep(" ", path, "", "zh"))[1]
    assert "Upload or record" in asyncio.run(saver._keep("Berta", None, "", "en"))[1]


def test_the_tab_of_voices_changes_the_library(context: PageContext, tmp_path: Path) -> None:
    library = context.studio.voices
    assert library is not None
    tab = build(VoicesTab, context)
    assert TEXTS["voices_none"]["en"] in tab._facts_again(None, "en")[1]
    entry = library.save("Anna", made_voice("Said."), prepared_clip())
    visible, (rate, pcm), facts, name, transcript, export, *_ = tab._show(entry.id, "en")
    assert visible["visible"] and rate == 24000 and len(pcm) and (name, transcript) == ("Anna", "Said.")
    exported = Path(export["value"])
    assert exported.name == "Anna.voice.safetensors"

    choice, told = asyncio.run(tab._change(entry.id, "Berta", "Put right.", "en"))
    assert choice["choices"] == [("Berta", entry.id)] and choice["value"] == entry.id and "Berta" in told
    assert library.find(entry.id).transcript == "Put right."
    choice, told = asyncio.run(tab._take_in(str(exported), "zh"))
    assert [label for label, _ in choice["choices"]] == ["Anna", "Berta"] and "已导入「Anna」" in told
    choice, told = asyncio.run(tab._remove(entry.id, "en"))
    assert choice["value"] is None and [label for label, _ in choice["choices"]] == ["Anna"]
    assert "There is no saved voice" in asyncio.run(tab._remove(entry.id, "en"))[1]
    (tmp_path / "x.safetensors").write_bytes(b"no voice")
    assert "不是本工作室" in asyncio.run(tab._take_in(str(tmp_path / "x.safetensors"), "zh"))[1]


def test_a_locked_library_offers_no_changes(tmp_path: Path) -> None:
    VoiceLibrary(tmp_path / "voices").save("Anna", made_voice(), prepared_clip())
    library = VoiceLibrary(tmp_path / "voices", locked=True)
    page = build_page(Studio(FakePool(), tmp_path / "out", voices=library), can_stream=True)
    names = {str(getattr(block, "elem_id", "")) for block in page.blocks.values()}
    assert {"voices-list", "clone-voice"} <= names
    assert not names & {"voices-import", "clone-voice-save", "new-voice-save"}


@pytest.mark.parametrize(("locked", "ending"), [(True, "_locked"), (False, "")])
def test_an_empty_library_invites_only_to_what_can_be_done(tmp_path: Path, locked: bool, ending: str) -> None:
    library = VoiceLibrary(tmp_path / "voices", locked=locked)
    with gr.Blocks():
        studio = Studio(FakePool(), tmp_path / "out", voices=library)
        known = PageContext(studio, gr.Radio(["zh", "en"]), can_stream=True)
        tab = VoicesTab(known)
    for language in ("zh", "en"):
        assert TEXTS[f"voices_none{ending}"][language] in tab._facts_again(None, language)[1]
    assert f"about_voices{ending}" in [one.properties.get("value") for one in known.translated]


def test_what_was_said_before_goes_with_its_language(tmp_path: Path) -> None:
    studio = Studio(FakePool(), tmp_path / "out", voices=VoiceLibrary(tmp_path / "voices"))
    page = build_page(studio, can_stream=True)
    sentences = {f"{name}-voice-told" for name in ("clone", "cross_lingual", "instruct", "batch", "new")}
    sentences |= {f"{name}-status" for name in ("clone", "cross_lingual", "instruct", "batch")}
    (event,) = (one for one in page.fns.values() if str(one.js).startswith('() => ["'))
    (switch,) = (block for block in page.blocks.values() if block.elem_id == "language")
    assert event.targets == [(switch._id, "input")]
    emptied = {part.elem_id for part in event.outputs}
    assert emptied == sentences | {"voices-told"}
    assert json.loads(str(event.js).removeprefix("() => ")) == [""] * len(emptied)

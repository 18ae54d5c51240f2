"""What people get wrong: one typed error each, and the engine serves the next request as if nothing had happened."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inference import CosyVoice, Mode, Reference
from inference.types import CheckpointError, Int16Audio, RequestError
from tests.engine_support import CLIP, GOOD, REQUESTS, pcm_of
from tests.make_clips import Audio, noise, silence, speech, wav_bytes

pytestmark = pytest.mark.e2e
NOWHERE = Path("/nowhere/clip.wav")


def clip(samples: Audio, rate: int = 16000, transcript: str = "") -> Reference:
    return Reference(wav_bytes(samples, rate), transcript)


SILENT = clip(silence(4.0, 16000))
BRIEF = clip(speech(0.2, 16000))
TRUNCATED = Reference(wav_bytes(speech(4.0, 16000), 16000)[:30])

BAD: list[tuple[str, Mode, dict[str, Any], str]] = [
    ("no text", Mode.CLONE, {"text": ""}, "empty_text"),
    ("white space", Mode.CLONE, {"text": " \n\t　"}, "empty_text"),
    ("40,000 characters", Mode.CLONE, {"text": "word " * 8000}, "text_too_long"),
    ("punctuation", Mode.CROSS_LINGUAL, {"text": "?!… 。、—"}, "nothing_to_speak"),
    ("emoji", Mode.PRESET, {"text": "🙂🎉"}, "nothing_to_speak"),
    ("control tags", Mode.CLONE, {"text": "<|endofprompt|>"}, "nothing_to_speak"),
    ("language", Mode.CLONE, {"language": "klingon"}, "unknown_language"),
    ("mode", Mode.CLONE, {"mode": "sing"}, "unknown_mode"),
    ("no mode", Mode.CLONE, {"mode": None}, "unknown_mode"),
    ("speed", Mode.CLONE, {"speed": 3.0}, "bad_speed"),
    ("seed", Mode.CLONE, {"seed": -1}, "bad_seed"),
    ("no reference", Mode.CLONE, {"voice": None}, "reference_missing"),
    ("silent reference", Mode.CLONE, {"voice": SILENT}, "reference_silent"),
    ("0.2 s reference", Mode.INSTRUCT, {"voice": BRIEF}, "reference_too_short"),
    ("no such file", Mode.CLONE, {"voice": Reference(NOWHERE)}, "audio_missing"),
    ("a folder", Mode.CLONE, {"voice": Reference(Path("/"))}, "audio_missing"),
    ("no bytes", Mode.CLONE, {"voice": Reference(b"")}, "audio_empty"),
    ("no sound file", Mode.CLONE, {"voice": Reference(b"%PDF-1.7 " * 500)}, "audio_unreadable"),
    ("cut-off file", Mode.CLONE, {"voice": TRUNCATED}, "audio_unreadable"),
    ("no instruction", Mode.INSTRUCT, {"instruction": " "}, "instruction_missing"),
    ("a tag alone", Mode.INSTRUCT, {"instruction": "<|endofprompt|>"}, "instruction_missing"),
    ("long instruction", Mode.INSTRUCT, {"instruction": "x" * 301}, "instruction_too_long"),
    ("no preset", Mode.PRESET, {"voice": ""}, "preset_missing"),
    ("unknown preset", Mode.PRESET, {"voice": "nobody"}, "preset_unknown"),
    ("no source", Mode.CONVERT, {"source": None}, "source_missing"),
    ("silent source", Mode.CONVERT, {"source": SILENT}, "source_silent"),
    ("no source file", Mode.CONVERT, {"source": Reference(NOWHERE)}, "audio_missing"),
    ("no target", Mode.CONVERT, {"voice": None}, "reference_missing"),
    (
        "long exact reference",
        Mode.CROSS_LINGUAL,
        {"voice": clip(speech(31.0, 16000)), "exact": True},
        "reference_too_long",
    ),
    (
        "speed of an exact stream",
        Mode.CLONE,
        {"speed": 1.2, "exact": True, "stream": True},
        "speed_not_exact",
    ),
]


@pytest.fixture(scope="module")
def engine(random_model_dir: Path) -> CosyVoice:
    return CosyVoice(random_model_dir, device="cpu")


@pytest.fixture(scope="module")
def good(engine: CosyVoice) -> Int16Audio:
    return pcm_of(list(engine.synthesize(GOOD)))


@pytest.mark.parametrize(
    ("mode", "change", "code"), [case[1:] for case in BAD], ids=[case[0] for case in BAD]
)
def test_one_typed_error_each(
    engine: CosyVoice, good: Int16Audio, mode: Mode, change: dict[str, Any], code: str
) -> None:
    with pytest.raises(RequestError) as caught:  # at once, not when the sound is asked for
        engine.synthesize(replace(REQUESTS[mode], **change))
    assert caught.value.code == code
    sentence = str(caught.value)
    assert sentence.endswith(".") and "\n" not in sentence and len(sentence) < 300
    assert np.array_equal(good, pcm_of(list(engine.synthesize(GOOD))))


# ---------------------------------------------------------------------------- odd, but good enough to speak
def test_without_transcript_a_clone_takes_the_cross_lingual_form(engine: CosyVoice) -> None:
    plain = replace(GOOD, voice=Reference(CLIP.audio))
    crossed = pcm_of(list(engine.synthesize(replace(plain, mode=Mode.CROSS_LINGUAL))))
    assert np.array_equal(crossed, pcm_of(list(engine.synthesize(plain))))
    dots = replace(GOOD, voice=Reference(CLIP.audio, " ... "))
    assert np.array_equal(crossed, pcm_of(list(engine.synthesize(dots))))


def test_a_clipped_reference_is_used_with_a_warning(engine: CosyVoice, good: Int16Audio) -> None:
    clipped = clip(np.clip(speech(4.0, 16000) * 8, -1, 1), transcript="this is a test")
    report = engine.prepare_voice(clipped).report
    assert report is not None and "clipped" in report.warnings
    assert len(pcm_of(list(engine.synthesize(replace(GOOD, voice=clipped))))) > 0
    assert np.array_equal(good, pcm_of(list(engine.synthesize(GOOD))))


def test_of_a_45_s_reference_the_best_part_is_used(engine: CosyVoice, good: Int16Audio) -> None:
    samples = speech(45.0, 16000) + noise(45.0, 16000, -60.0)
    long = clip(samples, transcript="this is a test")
    voice = engine.prepare_voice(long)
    assert voice.report is not None
    assert {"long_cut", "transcript_dropped"} <= set(voice.report.warnings)
    assert voice.report.used_end - voice.report.used_start <= 30 and len(voice.speech_tokens) <= 30 * 25
    assert len(pcm_of(list(engine.synthesize(replace(GOOD, voice=long))))) > 0
    assert np.array_equal(good, pcm_of(list(engine.synthesize(GOOD))))


# --------------------------------------------------------------------------------------------- model folders
def _halve(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])

    return damage


def _remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


DAMAGES = {
    f"{word} {name}": (damage(name), name)
    for word, damage in (("no", _remove), ("half", _halve))
    for name in (
        "cosyvoice2.yaml",
        "llm.pt",
        "flow.pt",
        "hift.pt",
        "campplus.onnx",
        "speech_tokenizer_v2.onnx",
        "CosyVoice-BlankEN/vocab.json",
        "CosyVoice-BlankEN/merges.txt",
        "CosyVoice-BlankEN/config.json",
    )
}
# Half a list of merges is a valid, shorter list: only `download`, which knows the sizes, can tell.
del DAMAGES["half CosyVoice-BlankEN/merges.txt"]


@pytest.mark.parametrize(("damage", "name"), DAMAGES.values(), ids=DAMAGES.keys())
def test_a_half_downloaded_folder(
    random_model_dir: Path, tmp_path: Path, damage: Callable[[Path], None], name: str
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(random_model_dir, folder)
    damage(folder)
    with pytest.raises(CheckpointError) as caught:
        CosyVoice(folder, device="cpu")
    assert name.rpartition("/")[2] in str(caught.value)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"device": "cuda:99"}, "unknown_device"),
        ({"device": "abacus"}, "unknown_device"),
        ({"device": "meta"}, "unknown_device"),
        ({"precision": "fp8"}, "unknown_precision"),
    ],
)
def test_unknown_device_or_precision(random_model_dir: Path, options: dict[str, str], code: str) -> None:
    with pytest.raises(RequestError) as caught:
        CosyVoice(random_model_dir, **{"device": "cpu", **options})
    assert caught.value.code == code

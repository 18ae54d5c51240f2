"""Clips to voices: recorded modes, limits, cache (SPEC 2.5, 2.7; CASES 18 to 27)."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from inference.frontend import voice as voice_module
from inference.frontend.onnx_models import SpeakerEncoder, SpeechTokenizer
from inference.frontend.voice import VoicePreparer
from inference.types import CheckpointError, Reference, RequestError
from tests.golden_data import load_case, parametrize
from tests.make_clips import REAL_CLIPS, av_bytes, noise, silence, speech, wav_bytes

torch.set_num_threads(1)
pytest.importorskip("onnxruntime")

STUBS = REAL_CLIPS.parent / "stub_onnx"


@pytest.fixture(scope="module")
def shared_preparer() -> VoicePreparer:
    if not STUBS.is_dir():
        pytest.skip(f"no folder {STUBS}")
    return VoicePreparer(STUBS / "campplus.onnx", STUBS / "speech_tokenizer_v2.onnx")


@pytest.fixture
def preparer(shared_preparer: VoicePreparer) -> VoicePreparer:
    shared_preparer._cache.clear()
    return shared_preparer


@pytest.mark.golden
@parametrize("name", "frontend_mode")
def test_every_recorded_mode(name: str, preparer: VoicePreparer) -> None:
    case = load_case(name)
    inputs, arrays = case.meta["inputs"], case.arrays
    if "wav" not in inputs:
        pytest.skip("a preset voice: no audio in this mode")
    root = Path(case.folder).parent
    converts = case.meta["mode"] == "vc"
    voice = preparer.prepare(Reference(root / inputs["wav"]), exact=True, untrimmed=converts)
    assert np.array_equal(voice.speech_tokens, arrays["flow_prompt_speech_token"][0])
    assert voice.mel.shape == arrays["prompt_speech_feat"][0].shape
    assert np.abs(voice.mel - arrays["prompt_speech_feat"][0]).max() <= 1e-4
    assert np.abs(voice.speaker - arrays["flow_embedding"][0]).max() <= 1e-4
    if "llm_prompt_speech_token" in arrays:
        assert np.array_equal(voice.speech_tokens, arrays["llm_prompt_speech_token"][0])
    if "source_speech_token" in arrays:
        tokens = preparer.source_tokens(Reference(root / inputs["source"]), exact=True)
        assert np.array_equal(tokens, arrays["source_speech_token"][0])
        assert tokens.dtype == np.int32


@pytest.mark.unit
@pytest.mark.parametrize("seconds", [0.9, 3.0, 3.013, 7.77, 11.99])
@pytest.mark.parametrize("rate", [8000, 16000, 22050, 44100, 44101, 48000])
def test_shapes_match(seconds: float, rate: int, preparer: VoicePreparer) -> None:
    voice = preparer.prepare(Reference(wav_bytes(speech(seconds, rate), rate), "words"))
    count = len(voice.speech_tokens)
    assert count > 0
    assert voice.speech_tokens.dtype == np.int32
    assert voice.mel.shape == (2 * count, 80)
    assert voice.mel.dtype == np.float32
    assert voice.speaker.shape == (192,)
    assert voice.transcript == "words"
    assert np.isfinite(voice.mel).all()


@pytest.mark.unit
def test_untrimmed_keeps_what_does_not_match(preparer: VoicePreparer) -> None:
    data = Reference(wav_bytes(speech(3.03, 24000), 24000))
    whole = preparer.prepare(data, exact=True, untrimmed=True)
    trimmed = preparer.prepare(data, exact=True)
    assert (len(whole.mel), len(whole.speech_tokens)) == (151, 76)
    assert (len(trimmed.mel), len(trimmed.speech_tokens)) == (150, 75)


@pytest.mark.unit
def test_real_clips_by_default_and_with_words(preparer: VoicePreparer) -> None:
    if not REAL_CLIPS.is_dir():
        pytest.skip(f"no folder {REAL_CLIPS}")
    short = preparer.prepare(Reference(REAL_CLIPS / "zero_shot_prompt.wav", "希望你以后能够做的比我还好呦。"))
    assert short.report is not None
    assert short.report.warnings == ()
    assert len(short.mel) > 140
    long = preparer.prepare(Reference(REAL_CLIPS / "cross_lingual_prompt.wav"))
    assert long.report is not None
    assert long.report.warnings == ("long_cut",)
    assert 150 <= len(long.mel) <= 520


@pytest.mark.unit
def test_a_cut_clip_loses_its_words(preparer: VoicePreparer) -> None:
    voice = preparer.prepare(Reference(wav_bytes(speech(45.0, 16000), 16000), "all that is said"))
    assert voice.transcript == ""
    assert voice.report is not None
    assert "transcript_dropped" in voice.report.warnings


@pytest.mark.unit
@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "audio_empty"),
        (b"no sound at all", "audio_unreadable"),
        (wav_bytes(silence(3.0, 16000), 16000), "reference_silent"),
        (wav_bytes(speech(0.2, 16000), 16000), "reference_too_short"),
        (wav_bytes(silence(600.0, 8000), 8000, "u8"), "audio_too_long"),
    ],
)
def test_bad_references(data: bytes, code: str, preparer: VoicePreparer, tmp_path: Path) -> None:
    pytest.importorskip("av")
    path = tmp_path / "clip"
    path.write_bytes(data)
    for audio in (data, path):
        with pytest.raises(RequestError) as caught:
            preparer.prepare(Reference(audio))
        assert caught.value.code == code


@pytest.mark.unit
def test_a_clipped_reference_is_used_with_a_warning(preparer: VoicePreparer) -> None:
    voice = preparer.prepare(Reference(wav_bytes(np.clip(speech(5.0) * 8, -1, 1), 24000)))
    assert voice.report is not None
    assert "clipped" in voice.report.warnings


@pytest.mark.unit
def test_a_missing_path_is_an_error(preparer: VoicePreparer, tmp_path: Path) -> None:
    with pytest.raises(RequestError) as caught:
        preparer.prepare(Reference(tmp_path / "none.wav"))
    assert caught.value.code == "audio_missing"


@pytest.mark.unit
def test_words_that_cannot_be_the_clips_are_kept_with_a_warning(preparer: VoicePreparer) -> None:
    clip = wav_bytes(speech(5.0, 16000), 16000)
    wrong = preparer.prepare(Reference(clip, "Hi."))
    assert wrong.report is not None and "transcript_doubtful" in wrong.report.warnings
    assert wrong.transcript == "Hi."
    right = preparer.prepare(Reference(clip, "This could well be what somebody says in it."))
    assert right.report is not None and "transcript_doubtful" not in right.report.warnings


# --------------------------------------------------------------------------------------------- cache
@pytest.mark.unit
def test_the_same_bytes_are_prepared_once(
    preparer: VoicePreparer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    data = wav_bytes(speech(3.0), 24000)
    path = tmp_path / "a.wav"
    path.write_bytes(data)
    first = preparer.prepare(Reference(data, "one"))
    monkeypatch.setattr(voice_module, "decode_audio", None)
    again = preparer.prepare(Reference(path, "two"))
    assert again.mel is first.mel
    assert (first.transcript, again.transcript) == ("one", "two")
    assert again.content_hash == first.content_hash
    assert len(first.content_hash) == 64


@pytest.mark.unit
def test_exact_and_cut_and_whole_are_kept_apart(preparer: VoicePreparer) -> None:
    data = wav_bytes(np.concatenate([speech(20.0, 16000), silence(2.0, 16000)]), 16000)
    cut = preparer.prepare(Reference(data))
    whole = preparer.prepare(Reference(data, "words"))
    exact = preparer.prepare(Reference(data), exact=True)
    assert len(cut.mel) < len(whole.mel) < len(exact.mel)
    assert len(exact.mel) == 1100


@pytest.mark.unit
def test_the_cache_forgets_the_oldest() -> None:
    if not STUBS.is_dir():
        pytest.skip(f"no folder {STUBS}")
    preparer = VoicePreparer(STUBS / "campplus.onnx", STUBS / "speech_tokenizer_v2.onnx", cache_size=2)
    clips = [Reference(wav_bytes(speech(1.0, 16000, seed=seed), 16000)) for seed in range(3)]
    voices = [preparer.prepare(clip) for clip in clips[:2]]
    preparer.prepare(clips[0])
    preparer.prepare(clips[2])
    assert preparer.prepare(clips[0]).mel is voices[0].mel
    assert preparer.prepare(clips[1]).mel is not voices[1].mel
    assert len(preparer._cache) == 2


@pytest.mark.unit
def test_two_voices_in_parallel_are_never_mixed(preparer: VoicePreparer) -> None:
    clips = [Reference(wav_bytes(speech(2.0, 16000, seed=n, pitch=100 + 40 * n), 16000)) for n in range(4)]
    alone = [preparer.prepare(clip) for clip in clips]
    preparer._cache.clear()
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda n: preparer.prepare(clips[n % 4]), range(24)))
    for number, voice in enumerate(together):
        assert np.array_equal(voice.mel, alone[number % 4].mel)
        assert np.array_equal(voice.speech_tokens, alone[number % 4].speech_tokens)
        assert np.array_equal(voice.speaker, alone[number % 4].speaker)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("container", "codec"), [("mp3", "libmp3lame"), ("ipod", "aac"), ("webm", "libopus")]
)
def test_a_phones_or_browsers_clip_is_the_same_voice(
    container: str, codec: str, preparer: VoicePreparer
) -> None:
    pytest.importorskip("av")
    samples = speech(4.0, 48000)
    original = preparer.prepare(Reference(wav_bytes(samples, 48000)))
    coded = preparer.prepare(Reference(av_bytes(samples, 48000, container, codec)))
    assert abs(len(original.mel) - len(coded.mel)) <= 4
    cosine = (
        original.speaker @ coded.speaker / np.linalg.norm(original.speaker) / np.linalg.norm(coded.speaker)
    )
    assert cosine > 0.9


# ---------------------------------------------------------------------------------- voice conversion
@pytest.mark.unit
@pytest.mark.parametrize("seconds", [0.5, 12.3, 29.99, 30.01, 65.0])
def test_a_source_keeps_its_length(seconds: float, preparer: VoicePreparer) -> None:
    tokens = preparer.source_tokens(Reference(wav_bytes(speech(seconds, 16000), 16000)))
    assert abs(len(tokens) - seconds * 25) <= 1.5


@pytest.mark.unit
def test_what_is_refused_as_a_source(preparer: VoicePreparer) -> None:
    long, silent, endless = speech(31.0, 16000), silence(3.0, 16000), noise(241.0, 8000, -20)
    for samples, rate, exact, code in (
        (long, 16000, True, "reference_too_long"),
        (silent, 16000, False, "source_silent"),
        (endless, 8000, False, "audio_too_long"),
    ):
        with pytest.raises(RequestError) as caught:
            preparer.source_tokens(Reference(wav_bytes(samples, rate)), exact=exact)
        assert caught.value.code == code


# ---------------------------------------------------------------------------------------- ONNX files
@pytest.mark.unit
def test_broken_onnx_files(tmp_path: Path) -> None:
    if not STUBS.is_dir():
        pytest.skip(f"no folder {STUBS}")
    with pytest.raises(CheckpointError) as missing:
        SpeakerEncoder(tmp_path / "campplus.onnx")
    assert missing.value.code == "onnx_missing"
    half = (STUBS / "campplus.onnx").read_bytes()
    (tmp_path / "campplus.onnx").write_bytes(half[: len(half) // 2])
    with pytest.raises(CheckpointError) as broken:
        SpeakerEncoder(tmp_path / "campplus.onnx")
    assert broken.value.code == "onnx_unreadable"
    with pytest.raises(CheckpointError) as swapped:
        SpeechTokenizer(STUBS / "campplus.onnx")
    assert swapped.value.code == "onnx_unreadable"


@pytest.mark.unit
@pytest.mark.parametrize("frames", [1, 2, 3, 4, 5, 101])
def test_token_counts(frames: int) -> None:
    if not STUBS.is_dir():
        pytest.skip(f"no folder {STUBS}")
    tokenizer = SpeechTokenizer(STUBS / "speech_tokenizer_v2.onnx")
    mel = np.random.default_rng(0).standard_normal((128, frames)).astype(np.float32)
    assert len(tokenizer.encode(mel)) == math.ceil(math.ceil(frames / 2) / 2)

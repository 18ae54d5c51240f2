"""The engine from request to sound, on a folder with random weights."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import inference.engine as engine_module
from inference import CosyVoice, Mode, Reference, SynthesisRequest
from inference.runtime.generate import SpeechTokenGenerator
from inference.runtime.schedule import ChunkSchedule
from inference.runtime.token_to_wave import FULL_SCALE
from inference.runtime.uniforms import derive_seed
from tests.engine_support import CLIP, GOOD, LONG_TEXT, REQUESTS, TEXT, pcm_of, real_clips, steady
from tests.golden_data import ROOT

pytestmark = pytest.mark.e2e
TOKEN_SAMPLES = 960  # two mel frames of 480 samples


@pytest.fixture(scope="module")
def engine(random_model_dir: Path) -> CosyVoice:
    return CosyVoice(random_model_dir, device="cpu")


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every speech token that the engine's language model draws."""
    tokens: list[int] = []

    class Counting(SpeechTokenGenerator):
        def stream(self, prompt: Any) -> Iterator[int]:
            for token in super().stream(prompt):
                tokens.append(token)
                yield token

    monkeypatch.setattr(engine_module, "SpeechTokenGenerator", Counting)
    return tokens


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("mode", list(Mode))
def test_every_mode_makes_sound(engine: CosyVoice, mode: Mode, stream: bool) -> None:
    chunks = list(engine.synthesize(replace(REQUESTS[mode], stream=stream)))
    sound = pcm_of(chunks)
    assert sound.dtype == np.int16 and len(sound) % TOKEN_SAMPLES == 0 and len(sound) > 4800
    assert np.abs(sound.astype(np.int32)).max() > 100
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
    assert [chunk.final for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert {chunk.sample_rate for chunk in chunks} == {24000}
    last = chunks[-1].timings
    assert 0 < last.first_audio <= last.total
    spent = last.front_end + last.language_model + last.flow + last.vocoder
    assert min(last.flow, last.vocoder) > 0 and spent <= last.total


@pytest.mark.parametrize("clip", real_clips(), ids=lambda path: path.stem)
@pytest.mark.parametrize("mode", [Mode.CLONE, Mode.CROSS_LINGUAL, Mode.INSTRUCT])
def test_real_clips(engine: CosyVoice, clip: Path, mode: Mode) -> None:
    request = replace(
        REQUESTS[mode], text="hello world", voice=Reference(clip, "希望你以后能够做的比我还好呦。")
    )
    assert len(pcm_of(list(engine.synthesize(request)))) > 4800
    assert len(pcm_of(list(engine.synthesize(replace(request, stream=True))))) > 4800


def test_a_mode_may_be_a_plain_word(engine: CosyVoice) -> None:
    named: Any = "clone"
    spoken = pcm_of(list(engine.synthesize(replace(GOOD, mode=named))))
    assert np.array_equal(spoken, pcm_of(list(engine.synthesize(GOOD))))


# ------------------------------------------------------------------------------------------------ streams
@pytest.mark.parametrize("speed", [1.0, 0.8, 1.25, 2.0])
@pytest.mark.parametrize("mode", [Mode.CROSS_LINGUAL, Mode.CONVERT])
def test_a_stream_is_as_long_as_the_whole(engine: CosyVoice, mode: Mode, speed: float) -> None:
    request = replace(REQUESTS[mode], seed=5, speed=speed)
    whole = pcm_of(list(engine.synthesize(request)))
    streamed = pcm_of(list(engine.synthesize(replace(request, stream=True))))
    assert len(streamed) == len(whole)


def test_speed_scales_the_length(engine: CosyVoice) -> None:
    usual = len(pcm_of(list(engine.synthesize(REQUESTS[Mode.CONVERT]))))
    for speed in (0.5, 0.8, 1.25, 2.0):
        changed = len(pcm_of(list(engine.synthesize(replace(REQUESTS[Mode.CONVERT], speed=speed)))))
        assert abs(changed - usual / speed) <= 480


def test_chunks_follow_the_schedule(engine: CosyVoice) -> None:
    request = replace(REQUESTS[Mode.CONVERT], stream=True)
    (segment,) = engine.model_inputs(request)
    assert segment.tokens is not None
    schedule = ChunkSchedule(len(segment.model_input.flow_prompt_tokens), 3)
    expected, offset = [], 0
    while call := schedule.next_call(len(segment.tokens), finished=True):
        end = call.token_count if call.final else call.token_count - 3
        held = 8 * 480  # kept back for the next cross-fade
        samples = (end - call.offset) * TOKEN_SAMPLES
        expected.append(samples - (held if not offset else 0) + (held if call.final else 0))
        offset = end
    found = [len(chunk.pcm) for chunk in engine.synthesize(request)]
    assert found == expected and len(found) >= 3
    assert sum(found) == len(segment.tokens) * TOKEN_SAMPLES


def test_no_click_and_no_jump_of_level_where_chunks_join(random_model_dir: Path) -> None:
    """A stream is what the same mel gives in one piece, but for the cross-faded parts, which stay near it."""
    steady_engine = steady(CosyVoice(random_model_dir, device="cpu"))
    request = replace(REQUESTS[Mode.CONVERT], stream=True)
    chunks = list(steady_engine.synthesize(request))
    streamed = pcm_of(chunks) / FULL_SCALE
    ideal = _in_one_piece(steady_engine, request)
    difference = streamed - ideal
    loudness = float(np.sqrt(np.mean(ideal**2)))
    borders = np.cumsum([len(chunk.pcm) for chunk in chunks])[:-1]
    assert len(borders) >= 2
    for border in borders:
        assert abs(difference[border] - difference[border - 1]) < 0.1 * loudness
    share = _frame_rms(difference) / _frame_rms(ideal)
    assert np.median(share) < 0.01 and share.max() < 0.4
    level = 20 * np.log10(_frame_rms(streamed) / _frame_rms(ideal))
    assert np.abs(level).max() < 0.6  # dB


def _in_one_piece(engine: CosyVoice, request: SynthesisRequest) -> npt.NDArray[np.float64]:
    (segment,) = engine.model_inputs(request)
    assert segment.tokens is not None
    models, seed = engine._to_wave, derive_seed(request.seed, 0)
    mel = models.mel(segment.model_input, segment.tokens, streaming=True, finalize=True)
    with torch.inference_mode():
        wave, _ = models.vocoder(mel, seeds=torch.tensor([seed]))
    return wave[0].double().numpy()


def _frame_rms(sound: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Of every 20 ms."""
    rms: npt.NDArray[np.float64] = np.sqrt(np.mean(sound.reshape(-1, 480) ** 2, axis=1))
    return rms


def test_the_first_chunk_needs_few_tokens(engine: CosyVoice, drawn: list[int]) -> None:
    request = SynthesisRequest(Mode.PRESET, LONG_TEXT, "someone", stream=True)
    chunks = engine.synthesize(request)
    next(chunks)
    assert len(drawn) == 28  # 25 and the look-ahead
    chunks.close()


def test_closing_early_stops_the_work(engine: CosyVoice, drawn: list[int]) -> None:
    request = SynthesisRequest(Mode.PRESET, LONG_TEXT, "someone", stream=True)
    total = sum(1 for _ in engine.synthesize(request)) and len(drawn)
    drawn.clear()
    chunks = engine.synthesize(request)
    next(chunks)
    chunks.close()
    assert 0 < len(drawn) < total
    after = len(drawn)
    assert list(chunks) == [] and len(drawn) == after
    assert len(pcm_of(list(engine.synthesize(GOOD)))) > 0


# ----------------------------------------------------------------------------------------------- segments
def test_segments_keep_one_voice(engine: CosyVoice) -> None:
    request = SynthesisRequest(Mode.CLONE, LONG_TEXT, CLIP, seed=2)
    segments = engine.model_inputs(request)
    assert len(segments) >= 2
    voice = engine.prepare_voice(CLIP)
    for segment in segments:
        assert np.array_equal(segment.model_input.speaker, voice.speaker)
        assert np.array_equal(segment.model_input.prompt_mel, voice.mel)
        assert np.array_equal(segment.model_input.llm_prompt_tokens, voice.speech_tokens)
    chunks = list(engine.synthesize(request))
    assert [chunk.text for chunk in chunks] == [segment.text for segment in segments]
    streamed = list(engine.synthesize(replace(request, stream=True)))
    assert len(pcm_of(streamed)) == len(pcm_of(chunks))
    spoken = list(dict.fromkeys(chunk.text for chunk in streamed))
    assert spoken == list(dict.fromkeys(segment.text for segment in segments))


# -------------------------------------------------------------------------------------------------- seeds
@pytest.mark.parametrize("stream", [False, True])
def test_the_seed_alone_decides(engine: CosyVoice, random_model_dir: Path, stream: bool) -> None:
    request = replace(REQUESTS[Mode.CLONE], seed=11, stream=stream)
    first = pcm_of(list(engine.synthesize(request)))
    assert np.array_equal(first, pcm_of(list(engine.synthesize(request))))
    another_engine = CosyVoice(random_model_dir, device="cpu")
    assert np.array_equal(first, pcm_of(list(another_engine.synthesize(request))))
    assert not np.array_equal(first, pcm_of(list(engine.synthesize(replace(request, seed=12)))))


def test_a_prepared_voice_gives_the_same_sound(engine: CosyVoice) -> None:
    voice = engine.prepare_voice(CLIP)
    request = REQUESTS[Mode.CLONE]
    expected = pcm_of(list(engine.synthesize(request)))
    assert np.array_equal(expected, pcm_of(list(engine.synthesize(replace(request, voice=voice)))))


def test_a_stored_clip_as_preset_sounds_as_the_clip(random_model_dir: Path) -> None:
    engine = CosyVoice(random_model_dir, device="cpu")
    (given,) = (segment.model_input for segment in engine.model_inputs(GOOD))
    engine._presets["stored"] = {
        "prompt_text": torch.from_numpy(given.prompt_text_ids)[None],
        "llm_prompt_speech_token": torch.from_numpy(given.llm_prompt_tokens)[None],
        "flow_prompt_speech_token": torch.from_numpy(given.flow_prompt_tokens)[None],
        "prompt_speech_feat": torch.from_numpy(given.prompt_mel)[None],
        "flow_embedding": torch.from_numpy(given.speaker)[None],
    }
    assert engine.presets == ["someone", "stored"]
    stored = replace(GOOD, mode=Mode.PRESET, voice="stored")
    assert np.array_equal(pcm_of(list(engine.synthesize(stored))), pcm_of(list(engine.synthesize(GOOD))))


def test_requests_side_by_side_do_not_mix(engine: CosyVoice) -> None:
    one = replace(REQUESTS[Mode.CLONE], text=LONG_TEXT, stream=True)
    two = replace(REQUESTS[Mode.PRESET], text=LONG_TEXT, stream=True, seed=4)
    alone = [pcm_of(list(engine.synthesize(request))) for request in (one, two)]
    turns = list(zip_longest(engine.synthesize(one), engine.synthesize(two)))
    for expected, chunks in zip(alone, zip(*turns)):
        assert np.array_equal(expected, pcm_of([chunk for chunk in chunks if chunk is not None]))


def test_threads_may_share_an_engine(engine: CosyVoice) -> None:
    requests = [replace(REQUESTS[mode], text=TEXT, seed=3) for mode in (Mode.CLONE, Mode.PRESET)]
    alone = [pcm_of(list(engine.synthesize(request))) for request in requests]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(lambda request: pcm_of(list(engine.synthesize(request))), requests))
    for expected, found in zip(alone, together):
        assert np.array_equal(expected, found)


def test_a_wav_needs_no_library_that_the_gpu_machine_lacks(random_model_dir: Path) -> None:
    missing = ["av", "fastapi", "gradio", "inflect", "kaldi_native_fbank", "pydantic", "soundfile", "wetext"]
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({missing!r}))\n"
        "from inference import CosyVoice\n"
        "from tests.engine_support import GOOD\n"
        f"engine = CosyVoice({str(random_model_dir)!r}, device='cpu')\n"
        "print(sum(len(chunk.pcm) for chunk in engine.synthesize(GOOD)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 4800

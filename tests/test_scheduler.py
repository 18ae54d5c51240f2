"""One worker's scheduler in this process: the same sound as the plain engine, in order, whatever happens around it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inference import CosyVoice, Mode, Reference
from inference.live_request import LiveRequest
from inference.loading import LoadedModels, load_models
from inference.runtime.uniforms import derive_seed
from inference.runtime.wave_lane import WaveLane
from inference.types import EngineError, SynthesisError, SynthesisRequest
from tests.engine_support import CLIP, GOOD, LONG_TEXT, REQUESTS, TEXT
from tests.make_clips import silence, speech, wav_bytes
from tests.scheduler_support import LANES, Serving, assert_same, eventually

pytestmark = pytest.mark.e2e

LONG = replace(REQUESTS[Mode.CLONE], text=LONG_TEXT)
LONG_STREAM = replace(LONG, stream=True)
WORDS = "apple banana cherry garden window morning river mountain yellow thunder"
MANY_SENTENCES = " ".join(
    f"the {word} is over the lazy dog, the quick brown fox is over the {word}." for word in WORDS.split()
)
SILENT = Reference(wav_bytes(silence(4.0, 16000), 16000))
MIXED = [
    *REQUESTS.values(),
    *(replace(REQUESTS[mode], stream=True) for mode in (Mode.INSTRUCT, Mode.CONVERT)),
    replace(REQUESTS[Mode.CLONE], stream=True, speed=1.3, seed=4),
    replace(REQUESTS[Mode.CONVERT], speed=0.8, seed=5),
    replace(REQUESTS[Mode.CLONE], exact=True, stream=True),
    replace(REQUESTS[Mode.INSTRUCT], exact=True),
    LONG_STREAM,
]


@pytest.fixture(scope="module")
def engine(random_model_dir: Path) -> CosyVoice:
    return CosyVoice(random_model_dir, device="cpu")


@pytest.fixture(scope="module")
def models(random_model_dir: Path) -> LoadedModels:
    return load_models(random_model_dir, "cpu")


@pytest.fixture
def serving(models: LoadedModels) -> Iterator[Serving]:
    serving = Serving(models)
    yield serving
    serving.scheduler.close()
    assert serving.faults == []


def assert_idle(serving: Serving) -> None:
    """Nothing is kept of what was served."""
    assert serving.scheduler.drain(timeout=20.0)
    stats = serving.scheduler.stats()
    assert (stats.live, stats.preparing, stats.drawing, stats.waiting) == (0, 0, 0, 0)


# ----------------------------------------------------------------------------------------- the same sound
def test_all_at_once_sound_as_one_after_another(engine: CosyVoice, serving: Serving) -> None:
    expected = [list(engine.synthesize(request)) for request in MIXED]
    for found, theirs in zip(serving.speak(MIXED), expected):
        assert_same(found, theirs)
    assert_idle(serving)
    assert serving.scheduler.stats().finished == len(MIXED)


def test_a_batch_begun_before_the_last_one_is_given_out_changes_nothing(
    engine: CosyVoice, models: LoadedModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WaveLane, "overlaps", property(lambda self: True))
    some = [REQUESTS[Mode.CLONE], LONG_STREAM, replace(REQUESTS[Mode.CONVERT], stream=True, seed=5)]
    serving = Serving(models)
    for found, request in zip(serving.speak(some), some):
        assert_same(found, list(engine.synthesize(request)))
    serving.scheduler.submit(9, LONG_STREAM)
    serving.listener.wait_for_chunk(9)
    serving.scheduler.cancel(9)
    assert_idle(serving)
    serving.scheduler.close()
    assert serving.faults == []


def test_segments_come_in_order_though_they_are_drawn_ahead(engine: CosyVoice, models: LoadedModels) -> None:
    """With room for all segments at once, and with room for one."""
    request = SynthesisRequest(Mode.PRESET, MANY_SENTENCES, "someone", seed=3)
    expected = list(engine.synthesize(request))
    assert len({chunk.text for chunk in expected}) >= 4
    for slots, run_ahead in ((8, 8), (1, 0)):
        serving = Serving(models, replace(LANES, slots=slots), run_ahead)
        assert_same(serving.speak([request])[0], expected)
        serving.scheduler.close()
        assert serving.faults == []


def test_timings_tell_where_the_time_went(serving: Serving) -> None:
    (chunks,) = serving.speak([LONG_STREAM])
    first, last = chunks[0].timings, chunks[-1].timings
    assert 0 < first.front_end < first.first_token < first.first_audio <= first.total <= last.total
    assert first.first_audio == last.first_audio and first.first_token == last.first_token
    assert min(last.language_model, last.flow, last.vocoder) > 0 and last.queue >= 0
    assert last.synthesis == last.flow + last.vocoder


def test_the_time_before_the_scheduler_counts(serving: Serving) -> None:
    serving.scheduler.submit(0, GOOD, waited=5.0)
    timings = serving.listener.chunks(0)[-1].timings
    assert timings.queue >= 5.0 and timings.first_audio >= 5.0 and timings.total >= 5.0


# ------------------------------------------------------------------------------------------------- errors
@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (replace(GOOD, text="?!"), "nothing_to_speak"),
        (replace(GOOD, voice=SILENT), "reference_silent"),
        (replace(GOOD, voice=Reference(b"%PDF-1.7 " * 500)), "audio_unreadable"),
        (replace(REQUESTS[Mode.PRESET], voice="nobody"), "preset_unknown"),
        (replace(GOOD, speed=9.0), "bad_speed"),
    ],
)
def test_a_bad_request_fails_alone(serving: Serving, request_: SynthesisRequest, code: str) -> None:
    serving.scheduler.submit(0, replace(GOOD, stream=True))
    serving.scheduler.submit(1, request_)
    assert serving.listener.error(1).code == code
    assert serving.listener.heard(1) == []
    assert serving.listener.chunks(0)[-1].final
    assert_idle(serving)


def test_what_a_text_and_prompt_too_long_for_a_slot_get(models: LoadedModels) -> None:
    serving = Serving(models, replace(LANES, context=64))
    serving.scheduler.submit(0, LONG)
    assert serving.listener.error(0).code == "text_too_long"
    serving.scheduler.submit(1, SynthesisRequest(Mode.PRESET, "hello", "someone"))
    assert serving.listener.chunks(1)[-1].final
    assert_idle(serving)
    serving.scheduler.close()


def test_what_was_made_before_a_failing_segment_is_heard(
    engine: CosyVoice, models: LoadedModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = SynthesisRequest(Mode.PRESET, MANY_SENTENCES, "someone")
    expected = list(engine.synthesize(request))
    second = derive_seed(request.seed, 1)
    plain_open = WaveLane.open

    def failing_open(self: WaveLane, model_input: Any, *, seed: int, **options: Any) -> Any:
        if seed == second:
            raise EngineError("non_finite", "Not finite.")
        return plain_open(self, model_input, seed=seed, **options)

    monkeypatch.setattr(WaveLane, "open", failing_open)
    serving = Serving(models)
    serving.scheduler.submit(0, request)
    assert serving.listener.error(0).code == "non_finite"
    assert_same(serving.listener.heard(0), expected[:1])
    assert_idle(serving)
    serving.scheduler.close()
    assert serving.faults == []


def test_running_out_of_memory_costs_the_newest_segment_only(
    models: LoadedModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = Serving(models)
    plain_step, failed = serving.speech.step, []

    def failing_step() -> Any:
        if serving.scheduler.stats().drawing == 2 and not failed:
            failed.append(True)
            raise RuntimeError("CUDA out of memory.")
        return plain_step()

    monkeypatch.setattr(serving.speech, "step", failing_step)
    for key in range(2):
        serving.scheduler.submit(key, SynthesisRequest(Mode.PRESET, TEXT, "someone", seed=key))
    ends = [_error_or_none(serving, key) for key in (0, 1)]
    assert failed and sorted(code or "" for code in ends) == ["", "out_of_memory"]
    assert_idle(serving)
    serving.scheduler.close()
    assert serving.faults == []


def _error_or_none(serving: Serving, key: int) -> str | None:
    try:
        serving.listener.chunks(key)
    except SynthesisError as error:
        return error.code
    return None


@pytest.mark.parametrize("lane", ["speech", "wave"])
def test_a_broken_lane_is_reported(models: LoadedModels, monkeypatch: pytest.MonkeyPatch, lane: str) -> None:
    serving = Serving(models)

    def broken(*_: Any) -> Any:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(getattr(serving, lane), "step" if lane == "speech" else "start", broken)
    serving.scheduler.submit(0, GOOD)
    eventually(lambda: bool(serving.faults))
    assert "illegal memory access" in str(serving.faults[0])
    serving.scheduler.close()


# ---------------------------------------------------------------------------------------------- cancelling
def test_cancelled_before_it_began(serving: Serving) -> None:
    serving.scheduler.submit(0, GOOD)
    for key in range(1, 6):
        serving.scheduler.submit(key, LONG_STREAM)
    for key in range(1, 6):
        serving.scheduler.cancel(key)
    assert serving.listener.chunks(0)[-1].final
    assert_idle(serving)
    assert serving.scheduler.stats().cancelled == 5


def test_cancelled_while_it_sounds(engine: CosyVoice, serving: Serving) -> None:
    expected = list(engine.synthesize(LONG_STREAM))
    for key in range(3):
        serving.scheduler.submit(key, replace(LONG_STREAM, seed=key))
    serving.listener.wait_for_chunk(1)
    serving.scheduler.cancel(1)
    stats = serving.scheduler.stats()
    assert stats.live <= 2
    assert_same(serving.listener.chunks(0), expected)
    assert serving.listener.chunks(2)[-1].final
    assert not serving.listener.ended(1)
    assert_idle(serving)
    assert serving.speech.room == LANES.slots


def test_cancelling_what_is_unknown_or_done_does_nothing(serving: Serving) -> None:
    serving.scheduler.cancel(77)
    serving.speak([GOOD])
    serving.scheduler.cancel(0)
    assert_idle(serving)
    assert serving.scheduler.stats().cancelled == 0


# ------------------------------------------------------------------------------------------ voices, memory
def test_voices_are_prepared(engine: CosyVoice, serving: Serving) -> None:
    serving.scheduler.prepare_voice(0, CLIP)
    serving.scheduler.prepare_voice(1, SILENT)
    expected = engine.prepare_voice(CLIP)
    assert np.array_equal(serving.listener.voice(0).speech_tokens, expected.speech_tokens)
    assert serving.listener.voice(0).content_hash == expected.content_hash
    assert serving.listener.error(1).code == "reference_silent"
    assert_idle(serving)


def test_many_requests_with_one_new_clip_prepare_it_once(
    serving: Serving, models: LoadedModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared: list[object] = []
    voices = models.front_end.voices
    plain = voices._prepared
    monkeypatch.setattr(voices, "_prepared", lambda *given: (prepared.append(given[1]), plain(*given))[1])
    clip = Reference(wav_bytes(speech(3.0, 16000, seed=9, pitch=180.0), 16000), "this is a test")
    for key in range(6):
        serving.scheduler.prepare_voice(key, clip)
    hashes = {serving.listener.voice(key).content_hash for key in range(6)}
    assert len(prepared) == 1 and len(hashes) == 1


def test_nothing_is_left_of_many_requests(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    import inference.scheduler as module

    alive: weakref.WeakSet[LiveRequest] = weakref.WeakSet()
    closed: list[object] = []
    plain_close = serving.wave.close

    class Counted(LiveRequest):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            alive.add(self)

    monkeypatch.setattr(module, "LiveRequest", Counted)
    monkeypatch.setattr(serving.wave, "close", lambda stream: (closed.append(1), plain_close(stream))[1])
    opened: list[object] = []
    plain_open = serving.wave.open
    monkeypatch.setattr(
        serving.wave, "open", lambda *given, **named: (opened.append(1), plain_open(*given, **named))[1]
    )
    short = [replace(REQUESTS[Mode.PRESET], text="hello", stream=bool(n % 2), seed=n) for n in range(28)]
    bad = [replace(GOOD, text="..."), replace(GOOD, voice=SILENT)] * 5
    for key in range(10):
        serving.scheduler.submit(key, LONG_STREAM)
    serving.listener.wait_for_chunk(0)
    for key in range(1, 10, 2):
        serving.scheduler.cancel(key)
    for key, request in enumerate([*short, *bad], 10):
        serving.scheduler.submit(key, request)
    for key in range(0, 10, 2):  # some while they sound, some before
        serving.scheduler.cancel(key)
    for key in range(10, 48):
        _error_or_none(serving, key)
    assert_idle(serving)
    eventually(lambda: len(opened) == len(closed))  # the last stream is given back after the last chunk
    serving.scheduler.close()
    gc.collect()
    assert len(opened) > 28 and len(alive) == 0


def test_memory_is_given_back_in_a_lull_and_again_when_it_lasts(
    models: LoadedModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    rested: list[WaveLane] = []
    rest = WaveLane.rest

    def noted(lane: WaveLane) -> None:
        rest(lane)
        rested.append(lane)

    monkeypatch.setattr("inference.wave_loop._RESTS", (0.02, 0.05))
    monkeypatch.setattr(WaveLane, "rest", noted)
    serving = Serving(models)
    try:
        assert not rested  # nothing was ever asked
        for times in (2, 4):
            serving.speak([replace(REQUESTS[Mode.CLONE], stream=True)])
            eventually(lambda times=times: len(rested) == times)  # type: ignore[misc]
    finally:
        serving.scheduler.close()
    assert not serving.faults

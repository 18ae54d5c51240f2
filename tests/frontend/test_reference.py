"""What becomes of the clips that people really upload (CASES 18, 19, 23, 24)."""

from __future__ import annotations

import numpy as np
import pytest

from inference.frontend.audio import Clip
from inference.frontend.loudness import measure_loudness
from inference.frontend.reference import PreparedClip, prepare_clip
from inference.types import RequestError
from tests.make_clips import noise, silence, speech

pytestmark = pytest.mark.unit
RATE = 24000


def _prepare(
    *parts: np.ndarray, rate: int = RATE, transcript: bool = False, exact: bool = False
) -> PreparedClip:
    return prepare_clip(Clip(np.concatenate(parts), rate), has_transcript=transcript, exact=exact)


def _code(*parts: np.ndarray, rate: int = RATE, exact: bool = False) -> str:
    with pytest.raises(RequestError) as caught:
        _prepare(*parts, rate=rate, exact=exact)
    return caught.value.code


def test_a_good_clip_is_left_alone() -> None:
    samples = speech(5.0)
    prepared = _prepare(samples)
    assert prepared.report.warnings == ()
    assert not prepared.is_part
    start = round(prepared.report.used_start * RATE)
    assert np.array_equal(prepared.samples, samples[start : start + len(prepared.samples)])
    assert len(prepared.samples) > 4.6 * RATE


def test_two_seconds_of_speech_in_eight_of_silence() -> None:
    prepared = _prepare(silence(3.0, RATE), speech(2.0), silence(5.0, RATE))
    assert 2.9 - 0.01 <= prepared.report.used_start <= 3.01
    assert 4.9 <= prepared.report.used_end <= 5.21
    assert "long_cut" not in prepared.report.warnings


def test_the_same_with_room_noise() -> None:
    parts = np.concatenate([silence(3.0, RATE), speech(2.0), silence(5.0, RATE)])
    prepared = _prepare(parts + noise(10.0, RATE, -55))
    assert 2.8 <= prepared.report.used_start <= 3.01
    assert 4.9 <= prepared.report.used_end <= 5.3
    assert "noisy" not in prepared.report.warnings


def test_one_second_of_speech_in_a_minute_of_silence_is_found() -> None:
    prepared = _prepare(silence(40.0, RATE), speech(1.0), silence(20.0, RATE))
    assert 39.85 <= prepared.report.used_start <= 40.01
    assert len(prepared.samples) < 1.4 * RATE
    assert "short" in prepared.report.warnings


@pytest.mark.parametrize(
    "samples", [silence(3.0, RATE), noise(3.0, RATE, -75), noise(3.0, RATE, -58), silence(3.0, RATE) + 0.3]
)
def test_silence_is_refused(samples: np.ndarray) -> None:
    assert _code(samples.astype(np.float32)) == "reference_silent"


@pytest.mark.parametrize("seconds", [0.001, 0.02, 0.2, 0.4])
def test_too_short(seconds: float) -> None:
    assert _code(speech(seconds)) == "reference_too_short"


def test_a_click_is_no_speech() -> None:
    samples = silence(5.0, RATE)
    samples[60000:60100] = 0.9
    assert _code(samples) in ("reference_too_short", "reference_silent")


def test_45_seconds_are_cut_at_a_pause_to_one_good_part() -> None:
    prepared = _prepare(speech(45.0, pause=0.4))
    report = prepared.report
    assert prepared.is_part
    assert "long_cut" in report.warnings
    assert 3.0 <= report.used_end - report.used_start <= 10.4
    assert report.duration == pytest.approx(45.0)
    loudness = measure_loudness(prepared.samples, RATE)
    assert loudness.db[:8].max() < loudness.loud_db - 30  # begins and ends in a pause
    assert loudness.db[-8:].max() < loudness.loud_db - 30


def test_the_cut_avoids_the_clipped_and_the_noisy_half() -> None:
    bad = np.clip(speech(15.0, seed=1) * 5, -1, 1) + noise(15.0, RATE, -30)
    good = speech(12.0, seed=2)
    for parts, expected in (((bad, good), (15.0, 27.0)), ((good, bad), (0.0, 12.5))):
        report = _prepare(*parts).report
        assert expected[0] - 0.2 <= report.used_start
        assert report.used_end <= expected[1] + 0.2
        assert "clipped" not in report.warnings


def test_28_seconds_and_8_seconds_come_out_alike() -> None:
    long, short = _prepare(speech(28.0)), _prepare(speech(8.0))
    assert 5.0 <= len(long.samples) / RATE <= 10.4
    assert 5.0 <= len(short.samples) / RATE <= 10.4


def test_somebody_who_never_breathes() -> None:
    prepared = _prepare(speech(40.0, pause=0.0))
    assert 6.0 <= len(prepared.samples) / RATE <= 10.4
    assert prepared.is_part


def test_with_its_words_a_clip_is_kept_whole_to_30_seconds() -> None:
    prepared = _prepare(speech(25.0), transcript=True)
    assert not prepared.is_part
    assert "long" in prepared.report.warnings
    assert len(prepared.samples) > 24 * RATE


def test_beyond_30_seconds_the_words_are_dropped_and_it_is_said() -> None:
    prepared = _prepare(speech(45.0), transcript=True)
    assert prepared.is_part
    assert {"long_cut", "transcript_dropped"} <= set(prepared.report.warnings)
    assert len(prepared.samples) <= 10.4 * RATE


def test_a_long_silence_around_short_speech_does_not_drop_the_words() -> None:
    prepared = _prepare(silence(20.0, RATE), speech(6.0), silence(20.0, RATE), transcript=True)
    assert not prepared.is_part
    assert "transcript_dropped" not in prepared.report.warnings


@pytest.mark.parametrize(
    ("samples", "rate", "warning"),
    [
        (speech(5.0, 8000), 8000, "low_rate"),
        (speech(5.0) * np.float32(0.01), RATE, "quiet"),
        (np.clip(speech(5.0) * 8, -1, 1), RATE, "clipped"),
        (speech(5.0) + noise(5.0, RATE, -25), RATE, "noisy"),
        (speech(1.5), RATE, "short"),
    ],
)
def test_warnings(samples: np.ndarray, rate: int, warning: str) -> None:
    assert warning in _prepare(samples.astype(np.float32), rate=rate).report.warnings


def test_a_music_bed_is_warned_about() -> None:
    time = np.arange(5 * RATE) / RATE
    music = sum(0.05 * np.sin(2 * np.pi * f * time) for f in (220, 277, 330))
    assert "noisy" in _prepare((speech(5.0) + music).astype(np.float32)).report.warnings


def test_damage_is_reported() -> None:
    assert "damaged" in prepare_clip(Clip(speech(5.0), RATE, damaged=True)).report.warnings


def test_a_quiet_clip_is_lifted_and_an_overdriven_one_lowered() -> None:
    quiet = _prepare(speech(5.0) * np.float32(0.005))
    assert measure_loudness(quiet.samples, RATE).level_db == pytest.approx(-26.0, abs=0.5)
    assert quiet.report.level_db < -45
    loud = _prepare(speech(5.0) * np.float32(30000))
    assert np.abs(loud.samples).max() <= 0.96


def test_exact_mode_touches_nothing() -> None:
    samples = np.concatenate([silence(1.0, RATE), speech(27.0) * np.float32(0.001), silence(1.0, RATE)])
    prepared = _prepare(samples, exact=True)
    assert prepared.samples is samples or np.array_equal(prepared.samples, samples)
    assert not prepared.is_part
    assert len(_prepare(silence(1.0, RATE), exact=True).samples) == RATE  # no minimum of sound either


def test_what_exact_mode_refuses() -> None:
    assert _code(speech(3.0, 8000), rate=8000, exact=True) == "sample_rate_too_low"
    assert _code(silence(30.001, 22050), rate=22050, exact=True) == "reference_too_long"
    assert len(_prepare(silence(30.0, 22050), rate=22050, exact=True).samples) == 30 * 22050


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 44101, 192000])
def test_times_are_right_at_every_rate(rate: int) -> None:
    prepared = _prepare(silence(2.0, rate), speech(3.0, rate), silence(2.0, rate), rate=rate)
    assert 1.85 <= prepared.report.used_start <= 2.05
    assert 4.6 <= prepared.report.used_end <= 5.25
    used = prepared.report.used_end - prepared.report.used_start
    assert len(prepared.samples) == pytest.approx(used * rate, abs=1)

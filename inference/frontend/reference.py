"""What is done to a reference clip before the models hear it, and what its owner is told about it.

By default a clip is trimmed to its sound, a long one is cut at pauses to its best part, and a quiet one is
lifted. In exact mode it stays as it is (SPEC 2.1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from inference.frontend.audio import TOKENIZER_RATE, Clip
from inference.frontend.loudness import FRAMES_PER_SECOND, Loudness, measure_loudness
from inference.types import FloatAudio, ReferenceReport, RequestError

MODEL_LIMIT_SECONDS = 30.0  # the speech tokenizer takes no more
LONG_SECONDS = 12.0  # beyond this a short clean part imitates better than the whole
MIN_SOUND_SECONDS = 0.5
_BEST_SECONDS = (3.0, 10.0)
_ADVISED_SECONDS = 2.5
_SILENT_DB = -70.0
_FAINT_DB = -55.0  # under this only what stands out from the noise is sound
_QUIET_DB = -35.0
_LIFTED_DB = -26.0
_NOISY_DB = 15.0  # speech less than this above the noise
_CLIPPED_SHARE = 1e-3
_FULL_SCALE = 0.999
_LEAD_FRAMES, _TAIL_FRAMES = 10, 20  # silence kept before and after the sound


@dataclass(frozen=True)
class PreparedClip:
    """The part of a clip that the models get."""

    samples: FloatAudio  # (n,)
    sample_rate: int
    report: ReferenceReport
    is_part: bool  # words were cut away: a transcript of the whole does not match any more


def prepare_clip(clip: Clip, has_transcript: bool = False, exact: bool = False) -> PreparedClip:
    """Trim, cut and measure a reference clip.

    With a transcript, up to 30 s are kept whole: a cut would part the words from the sound. Raises
    RequestError: reference_silent, reference_too_short; in exact mode only reference_too_long and
    sample_rate_too_low.
    """
    loudness = measure_loudness(clip.samples, clip.sample_rate)
    if exact:
        _require_exact(clip)
        report = _report(clip, clip.samples, loudness, 0.0, clip.seconds, ())
        return PreparedClip(clip.samples, clip.sample_rate, report, is_part=False)
    _require_sound(loudness)
    start, end = _with_margins(loudness, *loudness.span())
    limit = MODEL_LIMIT_SECONDS if has_transcript else LONG_SECONDS
    is_part = end - start > limit * FRAMES_PER_SECOND
    if is_part:
        start, end = _best_part(loudness, _clipped_per_frame(clip))
    hop = clip.sample_rate // FRAMES_PER_SECOND
    used = clip.samples[start * hop : end * hop]
    part = measure_loudness(used, clip.sample_rate)
    warnings = _warnings(clip, used, loudness, part, is_part, has_transcript)
    report = _report(clip, used, part, start * hop / clip.sample_rate, end * hop / clip.sample_rate, warnings)
    return PreparedClip(_levelled(used, part.level_db), clip.sample_rate, report, is_part)


def _require_exact(clip: Clip) -> None:
    if clip.sample_rate < TOKENIZER_RATE:
        raise RequestError(
            "sample_rate_too_low",
            f"The sample rate is {clip.sample_rate} Hz; exact mode needs at least {TOKENIZER_RATE} Hz.",
            rate=clip.sample_rate,
        )
    samples_16k = -(-len(clip.samples) * TOKENIZER_RATE // clip.sample_rate)
    if samples_16k > MODEL_LIMIT_SECONDS * TOKENIZER_RATE:
        raise RequestError(
            "reference_too_long",
            f"The clip lasts {clip.seconds:.1f} s; exact mode takes at most {MODEL_LIMIT_SECONDS:.0f} s.",
            seconds=round(clip.seconds, 1),
        )


def _require_sound(loudness: Loudness) -> None:
    stands_out = loudness.loud_db - loudness.noise_db >= _NOISY_DB
    silent = loudness.loud_db < (_SILENT_DB if stands_out else _FAINT_DB)
    if silent and len(loudness.db) >= MIN_SOUND_SECONDS * FRAMES_PER_SECOND:
        raise RequestError("reference_silent", "The reference clip is silent; record it again, louder.")
    if loudness.active_seconds < MIN_SOUND_SECONDS:
        raise RequestError(
            "reference_too_short",
            f"The reference clip holds {loudness.active_seconds:.1f} s of sound; give 3 to 10 s of speech.",
            seconds=round(loudness.active_seconds, 2),
        )


def _with_margins(loudness: Loudness, start: int, end: int) -> tuple[int, int]:
    return max(0, start - _LEAD_FRAMES), min(len(loudness.db), end + _TAIL_FRAMES)


# --------------------------------------------------------------------------- the best part of a clip
def _best_part(loudness: Loudness, clipped: FloatAudio) -> tuple[int, int]:
    """Frames of the part between two pauses that is long, dense and clean, and ends where somebody breathes."""
    least, most = (int(seconds * FRAMES_PER_SECOND) for seconds in _BEST_SECONDS)
    first, last = loudness.span()
    pauses = [(first, first), *loudness.pauses(), (last, last)]
    best, best_score = _part_without_pauses(loudness, first, last), -math.inf
    for number, (pause_start, start) in enumerate(pauses):
        for end, pause_end in pauses[number + 1 :]:
            if end - start > most:
                break
            if end - start < least:
                continue
            edges = min(start - pause_start, 50) + min(pause_end - end, 50)
            score = _part_score(loudness, clipped, start, end) + 0.003 * edges
            if score > best_score:
                best, best_score = (start, end), score
    start, end = _with_margins(loudness, *best)
    return start, end


def _part_score(loudness: Loudness, clipped: FloatAudio, start: int, end: int) -> float:
    """About 0 to 3: length up to 8 s, share of sound, distance from loud to quiet, less what is clipped."""
    length = min((end - start) / FRAMES_PER_SECOND / 8.0, 1.0)
    density = float(loudness.active[start:end].mean())
    quiet, loud = np.percentile(loudness.db[start:end], (10, 95))
    contrast = min(float(loud - quiet) / 30.0, 1.0)
    return length + density + contrast - min(100.0 * float(clipped[start:end].mean()), 2.0)


def _part_without_pauses(loudness: Loudness, first: int, last: int) -> tuple[int, int]:
    """For somebody who never breathes: up to the quietest moment between 6 and 10 s."""
    latest = min(last, first + 10 * FRAMES_PER_SECOND)
    earliest = min(first + 6 * FRAMES_PER_SECOND, latest - 1)
    return first, earliest + int(np.argmin(loudness.db[earliest:latest]))


def _clipped_per_frame(clip: Clip) -> FloatAudio:
    hop = clip.sample_rate // FRAMES_PER_SECOND
    frames = clip.samples[: len(clip.samples) // hop * hop].reshape(-1, hop)
    share: FloatAudio = (np.abs(frames) >= _FULL_SCALE).mean(axis=1, dtype=np.float32)
    return share


# ---------------------------------------------------------------------------------- level and report
def _levelled(samples: FloatAudio, level_db: float) -> FloatAudio:
    """Lift what is quiet and bring what exceeds full scale back under it; all else stays as recorded."""
    peak = float(np.abs(samples).max())
    gain = 10.0 ** ((_LIFTED_DB - level_db) / 20.0) if level_db < _QUIET_DB else 1.0
    gain = min(gain, 0.95 / peak) if gain > 1.0 or peak > 1.0 else gain
    return samples if gain == 1.0 else samples * np.float32(gain)


def _warnings(
    clip: Clip, used: FloatAudio, whole: Loudness, part: Loudness, is_part: bool, has_transcript: bool
) -> tuple[str, ...]:
    seconds = len(used) / clip.sample_rate
    found = {
        "long_cut": is_part,
        "transcript_dropped": is_part and has_transcript,
        "long": not is_part and seconds > LONG_SECONDS,
        "short": part.active_seconds < _ADVISED_SECONDS,
        "low_rate": clip.sample_rate < TOKENIZER_RATE,
        "quiet": part.level_db < _QUIET_DB,
        "noisy": part.level_db - min(whole.noise_db, part.noise_db) < _NOISY_DB,
        "clipped": _clipped_share(used) > _CLIPPED_SHARE,
        "damaged": clip.damaged,
    }
    return tuple(code for code, applies in found.items() if applies)


def _clipped_share(samples: FloatAudio) -> float:
    return float((np.abs(samples) >= _FULL_SCALE).mean()) if len(samples) else 0.0


def _report(
    clip: Clip, used: FloatAudio, part: Loudness, start: float, end: float, warnings: tuple[str, ...]
) -> ReferenceReport:
    return ReferenceReport(
        duration=clip.seconds,
        used_start=start,
        used_end=end,
        sample_rate=clip.sample_rate,
        level_db=part.level_db,
        noise_db=part.noise_db,
        clipped_share=_clipped_share(used),
        warnings=warnings,
    )

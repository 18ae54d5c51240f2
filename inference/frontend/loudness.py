"""Where the sound of a clip is: levels of 10 ms frames, speech against silence, pauses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from inference.types import FloatAudio

FRAMES_PER_SECOND = 100
_SILENCE_DB = -100.0
_CLICK_FRAMES = 5  # shorter sounds are clicks
_BREAK_FRAMES = 15  # shorter gaps are inside words (closures of stops)
_LOUD_FRAMES = 30  # a clip is as loud as what it reaches for 0.3 s: no click, but one word in a minute


@dataclass(frozen=True)
class Loudness:
    """Frame levels of a clip and what they say."""

    db: npt.NDArray[np.float64]  # (F,) dBFS of each 10 ms frame
    active: npt.NDArray[np.bool_]  # (F,) sound, gaps inside words closed
    loud_db: float  # level of the loudest parts
    noise_db: float  # RMS of the quietest tenth

    @property
    def level_db(self) -> float:
        """RMS over the active frames, dBFS."""
        return mean_db(self.db[self.active])

    @property
    def active_seconds(self) -> float:
        return float(self.active.sum()) / FRAMES_PER_SECOND

    def span(self) -> tuple[int, int]:
        """First active frame and the one after the last; (0, 0) if there is none."""
        frames = np.flatnonzero(self.active)
        return (int(frames[0]), int(frames[-1]) + 1) if len(frames) else (0, 0)

    def pauses(self) -> list[tuple[int, int]]:
        """Silent runs between sounds as (first frame, frame after)."""
        start, end = self.span()
        return [(a + start, b + start) for a, b in _runs(~self.active[start:end])]


def measure_loudness(samples: FloatAudio, sample_rate: int) -> Loudness:
    """Analyse (n,) samples; a last partial frame is left out, so fewer than 10 ms give no frames at all."""
    hop = sample_rate // FRAMES_PER_SECOND
    power = _frame_power(samples[: len(samples) // hop * hop].reshape(-1, hop))
    if not len(power):
        return Loudness(np.zeros(0), np.zeros(0, dtype=bool), _SILENCE_DB, _SILENCE_DB)
    db = to_db(power)
    ordered = np.sort(db)
    loud = float(ordered[-min(_LOUD_FRAMES, len(db))])
    noise = mean_db(ordered[: max(1, len(db) // 10)])
    return Loudness(db, _active_frames(db, _threshold(loud, noise)), loud, noise)


def _frame_power(frames: FloatAudio) -> npt.NDArray[np.float64]:
    """(F, hop) → (F,) mean square about the mean of the clip, in blocks, as a clip may be large."""
    offset = frames.mean(dtype=np.float64) if frames.size else 0.0
    blocks = [frames[start : start + 1000] for start in range(0, len(frames), 1000)]
    return np.concatenate(
        [np.zeros(0), *(np.square(block.astype(np.float64) - offset).mean(axis=1) for block in blocks)]
    )


def to_db(power: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    decibels: npt.NDArray[np.float64] = 10.0 * np.log10(np.maximum(power, 10 ** (_SILENCE_DB / 10)))
    return decibels


def mean_db(db: npt.NDArray[np.float64]) -> float:
    """Level of the mean power of frames given in dB."""
    return float(to_db(np.mean(10.0 ** (db / 10.0), keepdims=True))[0]) if len(db) else _SILENCE_DB


def _threshold(loud: float, noise: float) -> float:
    """A little over the noise, but never so high that a clip without any pause loses its quiet sounds."""
    return max(loud - 35.0, min(noise + 8.0, loud - 15.0))


def _active_frames(db: npt.NDArray[np.float64], threshold: float) -> npt.NDArray[np.bool_]:
    active = db > threshold
    for start, end in _runs(~active):
        if end - start < _BREAK_FRAMES and start > 0 and end < len(active):
            active[start:end] = True
    for start, end in _runs(active):
        if end - start < _CLICK_FRAMES:
            active[start:end] = False
    return active


def _runs(mask: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Stretches of True as (first, one after the last)."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]

"""New speakers from one voice: pitch, vocal-tract length and timbre changed in the WORLD domain."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from training import world

RATE = 24000
Array = npt.NDArray[np.float64]

_TRACT_KNOTS = np.array([0.0, 500.0, 1200.0, 2200.0, 3600.0, 5500.0, 12000.0])  # Hz
_EQ_KNOTS = np.array([0.0, 200.0, 400.0, 700.0, 1200.0, 2000.0, 3200.0, 5000.0, 8000.0, 12000.0])  # Hz
_NATURAL_LOG_PER_DB = np.log(10.0) / 10.0  # of power


@dataclass(frozen=True)
class Speaker:
    """How one made-up speaker differs from the teacher."""

    pitch: float  # factor on the mean F0
    intonation: float  # factor on log-F0 movement around its median
    tract: float  # formant frequencies are divided by this
    knots: tuple[float, ...]  # relative change of `tract` at the inner knots
    tilt: float  # dB per octave around 1 kHz
    equaliser: tuple[float, ...]  # dB at the equaliser knots
    breath: float  # exponent on aperiodicity: below 1 is breathier
    pace: float  # speed of the teacher


# Limits of (pitch factor, tract factor) for a man, a woman and a child, by who is being changed.
_FROM_WOMAN = (((0.46, 0.74), (0.82, 0.96)), ((0.78, 1.2), (0.93, 1.08)), ((1.15, 1.45), (1.05, 1.18)))
_FROM_MAN = (((0.82, 1.2), (0.92, 1.08)), ((1.5, 2.1), (1.06, 1.18)), ((2.0, 2.4), (1.14, 1.24)))


def draw_speaker(rng: np.random.Generator, from_man: bool = False) -> Speaker:
    """A random man, woman or child within limits that stay natural for a female (or male) teacher."""
    kind = rng.choice(3, p=[0.46, 0.44, 0.10])
    pitch_range, tract_range = (_FROM_MAN if from_man else _FROM_WOMAN)[kind]
    return Speaker(
        pitch=float(rng.uniform(*pitch_range)),
        intonation=float(rng.uniform(0.6, 1.5)),
        tract=float(rng.uniform(*tract_range)),
        knots=tuple(rng.normal(0.0, 0.05, 4)),
        tilt=float(rng.uniform(-3.0, 2.0)),
        equaliser=tuple(rng.normal(0.0, 3.0, len(_EQ_KNOTS))),
        breath=float(np.exp(rng.uniform(-0.7, 0.4))),
        pace=float(rng.uniform(0.9, 1.1)),
    )


def warp(wave: npt.NDArray[np.float32], f0: Array, speaker: Speaker) -> tuple[npt.NDArray[np.float32], Array]:
    """The same words by `speaker`; wave: (n,) at 24 kHz, f0: its pitch every 5 ms (0 = unvoiced).

    Returns the new waveform (about n samples) and its pitch every 5 ms.
    """
    envelope, aperiodicity = world.analyse(wave.astype(np.float64), RATE, f0)
    new_f0 = _shift_pitch(f0, speaker)
    source = _source_bins(envelope.shape[1], speaker)
    log_envelope = _resample_bins(np.log(envelope), source) + _gain(envelope.shape[1], speaker)
    new_aperiodicity = np.clip(_resample_bins(aperiodicity, source), 1e-6, 1.0) ** speaker.breath
    result = world.synthesise(new_f0, np.exp(log_envelope), new_aperiodicity, RATE)
    return result.astype(np.float32), new_f0


def _shift_pitch(f0: Array, speaker: Speaker) -> Array:
    voiced = f0 > 0
    if not voiced.any():
        return f0
    log_f0 = np.log(f0[voiced])
    middle = np.median(log_f0)
    shifted: Array = f0.copy()
    moved = middle + np.log(speaker.pitch) + (log_f0 - middle) * speaker.intonation
    shifted[voiced] = np.clip(np.exp(moved), 60.0, 500.0)
    return shifted


def _source_bins(bins: int, speaker: Speaker) -> Array:
    """For each output bin, the (fractional) bin of the teacher's envelope it takes its value from."""
    scale = 1.0 + np.array([0.0, *speaker.knots, 0.0, 0.0])
    moved = np.maximum.accumulate(np.clip(_TRACT_KNOTS * speaker.tract * scale, 0.0, 11500.0) + np.arange(7))
    moved[-1] = 12000.0
    frequencies = np.linspace(0.0, 12000.0, bins)
    source: Array = np.interp(frequencies, moved, _TRACT_KNOTS) / 12000.0 * (bins - 1)
    return np.minimum(source, bins - 1.001)


def _resample_bins(matrix: Array, source: Array) -> Array:
    lower = source.astype(np.int64)
    weight = source - lower
    result: Array = matrix[:, lower] * (1.0 - weight) + matrix[:, lower + 1] * weight
    return result


def _gain(bins: int, speaker: Speaker) -> Array:
    """Natural-log power gain per bin."""
    frequencies = np.linspace(0.0, 12000.0, bins)
    octaves = np.clip(np.log2(np.maximum(frequencies, 100.0) / 1000.0), -3.0, 3.6)
    decibels = speaker.tilt * octaves + np.interp(frequencies, _EQ_KNOTS, speaker.equaliser)
    result: Array = decibels * _NATURAL_LOG_PER_DB
    return result

"""What the evaluation measures on one utterance: words, pitch, level, and signs of a broken voice."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from training.phones import edit_distance

Wave = npt.NDArray[np.float32]

_UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
_TENS = "zero ten twenty thirty forty fifty sixty seventy eighty ninety".split()
_SAME = {"mr": "mister", "mrs": "missus", "dr": "doctor", "ok": "okay", "grey": "gray", "colour": "color"}
_FRAME = 480  # samples at 16 kHz: 30 ms
_HOP = 160


# --------------------------------------------------------------------------------------------------------------- words
def number_words(number: int) -> str:
    """Cardinal in words, up to 999 999 999; larger numbers digit by digit."""
    if number < 20:
        return _UNITS[number]
    if number < 100:
        return _TENS[number // 10] + (f" {_UNITS[number % 10]}" if number % 10 else "")
    for size, name in ((1_000_000, "million"), (1000, "thousand"), (100, "hundred")):
        if number >= size and number < size * 1000:
            rest = f" {number_words(number % size)}" if number % size else ""
            return f"{number_words(number // size)} {name}{rest}"
    return " ".join(_UNITS[int(digit)] for digit in str(number))


def english_words(text: str) -> list[str]:
    """Lower case, no punctuation, numbers in words, hyphens as spaces."""
    text = re.sub(r"(\d),(\d{3})", r"\1\2", text.lower().replace("’", "'"))
    text = re.sub(r"\d+", lambda found: f" {number_words(int(found.group()))} ", text).replace(
        "%", " percent "
    )
    words = re.sub(r"[^a-z' ]", " ", text).replace("'", "").split()
    return [_SAME.get(word, word) for word in words]


def word_errors(expected: str, heard: str) -> tuple[int, int]:
    """(errors, words expected)."""
    words = english_words(expected)
    return edit_distance(words, english_words(heard)), len(words)


# --------------------------------------------------------------------------------------------------------------- pitch
def median_pitch(wave: Wave) -> float:
    """Median F0 in Hz of the voiced frames of speech at 16 kHz (autocorrelation, 60 to 400 Hz); 0 without voice."""
    if len(wave) < 2 * _FRAME:
        return 0.0
    size = 1024
    frames = np.lib.stride_tricks.sliding_window_view(wave, size)[::_HOP]
    level = np.sqrt((frames**2).mean(1))
    frames = frames[level > 0.3 * level.max()]
    frames = (frames - frames.mean(1, keepdims=True)) * np.hanning(size)
    power = np.abs(np.fft.rfft(frames, 2 * size)) ** 2
    correlation = np.fft.irfft(power)[:, :size]
    window = np.fft.irfft(np.abs(np.fft.rfft(np.hanning(size), 2 * size)) ** 2)[:size]
    normal = correlation / np.maximum(correlation[:, :1], 1e-9) / (window / window[0])
    lags = slice(16000 // 400, 16000 // 60)
    best = normal[:, lags].max(1)
    # The shortest lag that is nearly as good: a plain maximum often takes two periods for one.
    lag = (normal[:, lags] > 0.93 * best[:, None]).argmax(1) + lags.start
    voiced = best > 0.5
    return float(np.median(16000.0 / lag[voiced])) if voiced.any() else 0.0


# -------------------------------------------------------------------------------------------------------------- alarms
def alarms(wave: Wave, text: str) -> list[str]:
    """What is wrong with an utterance at 16 kHz: silent, mostly_silent, runaway, too_short, buzz, clipped."""
    if len(wave) < _FRAME:
        return ["silent"]
    found = []
    frames = wave[: len(wave) // _HOP * _HOP].reshape(-1, _HOP)
    level = 10 * np.log10((frames**2).mean(1) + 1e-12)
    if level.max() < -45.0:
        found.append("silent")
    elif (level < level.max() - 40.0).mean() > 0.6:
        found.append("mostly_silent")
    seconds, words = len(wave) / 16000, max(1, len(english_words(text)))
    if seconds > 1.5 + 0.9 * words:
        found.append("runaway")
    if seconds < 0.12 * words:
        found.append("too_short")
    if (np.abs(wave) > 0.985).mean() > 0.001:
        found.append("clipped")
    if spectral_spike(wave) > 14.0:
        found.append("buzz")
    return found


def spectral_spike(wave: Wave) -> float:
    """How far in dB a narrow peak above 1 kHz stands out of the mean log spectrum: a tone that never moves.

    Of logs, so that one loud vowel with a strong harmonic is none.
    """
    size = 1024
    if len(wave) < 4 * size:
        return 0.0
    frames = np.lib.stride_tricks.sliding_window_view(wave, size)[:: size // 4] * np.hanning(size)
    spectrum = 10 * np.log10(np.abs(np.fft.rfft(frames)) ** 2 + 1e-10).mean(0)
    padded = np.pad(spectrum, 10, mode="edge")
    around = np.median(np.lib.stride_tricks.sliding_window_view(padded, 21), axis=1)
    return float((spectrum - around)[64:].max())

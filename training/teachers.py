"""The openly licensed voices that the nano checkpoint learns from, each behind the same small interface.

* hibari (Apache-2.0): English, one voice, with its pitch known; the base of all warped speakers.
* Kokoro-82M int8 (Apache-2.0): English and Mandarin from phonemes, five styles and mixtures of them.
* flite rms, awb, slt (BSD-like): English, 16 kHz, three voices.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from training import world

RATE = 24000
FloatAudio = npt.NDArray[np.float32]
Track = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Spoken:
    """One utterance of a teacher: 24 kHz sound, pitch every 5 ms, and the phones said."""

    wave: FloatAudio
    f0: Track
    phones: list[str]


_NOT_PHONES = set(" ˈˌ.,!?;:—…\"“”()'-")


def english_phones(phonemes: str) -> list[str]:
    """Phone symbols of a phoneme string, without stress and punctuation."""
    return [symbol for symbol in phonemes if symbol not in _NOT_PHONES]


def mandarin_phones(phonemes: str) -> list[str]:
    """Like `english_phones`; tone arrows stay, and every symbol is marked as Mandarin."""
    return [f"zh{symbol}" for symbol in phonemes if symbol not in _NOT_PHONES]


def resample(wave: FloatAudio, old: int, new: int) -> FloatAudio:
    """Polyphase resampling by a ratio of whole numbers."""
    from math import gcd

    from scipy.signal import resample_poly

    divisor = gcd(old, new)
    return np.asarray(resample_poly(wave, new // divisor, old // divisor), np.float32)


class Hibari:
    """English from text; about 90 times faster than real time on a core."""

    def __init__(self) -> None:
        from hibari import Hibari as Model

        self._model: Any = Model(threads=1)

    def phonemes(self, text: str) -> str:
        return " ".join(self._model.phonemize(text))

    def speak(self, text: str, speed: float, rng: np.random.Generator) -> Spoken:
        from hibari import dsp

        waves, tracks, phones = [], [], []
        for phonemes in self._model.phonemize(text):
            feeds = {
                "ids": np.asarray([self._model.ids(phonemes)], np.int64),
                "speed": np.asarray([speed], np.float32),
            }
            parts = [part[0] for part in self._model.sess.run(None, feeds)]
            wave = dsp.synth(*[part.copy() for part in parts], rng)
            waves.append(wave)
            tracks.append(_every_5_ms(parts[5], len(wave)))
            phones += english_phones(phonemes)
        return Spoken(np.concatenate(waves).astype(np.float32), np.concatenate(tracks), phones)


def _every_5_ms(f0_80hz: npt.NDArray[np.float32], samples: int) -> Track:
    """hibari's pitch (one value per 12.5 ms, below 40 Hz = unvoiced) at WORLD's frame positions."""
    frames = samples * 200 // RATE
    position = np.arange(frames) * 0.4 - 0.5
    index = np.arange(len(f0_80hz))
    voiced = f0_80hz > 40.0
    if not voiced.any():
        return np.zeros(frames)
    pitch = np.interp(position, index[voiced], f0_80hz[voiced].astype(np.float64))
    return np.where(np.interp(position, index, voiced.astype(np.float64)) > 0.5, pitch, 0.0)


class Kokoro:
    """English and Mandarin from phonemes in any mixture of the five styles; two to three times real time a core."""

    def __init__(self, folder: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(
            str(folder / "kokoro.onnx"), options, providers=["CPUExecutionProvider"]
        )
        vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
        self._ids: dict[str, int] = vocabulary["vocab"]
        with np.load(folder / "voices_ja.npz") as styles:
            self._styles = {name: styles[name].astype(np.float32) for name in styles.files}

    def speak(self, phonemes: str, weights: dict[str, float], speed: float) -> tuple[FloatAudio, Track]:
        """Sound and pitch. `weights` mix the named styles and should add up to 1."""
        ids = [self._ids[symbol] for symbol in phonemes if symbol in self._ids][:500]
        row = min(len(ids), 509)
        style = sum(weight * self._styles[name][row].reshape(1, -1) for name, weight in weights.items())
        feeds = {
            "tokens": np.array([[0, *ids, 0]], np.int64),
            "style": np.asarray(style, np.float32),
            "speed": np.array([speed], np.float32),
        }
        wave = np.asarray(self._session.run(None, feeds)[0], np.float32).ravel()
        return wave, world.track_pitch(wave.astype(np.float64), RATE)


class Flite:
    """English by flite's programs of one voice each, which need no other voice's library; 16 kHz."""

    def __init__(self, folder: Path) -> None:
        self._programs = folder / "usr/bin"
        libraries = folder / "usr/lib/x86_64-linux-gnu"
        self._environment = dict(os.environ, LD_LIBRARY_PATH=str(libraries))

    def speak(self, text: str, voice: str) -> tuple[FloatAudio, int]:
        """Sound and its rate in Hz."""
        import wave as wave_module

        with tempfile.NamedTemporaryFile(suffix=".wav") as file:
            subprocess.run(
                [str(self._programs / f"flite_cmu_us_{voice}"), "-t", text, "-o", file.name],
                check=True,
                env=self._environment,
                stdout=subprocess.DEVNULL,
                timeout=30,
            )
            with wave_module.open(file.name) as sound:
                samples = np.frombuffer(sound.readframes(sound.getnframes()), np.int16)
                return samples.astype(np.float32) / 32768.0, sound.getframerate()

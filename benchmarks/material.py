"""Texts of a given number of tokens and speech-like clips of a given length, made on the spot."""

from __future__ import annotations

import io
import wave
from collections.abc import Callable, Sequence

import numpy as np

from inference.types import Int16Audio

WORDS = (
    "the quick brown fox jumps over the lazy dog while seven old ships sail slowly past the quiet harbour "
    "and nobody on the pier knows where they are going or when they will come back again this year"
).split()
TRANSCRIPT = "this is what is said in the clip of the voice"
_RATE = 24000


def text_of(tokens: int, encode: Callable[[str], Sequence[int]], start: int = 0) -> str:
    """A sentence of `tokens` text tokens (or the nearest below); `start` chooses another one."""
    words: list[str] = []
    while True:
        longer = [*words, WORDS[(start + len(words)) % len(WORDS)]]
        count = len(encode(" ".join(longer) + "."))
        if words and count > tokens:
            break
        words = longer
        if count == tokens:
            break
    sentence = " ".join(words) + "."
    while len(encode(sentence)) < tokens:  # words of several tokens rarely fit to the point
        sentence = sentence[:-1] + " a."
    return sentence


def clip(seconds: float, seed: int = 0) -> bytes:
    """WAV file (16 bit, mono) of voiced syllables without long pauses; every seed has a pitch of its own."""
    random = np.random.default_rng(seed)
    time = np.arange(int(seconds * _RATE)) / _RATE
    pitch = random.uniform(100.0, 220.0)
    phase = 2 * np.pi * np.cumsum(pitch * (1 + 0.1 * np.sin(2 * np.pi * 0.7 * time))) / _RATE
    voice = np.zeros_like(time)
    for harmonic in range(1, 20):
        voice += np.sin(harmonic * phase + random.uniform(0, 6)) / harmonic
    envelope = 0.15 + 0.85 * np.sin(np.pi * (time % 0.25) / 0.25) ** 2
    sound = voice * envelope
    return wav_bytes((13000 * sound / np.abs(sound).max()).astype(np.int16), _RATE)


def wav_bytes(pcm: Int16Audio, rate: int) -> bytes:
    """Mono WAV file of (n,) int16 samples."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(pcm.tobytes())
    return buffer.getvalue()

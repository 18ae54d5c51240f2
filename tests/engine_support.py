"""Requests and helpers for the tests of the whole engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from inference.engine import CosyVoice
from inference.runtime.backends import install_spectrum_backend
from inference.types import AudioChunk, Int16Audio, Mode, Reference, SynthesisRequest
from tests.make_clips import REAL_CLIPS, speech, wav_bytes

TEXT = "hello world, this is a test of the voice."
LONG_TEXT = (TEXT + " the quick brown fox jumps over the lazy dog. ") * 5
CLIP = Reference(wav_bytes(speech(4.0, 16000), 16000), "this is a test")
SOURCE = Reference(wav_bytes(speech(6.0, 24000, seed=1, pitch=210.0), 24000))

REQUESTS = {
    Mode.CLONE: SynthesisRequest(Mode.CLONE, TEXT, CLIP),
    Mode.CROSS_LINGUAL: SynthesisRequest(Mode.CROSS_LINGUAL, TEXT, CLIP),
    Mode.INSTRUCT: SynthesisRequest(Mode.INSTRUCT, TEXT, CLIP, instruction="Speak slowly."),
    Mode.PRESET: SynthesisRequest(Mode.PRESET, TEXT, "someone"),
    Mode.CONVERT: SynthesisRequest(Mode.CONVERT, voice=CLIP, source=SOURCE),
}
GOOD = replace(REQUESTS[Mode.CLONE], text="hello world")


def pcm_of(chunks: Sequence[AudioChunk]) -> Int16Audio:
    """All chunks as one signal."""
    return np.concatenate([chunk.pcm for chunk in chunks])


def steady(engine: CosyVoice) -> CosyVoice:
    """The same engine with one pitch and no overload.

    Random weights alone make a noise in which no join could be heard and no rounding error stays small.
    """
    vocoder = engine._to_wave.vocoder
    vocoder.f0_predictor.classifier.weight.data.zero_()
    vocoder.f0_predictor.classifier.bias.data.fill_(150.0)
    vocoder.conv_post.weight.data.mul_(0.2)
    vocoder.conv_post.bias.data[: vocoder.fourier.bins] -= 2.0
    install_spectrum_backend(vocoder)  # it has copies of the weights
    return engine


def real_clips() -> list[Path]:
    """The recorded speakers, [] where the shared reference is not at hand."""
    return sorted(REAL_CLIPS.glob("*.wav"))

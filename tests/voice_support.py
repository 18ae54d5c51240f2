"""Voices for tests of the library: made by no model, of the right shapes."""

from __future__ import annotations

import numpy as np

from inference.frontend.audio import Clip
from inference.frontend.reference import PreparedClip, prepare_clip
from inference.types import Reference, Voice
from tests.make_clips import speech

RATE = 24000


def prepared_clip(seconds: float = 3.0, seed: int = 0) -> PreparedClip:
    """What is heard of a clip."""
    return prepare_clip(Clip(speech(seconds, RATE, seed=seed), RATE))


def made_voice(transcript: str = "What is said.", seed: int = 0, tokens: int = 75) -> Voice:
    """A voice whose numbers depend on `seed`."""
    random = np.random.default_rng(seed)
    return Voice(
        speech_tokens=random.integers(0, 6561, tokens, dtype=np.int32),
        mel=random.standard_normal((2 * tokens, 80), dtype=np.float32),
        speaker=random.standard_normal(192, dtype=np.float32),
        transcript=transcript,
        report=prepared_clip(seed=seed).report,
        content_hash="ab" * 32,
    )


class VoiceMaker:
    """Prepares clips as a pool does, without one; notes them."""

    def __init__(self) -> None:
        self.clips: list[Reference] = []

    async def voice(self, reference: Reference) -> Voice:
        self.clips.append(reference)
        return made_voice(reference.transcript)

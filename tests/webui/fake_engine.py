"""An engine without a model: tones whose pitch is the seed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from inference.types import (
    AudioChunk,
    Mode,
    Reference,
    ReferenceReport,
    RequestError,
    SynthesisRequest,
    Voice,
)

RATE = 24000
CHUNK = 4800


class FakeEngine:
    """Gives `chunks` pieces of sound; counts the runs that are in progress and those that were closed early."""

    sample_rate = RATE

    def __init__(
        self, chunks: int = 3, warnings: tuple[str, ...] = (), fail_after: int | None = None
    ) -> None:
        self.chunks = chunks
        self.warnings = warnings
        self.fail_after = fail_after
        self.running = 0
        self.most_running = 0
        self.closed = 0
        self.requests: list[SynthesisRequest] = []

    def synthesize(self, request: SynthesisRequest) -> Iterator[AudioChunk]:
        self.requests.append(request)
        if not request.text:
            raise RequestError("empty_text", "Write the text that should be spoken.")
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            for index in range(self.chunks):
                if index == self.fail_after:
                    raise ZeroDivisionError("a bug")
                yield AudioChunk(
                    tone(request.seed, index), RATE, index, request.text, index == self.chunks - 1
                )
            yield AudioChunk(np.zeros(0, np.int16), RATE, self.chunks, request.text, True)
        except GeneratorExit:
            self.closed += 1
            raise
        finally:
            self.running -= 1

    def prepare_voice(self, reference: Reference) -> Voice:
        report = ReferenceReport(5.0, 0.0, 5.0, 16000, -20.0, -60.0, 0.0, self.warnings)
        empty = np.zeros(0, np.float32)
        return Voice(np.zeros(0, np.int32), empty.reshape(0, 80), empty, reference.transcript, report)


def tone(seed: int, index: int) -> np.ndarray:
    times = np.arange(index * CHUNK, (index + 1) * CHUNK) / RATE
    return (8000 * np.sin(2 * np.pi * (200 + 10 * seed) * times)).astype(np.int16)


def spoken(seed: int, chunks: int = 3) -> np.ndarray:
    return np.concatenate([tone(seed, index) for index in range(chunks)])


def request(text: str = "Hello.", seed: int = 1) -> SynthesisRequest:
    return SynthesisRequest(Mode.CROSS_LINGUAL, text, Reference(Path("clip.wav")), seed=seed, stream=True)

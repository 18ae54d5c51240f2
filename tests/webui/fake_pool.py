"""A pool without a model: tones whose pitch is the seed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import numpy as np

from inference.pool_status import PoolStatus
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


class FakeSubmission:
    """One request's sound; `position` counts down while nobody asks for it."""

    def __init__(self, chunks: AsyncGenerator[AudioChunk, None], position: int) -> None:
        self._chunks = chunks
        self.position = position

    def __aiter__(self) -> AsyncIterator[AudioChunk]:
        return self

    async def __anext__(self) -> AudioChunk:
        while self.position > 0:
            await asyncio.sleep(0.01)
            self.position -= 1
        return await anext(self._chunks)

    async def aclose(self) -> None:
        await self._chunks.aclose()


class FakePool:
    """Gives `chunks` pieces of sound; counts the requests that are in progress and those that were closed early.

    `pause`: seconds before each piece; `position`: place of each new request in the queue.
    """

    sample_rate = RATE

    def __init__(
        self,
        chunks: int = 3,
        warnings: tuple[str, ...] = (),
        fail_after: int | None = None,
        pause: float = 0.0,
        position: int = 0,
    ) -> None:
        self.chunks = chunks
        self.warnings = warnings
        self.fail_after = fail_after
        self.pause = pause
        self.position = position
        self.ready = True
        self.running = 0
        self.waiting = 0
        self.most_running = 0
        self.closed = 0
        self.requests: list[SynthesisRequest] = []

    def status(self) -> PoolStatus:
        return PoolStatus(self.ready, False, self.waiting, self.running, 32, ())

    def submit(self, request: SynthesisRequest) -> FakeSubmission:
        self.requests.append(request)
        if not request.text:
            raise RequestError("empty_text", "Write the text that should be spoken.")
        return FakeSubmission(self._speak(request), self.position)

    async def _speak(self, request: SynthesisRequest) -> AsyncGenerator[AudioChunk, None]:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            for index in range(self.chunks):
                if index == self.fail_after:
                    raise ZeroDivisionError("a bug")
                await asyncio.sleep(self.pause)
                yield AudioChunk(
                    tone(request.seed, index), RATE, index, request.text, index == self.chunks - 1
                )
            yield AudioChunk(np.zeros(0, np.int16), RATE, self.chunks, request.text, True)
        except (GeneratorExit, asyncio.CancelledError):
            self.closed += 1
            raise
        finally:
            self.running -= 1

    async def voice(self, reference: Reference) -> Voice:
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

"""A request on its way through the pool: its sound as it comes, and signs of life in between."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from inference.pool_status import PoolStatus
from inference.types import AudioChunk, Int16Audio, Reference, SynthesisRequest, Voice

SIGN_SECONDS = 0.4  # between two signs of life while there is no sound


class Spoken(Protocol):
    """A request that was handed in: its sound, and its place until that comes."""

    @property
    def position(self) -> int: ...

    def __aiter__(self) -> AsyncIterator[AudioChunk]: ...

    async def __anext__(self) -> AudioChunk: ...

    async def aclose(self) -> None: ...


class SpeechPool(Protocol):
    """The part of `inference.pool.WorkerPool` that the page uses."""

    @property
    def sample_rate(self) -> int: ...

    def status(self) -> PoolStatus: ...

    def submit(self, request: SynthesisRequest) -> Spoken: ...

    async def voice(self, reference: Reference) -> Voice: ...


@dataclass(frozen=True)
class Waiting:
    """Nothing new to hear. Comes every moment, as Gradio notices a closed page only when it is given something."""

    position: int  # how many are served before; 0: this one is being served
    loading: bool = False  # nobody is served yet


class Speaking:
    """One request on its way: what has sounded so far and when."""

    def __init__(self, pool: SpeechPool, request: SynthesisRequest) -> None:
        self.started = time.perf_counter()
        self.first_audio = 0.0
        self.wait = 0.0
        self.pieces: list[Int16Audio] = []
        self._pool = pool
        self._submission = pool.submit(request)

    async def parts(self) -> AsyncGenerator[Waiting | AudioChunk, None]:
        try:
            async with aclosing(_with_signs_of_life(self._submission, self._waiting)) as parts:
                async for part in parts:
                    if isinstance(part, AudioChunk):
                        self.wait = part.timings.queue
                        if not len(part.pcm):
                            continue
                        self.first_audio = self.first_audio or time.perf_counter() - self.started
                        self.pieces.append(part.pcm)
                    yield part
        finally:
            await self._submission.aclose()

    def _waiting(self) -> Waiting:
        position = self._submission.position
        return Waiting(position, position > 0 and not self._pool.status().ready)


async def _with_signs_of_life(
    spoken: Spoken, waiting: Callable[[], Waiting]
) -> AsyncGenerator[Waiting | AudioChunk, None]:
    """The chunks, and what `waiting` gives whenever none has come for a while."""
    pending: asyncio.Task[AudioChunk | None] | None = None
    try:
        while True:
            pending = asyncio.ensure_future(_next(spoken))
            while not (await asyncio.wait({pending}, timeout=SIGN_SECONDS))[0]:
                yield waiting()
            chunk = pending.result()
            if chunk is None:
                return
            yield chunk
    finally:
        if pending and not pending.done():  # the visitor has left
            pending.cancel()
            await asyncio.gather(pending, return_exceptions=True)


async def _next(spoken: Spoken) -> AudioChunk | None:
    return await anext(spoken, None)

"""What the page asks of the pool: speak a request, in pieces, and keep the result as a file."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from inference.frontend.encode import encode_audio
from inference.types import (
    AudioChunk,
    EngineError,
    Int16Audio,
    Reference,
    SynthesisError,
    SynthesisRequest,
    Voice,
)

SIGN_SECONDS = 0.4  # between two signs of life while there is no sound
WARNING_SECONDS = 1.0


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

    def submit(self, request: SynthesisRequest) -> Spoken: ...

    async def voice(self, reference: Reference) -> Voice: ...


@dataclass(frozen=True)
class Waiting:
    """Nothing new to hear. Comes every moment, as Gradio notices a closed page only when it is given something."""

    position: int  # how many are served before; 0: this one is being served


@dataclass(frozen=True)
class Take:
    """A finished piece of speech and the facts about it."""

    path: Path
    seed: int
    first_audio: float  # seconds from the click to the first sound
    elapsed: float  # seconds from the click to the end
    duration: float  # seconds of audio
    warnings: tuple[str, ...] = ()  # codes of the reference clip's report

    @property
    def real_time_factor(self) -> float:
        return self.elapsed / self.duration if self.duration else 0.0


class Studio:
    """A pool that all visitors share, and the folder that their finished sound goes to."""

    def __init__(self, pool: SpeechPool, output_dir: Path) -> None:
        """Raises `EngineError("output_not_writable")`."""
        self._pool = pool
        self.speaking = 0  # requests that visitors wait for
        self.output_dir = output_dir
        try:
            output_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._not_writable(error) from error

    async def speak(self, request: SynthesisRequest) -> AsyncGenerator[Waiting | AudioChunk | Take, None]:
        """Yield each chunk as it is made, `Waiting` in between, then the finished take.

        Closing the generator takes the request out of the pool. Raises what the pool raises (`RequestError`,
        `EngineError`), and EngineError no_sound or output_not_writable; no file is left behind then.
        """
        self.speaking += 1
        try:
            async with aclosing(self._speak(request)) as parts:
                async for part in parts:
                    yield part
        finally:
            self.speaking -= 1

    async def _speak(self, request: SynthesisRequest) -> AsyncGenerator[Waiting | AudioChunk | Take, None]:
        started = time.perf_counter()
        first_audio = 0.0
        pieces: list[Int16Audio] = []
        spoken = self._pool.submit(request)
        try:
            async with aclosing(_with_signs_of_life(spoken)) as parts:
                async for part in parts:
                    if isinstance(part, AudioChunk):
                        if not len(part.pcm):
                            continue
                        first_audio = first_audio or time.perf_counter() - started
                        pieces.append(part.pcm)
                    yield part
        finally:
            await spoken.aclose()
        if not pieces:
            raise EngineError("no_sound", "The model produced no sound; try again with another seed.")
        elapsed = time.perf_counter() - started
        pcm = np.concatenate(pieces)
        path = await asyncio.to_thread(self._save, pcm, request)
        warnings = await self._warnings(request)
        yield Take(path, request.seed, first_audio, elapsed, len(pcm) / self._pool.sample_rate, warnings)

    async def _warnings(self, request: SynthesisRequest) -> tuple[str, ...]:
        voice = request.voice
        if isinstance(voice, Reference):
            try:  # the worker has kept it; but it may be too busy to say so, and the sound must not wait for that
                voice = await asyncio.wait_for(self._pool.voice(voice), WARNING_SECONDS)
            except (asyncio.TimeoutError, SynthesisError):
                return ()
        return voice.report.warnings if isinstance(voice, Voice) and voice.report else ()

    def _save(self, pcm: Int16Audio, request: SynthesisRequest) -> Path:
        # The last part of the name cannot be guessed, so no visitor can fetch another's sound.
        stem = f"{time.strftime('%Y%m%d-%H%M%S')}_{request.mode.value}_{request.seed}_{secrets.token_hex(4)}"
        path = self.output_dir / f"{stem}.wav"
        partial = path.with_suffix(".part")
        try:
            partial.write_bytes(encode_audio(pcm, self._pool.sample_rate, "wav"))
            partial.replace(path)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise self._not_writable(error) from error
        return path

    def _not_writable(self, error: OSError) -> EngineError:
        return EngineError(
            "output_not_writable",
            f"Sound cannot be saved in {self.output_dir} ({error.strerror}); check permissions and free space.",
            folder=str(self.output_dir),
        )


async def _with_signs_of_life(spoken: Spoken) -> AsyncGenerator[Waiting | AudioChunk, None]:
    """The chunks, and `Waiting` whenever none has come for a while."""
    pending: asyncio.Task[AudioChunk | None] | None = None
    try:
        while True:
            pending = asyncio.ensure_future(_next(spoken))
            while not (await asyncio.wait({pending}, timeout=SIGN_SECONDS))[0]:
                yield Waiting(spoken.position)
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

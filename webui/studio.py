"""What the page asks of the pool: speak a request, in pieces, and keep the result as a file."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from inference.types import (
    AudioChunk,
    EngineError,
    Reference,
    SynthesisError,
    SynthesisRequest,
    Voice,
)
from webui.batch.jobs import BatchJobs
from webui.history import History
from webui.limits import Limiter, VisitorLimits
from webui.logins import Logins
from webui.metrics import MeteredPool
from webui.outputs import STATE, Outputs, Retention, hand_out
from webui.share import Sharing
from webui.speaking import Speaking, SpeechPool, Waiting

if TYPE_CHECKING:
    from inference.voices import VoiceLibrary
    from webui.preview import TextPreview
    from webui.transcribe import Transcriber

logger = logging.getLogger(__name__)

WARNING_SECONDS = 1.0


@dataclass(frozen=True)
class Take:
    """A finished piece of speech and the facts about it."""

    path: Path
    seed: int
    first_audio: float  # seconds from the click to the first sound
    elapsed: float  # seconds from the click to the end
    duration: float  # seconds of audio
    warnings: tuple[str, ...] = ()  # codes of the reference clip's report
    wait: float = 0.0  # seconds in the queue, of `elapsed`
    audio_format: str = "wav"

    @property
    def real_time_factor(self) -> float:
        return self.elapsed / self.duration if self.duration else 0.0

    @property
    def shown(self) -> str:
        """Path of the copy that is given to the visitor."""
        return hand_out(self.path)


class Studio:
    """A pool that all visitors share, the folder that their finished sound goes to, and what each may take of both."""

    def __init__(
        self,
        pool: SpeechPool,
        output_dir: Path,
        *,
        voices: VoiceLibrary | None = None,
        texts: TextPreview | None = None,
        transcriber: Transcriber | None = None,
        limits: VisitorLimits | None = None,
        retention: Retention | None = None,
        logins: Logins | None = None,
    ) -> None:
        """Raises `EngineError("output_not_writable")`."""
        self._pool = self.pool = pool
        self.texts = texts
        self.transcriber = transcriber
        self.speaking = 0  # requests that visitors wait for
        self.output_dir = output_dir
        self.outputs = Outputs(output_dir, retention)
        self.voices = voices
        self.texts = texts
        self.limiter = Limiter(limits)
        self.logins = logins or Logins({})
        self.sharing = Sharing()
        state = output_dir / STATE
        try:
            self.history = History(state / "history.sqlite3", output_dir)
        except (OSError, sqlite3.Error) as error:
            raise self.outputs.not_writable(error) from error
        spoken_by = pool.for_front("batch") if isinstance(pool, MeteredPool) else pool
        self.jobs = BatchJobs(spoken_by, state / "batches")

    def close(self) -> None:
        """Stop the batches, which go on at the next start, and close the history."""
        self.jobs.close()
        self.history.close()

    def clean(self) -> None:
        """Remove what is too old or too much, of finished sound, batches and the lines about them."""
        self.outputs.clean()
        self.jobs.clean(self.outputs.retention.seconds, self.outputs.retention.bytes)
        self.history.forget()

    async def speak(
        self,
        request: SynthesisRequest,
        *,
        audio_format: str = "wav",
        voice_name: str = "",
        visitor: str = "",
        caller: str = "",
        settings: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[Waiting | AudioChunk | Take, None]:
        """Yield each chunk as it is made, `Waiting` in between, then the finished take.

        `voice_name`: of a saved voice, for the file's name; `visitor`: whose history it goes to; `caller`: whom the
        limits count; `settings`: for the history, to be used again.

        Closing the generator takes the request out of the pool. Raises what the pool raises (`RequestError`,
        `EngineError`), what the limiter raises, and EngineError no_sound or output_not_writable; no file is left
        behind then.
        """
        self.speaking += 1
        try:
            with self.limiter.enter(caller, len(request.text)):
                spoken = Speaking(self._pool, request)
                async with aclosing(spoken.parts()) as parts:
                    async for part in parts:
                        yield part
                take = await self._keep(spoken, request, audio_format, voice_name)
            if visitor:
                await asyncio.to_thread(self._note, take, request, visitor, voice_name, settings)
            yield take
        finally:
            self.speaking -= 1

    async def _keep(
        self, spoken: Speaking, request: SynthesisRequest, audio_format: str, voice_name: str
    ) -> Take:
        if not spoken.pieces:
            raise EngineError("no_sound", "The model produced no sound; try again with another seed.")
        elapsed = time.perf_counter() - spoken.started
        pcm = np.concatenate(spoken.pieces)
        path = await asyncio.to_thread(
            self.outputs.save,
            pcm,
            self._pool.sample_rate,
            mode=request.mode,
            seed=request.seed,
            voice=voice_name,
            audio_format=audio_format,
        )
        return Take(
            path,
            request.seed,
            spoken.first_audio,
            elapsed,
            len(pcm) / self._pool.sample_rate,
            await self._warnings(request),
            spoken.wait,
            audio_format,
        )

    def _note(
        self,
        take: Take,
        request: SynthesisRequest,
        visitor: str,
        voice_name: str,
        settings: Mapping[str, Any] | None,
    ) -> None:
        audio = request.voice.audio if isinstance(request.voice, Reference) else None
        try:
            self.history.add(
                visitor,
                take.path,
                mode=request.mode.value,
                text=request.text,
                seed=request.seed,
                duration=take.duration,
                voice=voice_name,
                settings=settings,
                clip=audio if isinstance(audio, Path) else None,
            )
        except sqlite3.Error:  # the sound is there; that it is not listed must not cost it
            logger.exception("a take could not be noted in the history")

    async def check_reference(self, reference: Reference) -> None:
        """Raise the `RequestError` that speaking with this clip would; also warms it up."""
        await self._pool.voice(reference)

    async def _warnings(self, request: SynthesisRequest) -> tuple[str, ...]:
        voice = request.voice
        if isinstance(voice, Reference):
            try:  # the worker has kept it; but it may be too busy to say so, and the sound must not wait for that
                voice = await asyncio.wait_for(self._pool.voice(voice), WARNING_SECONDS)
            except (asyncio.TimeoutError, SynthesisError):
                return ()
        return voice.report.warnings if isinstance(voice, Voice) and voice.report else ()


__all__ = ["SpeechPool", "Studio", "Take", "Waiting"]

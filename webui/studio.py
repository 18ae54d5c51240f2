"""What the page asks of the engine: speak a request, in pieces, and keep the result as a file."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from inference.frontend.encode import encode_audio
from inference.types import AudioChunk, EngineError, Int16Audio, Reference, SynthesisRequest, Voice


class SpeechEngine(Protocol):
    """The part of `inference.CosyVoice` that the page uses."""

    sample_rate: int

    def synthesize(self, request: SynthesisRequest) -> Iterator[AudioChunk]: ...

    def prepare_voice(self, reference: Reference) -> Voice: ...


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
    """One engine behind one lock, so that visitors take turns and nobody's sound is mixed with another's."""

    def __init__(self, engine: SpeechEngine, output_dir: Path) -> None:
        self._engine = engine
        self._turn = threading.Lock()
        self.output_dir = output_dir
        try:
            output_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._not_writable(error) from error

    def speak(self, request: SynthesisRequest) -> Generator[AudioChunk | Take, None, None]:
        """Yield each chunk as it is made, then the finished take. Closing the generator ends the work and the turn.

        Raises what the engine raises (`RequestError`, `EngineError`), and EngineError no_sound or
        output_not_writable; no file is left behind then.
        """
        started = time.perf_counter()
        first_audio = 0.0
        pieces: list[Int16Audio] = []
        with self._turn:
            # Closed by hand: the turn must not pass on while a forgotten iterator still works.
            with _closing(self._engine.synthesize(request)) as chunks:
                for chunk in chunks:
                    if not len(chunk.pcm):
                        continue
                    first_audio = first_audio or time.perf_counter() - started
                    pieces.append(chunk.pcm)
                    yield chunk
            warnings = self._warnings(request) if pieces else ()
        if not pieces:
            raise EngineError("no_sound", "The model produced no sound; try again with another seed.")
        pcm = np.concatenate(pieces)
        elapsed = time.perf_counter() - started
        path = self._save(pcm, request)
        yield Take(path, request.seed, first_audio, elapsed, len(pcm) / self._engine.sample_rate, warnings)

    def _warnings(self, request: SynthesisRequest) -> tuple[str, ...]:
        voice = request.voice
        if isinstance(voice, Reference):
            voice = self._engine.prepare_voice(voice)  # the engine has kept it
        return voice.report.warnings if isinstance(voice, Voice) and voice.report else ()

    def _save(self, pcm: Int16Audio, request: SynthesisRequest) -> Path:
        # The last part of the name cannot be guessed, so no visitor can fetch another's sound.
        stem = f"{time.strftime('%Y%m%d-%H%M%S')}_{request.mode.value}_{request.seed}_{secrets.token_hex(4)}"
        path = self.output_dir / f"{stem}.wav"
        partial = path.with_suffix(".part")
        try:
            partial.write_bytes(encode_audio(pcm, self._engine.sample_rate, "wav"))
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


@contextmanager
def _closing(chunks: Iterator[AudioChunk]) -> Iterator[Iterator[AudioChunk]]:
    try:
        yield chunks
    finally:
        if isinstance(chunks, Generator):
            chunks.close()

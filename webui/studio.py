"""What the page asks of the engine: speak a request, in pieces, and keep the result as a file."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from inference.frontend.encode import encode_audio
from inference.types import AudioChunk, EngineError, Int16Audio, SynthesisRequest


class SpeechEngine(Protocol):
    """The part of `inference.CosyVoice` that the page uses."""

    sample_rate: int

    def synthesize(self, request: SynthesisRequest) -> Iterator[AudioChunk]: ...


@dataclass(frozen=True)
class Take:
    """A finished piece of speech and the facts about it."""

    path: Path
    seed: int
    first_audio: float  # seconds from the click to the first sound
    elapsed: float  # seconds from the click to the end
    duration: float  # seconds of audio

    @property
    def real_time_factor(self) -> float:
        return self.elapsed / self.duration if self.duration else 0.0


class Studio:
    """One engine behind one lock, so that visitors take turns and nobody's sound is mixed with another's."""

    def __init__(self, engine: SpeechEngine, output_dir: Path) -> None:
        self._engine = engine
        self._turn = threading.Lock()
        self.output_dir = output_dir
        output_dir.mkdir(parents=True, exist_ok=True)

    def speak(self, request: SynthesisRequest) -> Iterator[AudioChunk | Take]:
        """Yield each chunk as it is made, then the finished take.

        Raises what the engine raises (`RequestError`, `EngineError`); no file is left behind then.
        """
        started = time.perf_counter()
        first_audio = 0.0
        pieces: list[Int16Audio] = []
        with self._turn:
            for chunk in self._engine.synthesize(request):
                first_audio = first_audio or time.perf_counter() - started
                pieces.append(chunk.pcm)
                yield chunk
        if not pieces:
            raise EngineError("no_sound", "The model produced no sound; try again with another seed.")
        pcm = np.concatenate(pieces)
        elapsed = time.perf_counter() - started
        path = self._save(pcm, request)
        yield Take(path, request.seed, first_audio, elapsed, len(pcm) / self._engine.sample_rate)

    def _save(self, pcm: Int16Audio, request: SynthesisRequest) -> Path:
        stem = f"{time.strftime('%Y%m%d-%H%M%S')}_{request.mode.value}_{request.seed}"
        data = encode_audio(pcm, self._engine.sample_rate, "wav")
        for attempt in range(1000):
            path = self.output_dir / (f"{stem}.wav" if attempt == 0 else f"{stem}-{attempt}.wav")
            partial = path.with_suffix(f".{threading.get_ident()}.part")
            partial.write_bytes(data)
            try:
                path.hardlink_to(partial)  # fails when the name is taken, unlike a rename
                return path
            except FileExistsError:
                continue
            finally:
                partial.unlink()
        raise EngineError("output_full", f"No free file name for {stem} in {self.output_dir}; clear the folder.")

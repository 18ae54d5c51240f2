"""What callers and the engine say to each other: requests, audio chunks, voices and errors."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import numpy as np
import numpy.typing as npt

Int16Audio = npt.NDArray[np.int16]
FloatAudio = npt.NDArray[np.float32]

MIN_SPEED = 0.5
MAX_SPEED = 2.0
MAX_TEXT_CHARACTERS = 5000
MAX_INSTRUCTION_CHARACTERS = 300


class Mode(str, Enum):
    """What a request asks for."""

    CLONE = "clone"
    CROSS_LINGUAL = "cross_lingual"
    INSTRUCT = "instruct"
    PRESET = "preset"
    CONVERT = "convert"


class SynthesisError(Exception):
    """Base of every error this package raises on purpose.

    `code` names the kind for programs and translations, `details` holds the values its sentence mentions,
    and `str(error)` is one English sentence that says what is wrong and what to do.
    """

    def __init__(self, code: str, message: str, **details: str | int | float) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_error, (type(self), self.code, self.message, self.details))


def _rebuild_error(
    kind: type[SynthesisError], code: str, message: str, details: dict[str, str | int | float]
) -> SynthesisError:
    return kind(code, message, **details)


class RequestError(SynthesisError):
    """The caller's input cannot be used; nothing was queued."""


class CheckpointError(SynthesisError):
    """A model folder is missing, incomplete or not what its configuration says."""


class EngineError(SynthesisError):
    """Something failed on our side while serving a valid request."""


@dataclass(frozen=True)
class Reference:
    """A clip of the voice to imitate, and what is said in it.

    `audio` is a file path or the bytes of a file in any common format; a path may be given as a `str` too.
    `transcript` may be empty.
    """

    audio: Path | bytes
    transcript: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.audio, str):  # against the annotation, but what most people write first
            object.__setattr__(self, "audio", Path(self.audio))


@dataclass(frozen=True)
class ReferenceReport:
    """What was found out about a reference clip while it was prepared."""

    duration: float  # seconds in the file
    used_start: float  # seconds, the part that was kept
    used_end: float
    sample_rate: int  # Hz, of the file
    level_db: float  # RMS of the speech, dBFS
    noise_db: float  # RMS of the quietest tenth, dBFS
    clipped_share: float  # share of samples at full scale
    # codes: "long_cut", "transcript_dropped", "long", "short", "low_rate", "quiet", "noisy", "clipped", "damaged",
    # "transcript_doubtful"
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Voice:
    """A prepared reference: all that the models need to imitate a speaker (SPEC 2.7).

    It holds what is heard, never a prompt built for one mode.
    """

    speech_tokens: npt.NDArray[np.int32]  # (N,)
    mel: npt.NDArray[np.float32]  # (2N, 80) natural-log mel at 50 frames a second
    speaker: npt.NDArray[np.float32]  # (192,)
    transcript: str = ""
    report: ReferenceReport | None = None
    content_hash: str = ""


@dataclass(frozen=True)
class SynthesisRequest:
    """One thing to say. Immutable, holds no tensors.

    `voice` is a reference clip, a prepared voice, or a name: in preset mode of a speaker in the model folder, else of
    a saved voice (or its id), which a pool looks up in its library.
    `source` is the speech to convert (convert mode only).
    """

    mode: Mode
    text: str = ""
    voice: Reference | Voice | str | None = None
    instruction: str = ""
    source: Reference | None = None
    speed: float = 1.0
    seed: int = 0
    stream: bool = False
    language: str = "auto"
    exact: bool = False  # follow the original to the letter, quirks included (parity tests)
    request_id: str = ""  # the caller's name for it in logs; changes nothing in the sound


@dataclass(frozen=True)
class Timings:
    """Seconds spent on one request so far.

    In a pool the stages of one request overlap (the next segment is drawn while this one becomes sound), and
    `language_model` is the time during which tokens were drawn, shared with others; so the stages need not add up.
    """

    front_end: float = 0.0
    language_model: float = 0.0
    flow: float = 0.0
    vocoder: float = 0.0
    first_audio: float = 0.0  # from the call to the first chunk
    total: float = 0.0
    queue: float = 0.0  # waiting for a place, a thread and a slot, before the first token
    first_token: float = 0.0  # from the call to the first speech token

    @property
    def synthesis(self) -> float:
        """Tokens to sound: flow and vocoder."""
        return self.flow + self.vocoder


@dataclass(frozen=True)
class AudioChunk:
    """A piece of the answer: mono int16 PCM, in order, never renormalised."""

    pcm: Int16Audio
    sample_rate: int
    index: int
    text: str  # the segment this chunk speaks
    final: bool
    timings: Timings = field(default_factory=Timings)
    segment: int = 0  # number of that segment in the request's text

"""Jobs of the language-model lane: what is asked for, what is told, and what is known on the way."""

from __future__ import annotations

from dataclasses import dataclass, field

from inference.runtime.feed import Feed, SpeechPrompt
from inference.types import EngineError

NO_SLOT = -1


@dataclass(frozen=True)
class SpeechJob:
    """A prompt to speak; `key` names it in events and must not be in use."""

    key: int
    prompt: SpeechPrompt


@dataclass(frozen=True)
class SpeechEvent:
    """New speech tokens of a job, in order. `ended`: no more will come. `error`: it ended because of that."""

    key: int
    tokens: tuple[int, ...]
    ended: bool
    error: EngineError | None = None


@dataclass(eq=False)
class SpeechStream:
    """A job on its way."""

    job: SpeechJob
    feed: Feed
    limit: int  # ids to draw at most
    slot: int = NO_SLOT
    filled: int = 0  # positions whose keys and values are there, once all that was begun is done
    begun: int = 0  # draws begun
    tokens: list[int] = field(default_factory=list)  # read and not yet told
    read: int = 0  # draws read
    ended: bool = False
    error: EngineError | None = None

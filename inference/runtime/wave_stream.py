"""What goes through the token-to-wave lane: streams, the pieces of work on them, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from inference.frontend.prompt import ModelInput
from inference.runtime.clock import Clock
from inference.runtime.paged_flow import PagedStream
from inference.runtime.schedule import ChunkCall
from inference.runtime.token_to_wave import SegmentSound
from inference.types import Int16Audio, SynthesisError


@dataclass
class WaveStream:
    """What one segment keeps in the lane. Made by `WaveLane.open`; nobody else looks inside."""

    model_input: ModelInput
    seed: int
    exact: bool
    sound: SegmentSound  # the plain way, whose vocoder state the batched way uses too
    clock: Clock
    prompt_mel: Tensor | None = None  # (F, 80) on the device; batched lanes only
    speaker: Tensor | None = None  # (80,) projected, on the device
    cache: PagedStream | None = None  # likewise
    closed: bool = False


@dataclass(frozen=True)
class WaveItem:
    """One piece of work: the chunk that `call` describes, or the whole segment at once (None).

    `tokens`: all speech tokens of the segment so far. `key` comes back with the result.
    """

    key: int
    stream: WaveStream
    tokens: tuple[int, ...]
    call: ChunkCall | None

    @property
    def final(self) -> bool:
        return self.call is None or self.call.final

    @property
    def used(self) -> tuple[int, ...]:
        """The tokens that the flow model gets, all since the segment's beginning."""
        return self.tokens if self.call is None else self.tokens[: self.call.token_count]


@dataclass(frozen=True)
class WaveResult:
    """Sound or error of one item; neither for a stream that was closed meanwhile. Seconds are those of its batch."""

    key: int
    pcm: Int16Audio | None
    error: SynthesisError | None = None
    flow_seconds: float = 0.0
    vocoder_seconds: float = 0.0


@dataclass
class Work:
    """An item on its way through a batch."""

    item: WaveItem
    mel: Tensor | None = None  # (M, 80), new frames
    unsound: Tensor | None = None  # 0-d, on the device: above 0 when the mel is not finite
    pcm: Int16Audio | None = None
    error: SynthesisError | None = None
    overflow: str = ""  # "flow" or "vocoder": what to run again in float32
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def stream(self) -> WaveStream:
        return self.item.stream

    def result(self) -> WaveResult:
        found = self.seconds
        return WaveResult(
            self.item.key,
            None if self.error else self.pcm,
            self.error,
            found.get("flow", 0.0),
            found.get("vocoder", 0.0),
        )

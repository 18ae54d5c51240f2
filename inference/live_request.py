"""One request while it is served: which segment may be drawn, which chunk is due, what may be heard in which order.

Plain state: no threads, no tensors. The scheduler holds its lock whenever it touches one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from inference.frontend.requests import SegmentInput
from inference.runtime.schedule import ChunkCall, ChunkSchedule
from inference.runtime.uniforms import derive_seed
from inference.types import (
    AudioChunk,
    EngineError,
    Int16Audio,
    SynthesisError,
    SynthesisRequest,
    Timings,
)

# A file that nobody listens to yet may wait so long before it is as urgent as a stream about to run dry.
WHOLE_PATIENCE = 10.0  # seconds

Urgency = tuple[int, float, int]
Due = tuple[tuple[int, ...], ChunkCall | None]  # tokens, call; call None: the whole segment


@dataclass
class LiveSegment:
    """One segment's way through the lanes."""

    number: int
    input: SegmentInput
    seed: int
    schedule: ChunkSchedule | None  # None: the whole segment at once
    tokens: list[int] = field(default_factory=list)
    drawn: bool = False  # no more tokens will come
    speech_key: int | None = None  # in the language-model lane, while it draws
    stream: Any = None  # in the token-to-wave lane, from the first call to the last
    in_wave: bool = False  # a call is running
    sounded: bool = False  # the last call is done
    dropped: bool = False  # cancelled, failed, or behind one that failed: no more work for it
    error: SynthesisError | None = None
    _call: ChunkCall | None = None
    _made: deque[tuple[Int16Audio, bool]] = field(default_factory=deque)

    @property
    def wants_slot(self) -> bool:
        """Its tokens are still to be drawn."""
        return not (self.drawn or self.dropped) and self.speech_key is None

    @property
    def length(self) -> int:
        """Tokens so far, those of the prompt included."""
        return len(self.tokens) + len(self.input.model_input.flow_prompt_tokens)

    @property
    def is_due(self) -> bool:
        """Whether `due` has something, asked for every token of everybody."""
        if self.in_wave or self.sounded or self.dropped:
            return False
        if self.drawn or self.schedule is None:
            return self.drawn
        return self._call is not None or len(self.tokens) >= self.schedule.tokens_needed()

    def due(self) -> Due | None:
        """The token-to-wave work that can be done now."""
        if not self.is_due:
            return None
        if self.schedule is None:
            return tuple(self.tokens), None
        if self._call is None:
            # As if tokens had been looked at one by one: the schedule must not depend on how fast they come.
            count = len(self.tokens)
            self._call = self.schedule.next_call(count, finished=False)
            if self._call is None and self.drawn:
                self._call = self.schedule.next_call(count, finished=True)
        if self._call is None:
            return None
        return tuple(self.tokens[: self._call.token_count]), self._call

    def add_tokens(self, tokens: tuple[int, ...], ended: bool) -> None:
        """What the language model has drawn."""
        self.tokens.extend(tokens)
        if ended:
            self.drawn, self.speech_key = True, None

    def add_sound(self, pcm: Int16Audio) -> None:
        """The result of what was `due`."""
        last = self._call is None or self._call.final
        self._made.append((pcm, last))
        self.sounded, self._call = last, None

    def take_sound(self) -> Iterator[tuple[Int16Audio, bool]]:
        """(PCM, is it the segment's last) made since the last call."""
        while self._made:
            yield self._made.popleft()


class LiveRequest:
    """A request from its admission to its last chunk.

    `order` is its place among all that came; `waited` the seconds it spent before.
    """

    def __init__(self, key: int, request: SynthesisRequest, order: int, waited: float = 0.0) -> None:
        self.key = key
        self.request = request
        self.order = order
        self.segments: list[LiveSegment] = []
        self.error: SynthesisError | None = None
        self.head = 0  # the segment that is heard now
        self.cancelled = False
        self.started = time.perf_counter() - waited
        self.queue = waited
        self.front_end = self.speech = self.flow = self.vocoder = 0.0
        self.first_token = self._first_audio = 0.0
        self.ready = self.started
        self._first_sent: float | None = None
        self._sent_seconds = 0.0
        self._index = 0

    def begin(self, inputs: list[SegmentInput], lookahead: int) -> None:
        """The front end is done. `lookahead`: tokens that the flow model sees beyond a chunk."""
        self.ready = time.perf_counter()
        for number, given in enumerate(inputs):
            schedule = None
            if self.request.stream:
                schedule = ChunkSchedule(len(given.model_input.flow_prompt_tokens), lookahead)
            seed = derive_seed(self.request.seed, number)
            segment = LiveSegment(number, given, seed, schedule)
            if given.tokens is not None:
                segment.add_tokens(tuple(given.tokens), ended=True)
            self.segments.append(segment)

    @property
    def finished(self) -> bool:
        """Everything has been given out."""
        return bool(self.segments) and self.head == len(self.segments)

    def wanting_slots(self, run_ahead: int) -> Iterator[LiveSegment]:
        """Segments that the language model may begin: the one that is heard and so many after it."""
        for segment in self.segments[self.head : self.head + 1 + run_ahead]:
            if segment.wants_slot:
                yield segment

    def due_segments(self) -> Iterator[LiveSegment]:
        """Segments with token-to-wave work; of a stream only the one that is heard."""
        end = self.head + 1 if self.request.stream else len(self.segments)
        return (segment for segment in self.segments[self.head : end] if segment.is_due)

    def urgency(self, segment: LiveSegment) -> Urgency:
        """Smaller is sooner: first chunks as they came, then by when the listener runs dry, files by their wait."""
        ahead = segment.number - self.head
        if self.request.stream and ahead == 0 and self._first_sent is None:
            return (0, 0.0, self.order)
        if self.request.stream and self._first_sent is not None:
            dry = self._first_sent + self._sent_seconds
        else:
            dry = self.ready + WHOLE_PATIENCE
        return (1, dry + ahead * WHOLE_PATIENCE, self.order)

    def next_chunks(self, sample_rate: int) -> Iterator[AudioChunk]:
        """What can be given out now, in order. `error` is set when the segment that is heard has failed."""
        while self.error is None and self.head < len(self.segments):
            segment = self.segments[self.head]
            for pcm, last in segment.take_sound():
                if len(pcm) or last:
                    final = last and self.head == len(self.segments) - 1
                    yield self._chunk(pcm, sample_rate, segment.input.text, final)
            self.error = segment.error
            if not segment.sounded:
                return
            self.head += 1

    def cut_from(self, segment: LiveSegment, error: SynthesisError) -> list[LiveSegment]:
        """The segment has failed: what comes before it may still be heard. Returns those whose work must stop."""
        segment.error = segment.error or error
        cut = self.segments[segment.number :]
        del self.segments[segment.number + 1 :]
        return cut

    def _chunk(self, pcm: Int16Audio, sample_rate: int, text: str, final: bool) -> AudioChunk:
        now = time.perf_counter()
        if self._first_sent is None:
            self._first_sent, self._first_audio = now, now - self.started
        self._sent_seconds += len(pcm) / sample_rate
        chunk = AudioChunk(pcm, sample_rate, self._index, text, final, self._timings(now), self.head)
        self._index += 1
        return chunk

    def _timings(self, now: float) -> Timings:
        return Timings(
            front_end=self.front_end,
            language_model=self.speech,
            flow=self.flow,
            vocoder=self.vocoder,
            first_audio=self._first_audio,
            total=now - self.started,
            queue=self.queue,
            first_token=self.first_token,
        )


def no_sound() -> EngineError:
    """What a segment without any speech token gets."""
    return EngineError("no_sound", "The model produced no sound; try again with another seed.")

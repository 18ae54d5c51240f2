"""Speech tokens for many requests at once: slots that are filled and given out again between two steps.

A step takes some waiting prompts in (so many symbols at most, a long prompt in parts, so that running streams never
stand still for long) and draws one id for every live slot. What is drawn stays on the device as the next input; the
host reads it a step later (on a GPU up to two), while the device is at the next one. So a row that has ended computes
a step or two more, and what it draws there is dropped.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence

import torch

from inference.models.language_model import LanguageModel
from inference.runtime.lm_choice import make_runner
from inference.runtime.sampling import NOT_FINITE
from inference.runtime.slot_runner import PromptPart, Reading, SlotRunner
from inference.runtime.slot_table import fresh_row
from inference.runtime.speech_stream import NO_SLOT, SpeechEvent, SpeechJob, SpeechStream
from inference.settings import LaneSettings
from inference.types import EngineError, RequestError

__all__ = ["LanguageModelLane", "SpeechEvent", "SpeechJob", "make_runner"]

_WARM_UP_SECONDS = 30.0


class LanguageModelLane:
    """Continuous batching of speech jobs. All methods are to be called from one thread.

    On the CPU in float32 a job's tokens are the same whatever else is served, and so they are on CUDA by our own
    kernels (`make_runner`). By plain steps on CUDA other numbers of rows round differently, which in half precision can
    change a draw.

    `runner` is chosen for the model's device unless given.
    """

    def __init__(
        self, model: LanguageModel, settings: LaneSettings, runner: SlotRunner | None = None
    ) -> None:
        self._cfg = model.cfg
        self._context = settings.context
        self._runner = runner or make_runner(model, settings)
        self._waiting: deque[SpeechStream] = deque()
        self._prefilling: deque[SpeechStream] = deque()
        self._live: dict[int, SpeechStream] = {}  # by slot
        self._free = list(range(self._runner.slots))  # a heap: the lowest slot is given out first
        self._used = [0] * self._runner.slots  # positions of each slot that may hold something
        self._streams: dict[int, SpeechStream] = {}  # by key, all that have not ended
        self._letters: deque[tuple[Reading, Sequence[SpeechStream | None]]] = deque()
        self._changed: dict[int, SpeechStream] = {}  # streams with something to tell

    @property
    def room(self) -> int:
        """Jobs that would get a slot, with all of its memory, at once."""
        return max(0, len(self._free) - len(self._waiting))

    @property
    def busy(self) -> bool:
        """Whether `step` has something to do."""
        return bool(self._streams or self._letters or self._changed)

    @torch.inference_mode()
    def warm_up(self, seconds: float = _WARM_UP_SECONDS) -> None:
        """Load kernels and capture the most used steps, in about `seconds` at most. To be called before any job."""
        with self._runner.on_stream():
            self._runner.warm_up(seconds)

    @torch.inference_mode()
    def idle(self) -> bool:
        """Use a moment without jobs: capture a step that was missed. True if there is more to do when idle."""
        if self.busy:
            return False
        with self._runner.on_stream():
            return self._runner.idle()

    def admit(self, jobs: Sequence[SpeechJob]) -> None:
        """Take jobs in; those beyond `room` wait for a slot.

        A job is cut where the context ends, as it is at its `max_len`: that is 20 tokens a text token, of which speech
        hardly ever needs half. Raises `RequestError("text_too_long")`, with the job's `key` in its details, for one
        whose shortest possible speech would be cut; then none of the jobs is taken.
        """
        streams = [self._stream(job) for job in jobs]
        for stream in streams:
            self._streams[stream.job.key] = stream
            if stream.limit == 0:  # nothing to say
                self._end(stream)
            else:
                self._waiting.append(stream)

    def _stream(self, job: SpeechJob) -> SpeechStream:
        if job.key in self._streams or job.key in self._changed:
            raise ValueError(f"the key {job.key} is in use")
        feed = job.prompt.feed()
        room = self._context - len(feed)
        if room < max(job.prompt.min_len, min(1, job.prompt.max_len)):
            raise RequestError(
                "text_too_long",
                f"The text and its prompt exceed the {self._context} positions set aside; shorten one of them.",
                limit=self._context,
                key=job.key,
            )
        return SpeechStream(job, feed, min(job.prompt.max_len, room))

    def cancel(self, key: int) -> None:
        """Forget a job; its slot is free at once. Unknown keys are ignored."""
        stream = self._streams.pop(key, None)
        self._changed.pop(key, None)
        if stream is None:
            return
        stream.ended = True
        if self._live.get(stream.slot) is stream:
            self._runner.stop(stream.slot)
        self._release(stream)
        for queue in (self._waiting, self._prefilling):
            if stream in queue:
                queue.remove(stream)

    @torch.inference_mode()
    def step(self) -> list[SpeechEvent]:
        """One round: take some prompts in, draw for all live slots, tell what earlier rounds have drawn."""
        with self._runner.on_stream():
            self._prefill()
            decoded = self._decode()
        most = self._runner.steps_ahead if decoded else 0  # the newest ones are still on their way
        while self._letters and (len(self._letters) > most or self._letters[0][0].ready()):
            self._read(*self._letters.popleft())
        return self._tell()

    def memory_bytes(self) -> int:
        """Memory held besides the model's weights."""
        return self._runner.memory_bytes()

    # ----------------------------------------------------------------------------------------------- rounds
    def _prefill(self) -> None:
        while self._waiting and self._free:
            stream = self._waiting.popleft()
            stream.slot = self._take_slot()
            self._prefilling.append(stream)
        if not self._prefilling:
            return
        parts, symbols = [], 0
        for stream in self._prefilling:
            parts.append(self._part(stream))
            symbols += len(parts[-1])
            if symbols >= self._runner.prefill_tokens:
                break
        parts = parts[: self._runner.fitting(parts)]
        reading = self._runner.prefill(parts)
        streams = [self._prefilling.popleft() for _ in parts]
        drawing = [stream if part.row is not None else None for stream, part in zip(streams, parts)]
        for stream, part in zip(streams, parts):
            stream.filled += len(part)
        self._prefilling.extendleft(stream for stream in reversed(streams) if stream not in drawing)
        self._begin_draw(reading, drawing)

    def _part(self, stream: SpeechStream) -> PromptPart:
        start, feed = stream.filled, stream.feed
        end = min(len(feed), start + self._runner.prefill_tokens)
        row = None
        if end == len(feed):
            row = fresh_row(stream.job.prompt, end, stream.limit, self._cfg.sampling)
        return PromptPart(stream.slot, start, feed.kinds[start:end], feed.ids[start:end], row)

    def _decode(self) -> bool:
        if not self._live:
            return False
        self._compact()
        slots = sorted(self._live)
        streams = [self._live[slot] for slot in slots]
        reading = self._runner.decode(slots, [stream.filled for stream in streams])
        for stream in streams:
            stream.filled += 1
        self._begin_draw(reading, streams)
        return True

    def _begin_draw(self, reading: Reading, streams: Sequence[SpeechStream | None]) -> None:
        """One more id of each stream is on its way; a stream whose last one it is needs its slot no more."""
        if any(streams):
            self._letters.append((reading, streams))
        for stream in filter(None, streams):
            stream.begun += 1
            if stream.begun == stream.limit:
                self._release(stream)
            else:
                self._live[stream.slot] = stream

    def _compact(self) -> None:
        """Move the highest live slots into free lower ones where that makes the step smaller.

        A move copies one row's memory once; a map from rows to slots would make every step copy all of it.
        """
        rows = self._runner.bucket(len(self._live))
        while (highest := max(self._live)) >= rows and self._free and self._free[0] < rows:
            stream = self._live.pop(highest)
            stream.slot = self._take_slot()
            self._runner.move(highest, stream.slot, stream.filled)
            self._live[stream.slot] = stream
            self._give_slot(highest, stream.filled)

    # ------------------------------------------------------------------------------------------------ slots
    def _take_slot(self) -> int:
        """The lowest free slot, emptied."""
        slot = heapq.heappop(self._free)
        self._runner.clear(slot, self._used[slot])
        return slot

    def _give_slot(self, slot: int, used: int) -> None:
        self._used[slot] = used
        heapq.heappush(self._free, slot)

    def _release(self, stream: SpeechStream) -> None:
        """Give the stream's slot back, if it has one.

        A step that is still on its way may write to the slot, but before anything that is done to it from now on.
        """
        if stream.slot == NO_SLOT:
            return
        self._live.pop(stream.slot, None)
        self._give_slot(stream.slot, stream.filled)
        stream.slot = NO_SLOT

    # ---------------------------------------------------------------------------------------------- results
    def _read(self, reading: Reading, streams: Sequence[SpeechStream | None]) -> None:
        for stream, token in zip(streams, reading.ids()):
            if stream is not None and not stream.ended:
                self._accept(stream, token)

    def _accept(self, stream: SpeechStream, token: int) -> None:
        stream.read += 1
        self._changed[stream.job.key] = stream
        if token == NOT_FINITE:
            stream.error = EngineError(
                "non_finite", "The language model's output is not finite; try another precision."
            )
        elif token < self._cfg.end_of_speech:
            stream.tokens.append(token)
            if stream.read < stream.limit:
                return
        self._end(stream)

    def _end(self, stream: SpeechStream) -> None:
        stream.ended = True
        self._release(stream)
        del self._streams[stream.job.key]
        self._changed[stream.job.key] = stream

    def _tell(self) -> list[SpeechEvent]:
        events = []
        for key, stream in self._changed.items():
            events.append(SpeechEvent(key, tuple(stream.tokens), stream.ended, stream.error))
            stream.tokens.clear()
        self._changed.clear()
        return events

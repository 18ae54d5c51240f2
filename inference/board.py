"""What a scheduler's threads know in common: the requests being served, and what each lane must do for them.

One lock guards plain bookkeeping only; models always run outside it. Every method expects it held.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from inference.live_request import LiveRequest, LiveSegment, no_sound
from inference.protocol import Failed, FromWorker, Spoken, WorkerStats
from inference.types import SynthesisError

logger = logging.getLogger(__name__)

Pair = tuple[LiveRequest, LiveSegment]


class Board:
    """`emit` takes what becomes of each request, in order; it must not block."""

    def __init__(self, emit: Callable[[FromWorker], None], sample_rate: int, run_ahead: int) -> None:
        self.lock = threading.Lock()
        self.speech_work = threading.Condition(self.lock)
        self.wave_work = threading.Condition(self.lock)
        self.idle = threading.Condition(self.lock)
        self.live: dict[int, LiveRequest] = {}
        self.preparing: set[int] = set()  # keys in the front end, voices included
        self.drawing: dict[int, tuple[LiveRequest, LiveSegment, float]] = {}  # lane's key → …, since when
        self.to_cancel: list[int] = []  # keys of the language-model lane
        self.to_close: list[Any] = []  # streams of the token-to-wave lane
        self.stopping = False
        self.counts = WorkerStats()
        self.emit = emit
        self._sample_rate = sample_rate
        self._run_ahead = run_ahead

    # ------------------------------------------------------------------------------------- what there is to do
    def wanting_slots(self) -> Iterator[Pair]:
        """Segments that the language model may begin."""
        return (
            (live, segment) for live in self.live.values() for segment in live.wanting_slots(self._run_ahead)
        )

    def due(self) -> Iterator[Pair]:
        """Segments with token-to-wave work."""
        return ((live, segment) for live in self.live.values() for segment in live.due_segments())

    # -------------------------------------------------------------------------------------------- what happens
    def begun(self, live: LiveRequest) -> None:
        """The front end has parted the request."""
        for segment in live.segments:
            if segment.drawn and not segment.tokens:
                self.fail(live, segment, no_sound())
                return
        self.speech_work.notify()
        self.wave_work.notify_all()

    def cancel(self, key: int) -> None:
        """Forget a request. Unknown keys are ignored."""
        live = self.live.pop(key, None)
        if live is not None:
            live.cancelled = True
            self.count(cancelled=1)
            self.discard(live.segments)
        self.tell_if_idle()

    def fail(self, live: LiveRequest, segment: LiveSegment, error: SynthesisError) -> None:
        """The segment has failed: what comes before it may still be heard, what follows is dropped."""
        self.discard(live.cut_from(segment, error))
        self.tell(live)

    def discard(self, segments: list[LiveSegment]) -> None:
        """Stop whatever the lanes do for `segments`."""
        for segment in segments:
            segment.dropped = True
            if segment.speech_key is not None:
                self.drawing.pop(segment.speech_key, None)
                self.to_cancel.append(segment.speech_key)
                segment.speech_key = None
                self.speech_work.notify()
            self.release(segment)

    def release(self, segment: LiveSegment) -> None:
        """Have the segment's caches given back. Of one that is running, the wave thread does that afterwards."""
        if segment.stream is not None and not segment.in_wave:
            self.to_close.append(segment.stream)
            segment.stream = None
            self.wave_work.notify()

    def tell(self, live: LiveRequest) -> None:
        """Give out what can be heard now, and the end of the request if it has come."""
        head = live.head
        for chunk in live.next_chunks(self._sample_rate):
            self.count(chunks=1, audio_seconds=len(chunk.pcm) / chunk.sample_rate)
            self.emit(Spoken(live.key, chunk))
        if live.error is not None:
            logger.warning("A request failed%s: %s", self.named(live.key), live.error.message)
            self.emit(Failed(live.key, live.error))
            self.discard(live.segments)
        if live.error is not None or live.finished:
            self.live.pop(live.key, None)
            self.count(failed=int(live.error is not None), finished=int(live.error is None))
            self.tell_if_idle()
        elif live.head != head:
            self.speech_work.notify()  # another segment may run ahead

    def named(self, key: int) -> str:
        """For log lines: " for request X" where the caller gave it a name."""
        live = self.live.get(key)
        return f" for request {live.request.request_id}" if live and live.request.request_id else ""

    def tell_if_idle(self) -> None:
        if not (self.live or self.preparing):
            self.idle.notify_all()

    def count(self, **more: float) -> None:
        """Add to the counters of `WorkerStats`."""
        self.counts = replace(
            self.counts, **{name: getattr(self.counts, name) + by for name, by in more.items()}
        )

"""The thread that keeps the token-to-wave lane at work: give back, gather, begin a batch, give out the one before.

Where the lane can, a batch is begun while the device is at the end of the one before: late enough for the most urgent
pieces to be known, early enough for the device never to wait.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from itertools import starmap

from inference.board import Board
from inference.faults import as_request_error, is_device_fault
from inference.live_request import Due, LiveRequest, LiveSegment, no_sound
from inference.meter import BusyMeter
from inference.runtime.wave_lane import Batch, WaveItem, WaveLane, WaveResult
from inference.types import SynthesisError

logger = logging.getLogger(__name__)

# Seconds without a request after which memory is given back: what nobody uses, then voices that nobody came back for.
_RESTS = (2.0, 70.0)


@dataclass(frozen=True)
class _Work:
    """A segment and what is due for it."""

    live: LiveRequest
    segment: LiveSegment
    due: Due


@dataclass
class _Begun:
    """A batch on its way, and all the segments that were set aside for it."""

    works: list[_Work]
    batch: Batch


class WaveLoop:
    """Turns the board's tokens into sound. `round` is called again and again, from one thread."""

    def __init__(self, board: Board, lane: WaveLane, max_batch: int) -> None:
        self.meter = BusyMeter()
        self._board = board
        self._lane = lane
        self._max_batch = max_batch
        self._begun: _Begun | None = None
        self._rests = len(_RESTS)  # since the last batch; nothing to give back yet
        self.batches = self.items = 0  # and the items in them

    def warm_up(self, progress: Callable[[str], None]) -> None:
        """Get the lane ready; `progress` is told how far it has come."""
        self._lane.warm_up(progress)

    def round(self) -> bool:
        """Give caches back, begin a batch of the most urgent items, give out the one before; waits while there is
        nothing to do. False when the board is closed.
        """
        board, before = self._board, self._begun
        if before is not None:
            with self.meter.working():
                self._lane.nearly_done(before.batch)
        with board.lock:
            patience = None if self._rests == len(_RESTS) else _RESTS[self._rests]
            worked = board.wave_work.wait_for(lambda: before is not None or self._has_work(), patience)
            if board.stopping:
                return False
            rest = not (worked or board.live)
            closing, board.to_close = board.to_close, []
            works, hurried = self._most_urgent(), self._hurried()
            for work in works:
                work.segment.in_wave = True  # from now on its stream is this thread's
        for stream in closing:
            self._lane.close(stream)
        if rest:
            self._lane.rest()
            self._rests += 1
        elif works:
            self._rests = 0
        self._begun = self._begin(works, hurried) if works else None
        if before is not None:
            self._finish(before)
        if self._begun is not None and not self._lane.overlaps:
            self._finish(self._begun)
            self._begun = None
        return True

    def _has_work(self) -> bool:
        board = self._board
        return board.stopping or bool(board.to_close) or next(board.due(), None) is not None

    def _hurried(self) -> bool:
        """Somebody listens, or will as soon as there are tokens."""
        return any(live.request.stream for live in self._board.live.values())

    def _most_urgent(self) -> list[_Work]:
        pairs = sorted(self._board.due(), key=lambda pair: pair[0].urgency(pair[1]))
        if pairs and all(segment.schedule is None for _, segment in pairs):
            # Nobody listens yet: next to the one that waits longest go those as long, so that none is waited for.
            longest_waiting = pairs[0][1].length
            pairs.sort(key=lambda pair: abs(pair[1].length - longest_waiting))
        found = ((live, segment, segment.due()) for live, segment in pairs[: self._max_batch])
        return [_Work(live, segment, due) for live, segment, due in found if due is not None]

    def _open(self, work: _Work) -> bool:
        """Whether the segment has a stream; if none can be opened, that ends the request."""
        live, segment = work.live, work.segment
        if segment.stream is not None:
            return True
        try:
            segment.stream = self._lane.open(
                segment.input.model_input,
                seed=segment.seed,
                speed=live.request.speed,
                exact=live.request.exact,
            )
        except Exception as error:
            if is_device_fault(error):
                raise
            if not isinstance(error, SynthesisError):
                logger.error("No stream can be opened%s.", self._board.named(live.key), exc_info=error)
            with self._board.lock:
                self._board.fail(live, segment, as_request_error(error))
            return False
        return True

    def _begin(self, works: list[_Work], hurried: bool) -> _Begun | None:
        """Start with as many as make a batch; the others are put down again."""
        opened = [work for work in works if self._open(work)]
        items = list(starmap(_item, enumerate(opened)))
        count = self._lane.take(items, hurried)
        begun = None
        if count:
            with self.meter.working():
                begun = _Begun(opened[:count], self._lane.start(items[:count]))
            self.batches, self.items = self.batches + 1, self.items + count
        kept = {id(work) for work in opened[:count]}
        self._put_down([work for work in works if id(work) not in kept])
        return begun

    def _finish(self, begun: _Begun) -> None:
        with self.meter.working():
            results = self._lane.finish(begun.batch)
        with self._board.lock:
            for result in results:
                self._take(begun.works[result.key], result)
        for result in results:
            if result.error is not None and is_device_fault(result.error):
                raise result.error
        self._put_down(begun.works)

    def _take(self, work: _Work, result: WaveResult) -> None:
        live, segment = work.live, work.segment
        if segment.dropped:
            return
        live.flow += result.flow_seconds
        live.vocoder += result.vocoder_seconds
        if result.error is not None or result.pcm is None:
            self._board.fail(live, segment, result.error or no_sound())
            return
        segment.add_sound(result.pcm)
        self._board.tell(live)

    def _put_down(self, works: list[_Work]) -> None:
        """The batch is over: give back what will not be used again."""
        with self._board.lock:
            for work in works:
                work.segment.in_wave = False
                if work.segment.sounded or work.segment.dropped:
                    self._board.release(work.segment)


def _item(number: int, work: _Work) -> WaveItem:
    tokens, call = work.due
    return WaveItem(number, work.segment.stream, tokens, call)

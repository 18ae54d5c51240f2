"""The thread that keeps the token-to-wave lane at work: give back, gather, run."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from itertools import starmap

from inference.board import Board
from inference.faults import as_request_error, is_device_fault
from inference.live_request import Due, LiveRequest, LiveSegment, no_sound
from inference.meter import BusyMeter
from inference.runtime.wave_lane import WaveItem, WaveLane, WaveResult
from inference.types import SynthesisError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Work:
    """A segment and what is due for it."""

    live: LiveRequest
    segment: LiveSegment
    due: Due

    @property
    def listened(self) -> bool:
        """Somebody hears it while it is made."""
        return self.due[1] is not None

    @property
    def length(self) -> int:
        """Tokens, prompt included."""
        return len(self.due[0]) + len(self.segment.input.model_input.flow_prompt_tokens)


class WaveLoop:
    """Turns the board's tokens into sound. `round` is called again and again, from one thread."""

    def __init__(self, board: Board, lane: WaveLane, max_batch: int) -> None:
        self.meter = BusyMeter()
        self._board = board
        self._lane = lane
        self._max_batch = max_batch
        self.batches = self.items = 0  # and the items in them

    def warm_up(self) -> None:
        self._lane.warm_up()

    def round(self) -> bool:
        """Give caches back, then one batch of the most urgent items; waits while there is nothing to do.

        False when the board is closed.
        """
        board = self._board
        with board.lock:
            board.wave_work.wait_for(self._has_work)
            if board.stopping:
                return False
            closing, board.to_close = board.to_close, []
            works = self._most_urgent()
            for work in works:
                work.segment.in_wave = True  # from now on its stream is this thread's
        for stream in closing:
            self._lane.close(stream)
        opened = [work for work in works if self._open(work)]
        if opened:
            self._run(opened)
        self._put_down(works)
        return True

    def _has_work(self) -> bool:
        board = self._board
        return board.stopping or bool(board.to_close) or next(board.due(), None) is not None

    def _most_urgent(self) -> list[_Work]:
        pairs = sorted(self._board.due(), key=lambda pair: pair[0].urgency(pair[1]))
        found = ((live, segment, segment.due()) for live, segment in pairs)
        works = [_Work(live, segment, due) for live, segment, due in found if due is not None]
        if works and not any(work.listened for work in works):
            # Nobody listens yet: next to the one that waits longest go those as long, so that none is waited for.
            longest_waiting = works[0].length
            works.sort(key=lambda work: abs(work.length - longest_waiting))
        return works[: self._max_batch]

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

    def _run(self, works: list[_Work]) -> None:
        items = list(starmap(_item, enumerate(works)))
        with self.meter.working():
            items = items[: self._lane.take(items)]
            self.batches, self.items = self.batches + 1, self.items + len(items)
            results = self._lane.run(items)
        with self._board.lock:
            for result in results:
                self._take(works[result.key], result)
        for result in results:
            if result.error is not None and is_device_fault(result.error):
                raise result.error

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

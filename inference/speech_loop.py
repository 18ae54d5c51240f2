"""The thread that keeps the language-model lane at work: cancel, admit, step."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from itertools import count

from inference.board import Board
from inference.faults import as_request_error, is_device_fault, is_out_of_memory, out_of_memory
from inference.live_request import LiveRequest, LiveSegment, no_sound
from inference.meter import BusyMeter
from inference.runtime.feed import SpeechPrompt
from inference.runtime.language_model_lane import LanguageModelLane, SpeechEvent, SpeechJob
from inference.types import SynthesisError

logger = logging.getLogger(__name__)


class SpeechLoop:
    """Draws speech tokens for the board's segments. `round` is called again and again, from one thread."""

    def __init__(self, board: Board, lane: LanguageModelLane, slots: int) -> None:
        self.meter = BusyMeter()
        self._board = board
        self._lane = lane
        self._reserve = slots // 4
        self._keys = count()
        self.steps = self.rows = 0  # decode steps, and the segments that they served

    def warm_up(self, progress: Callable[[str], None]) -> None:
        """Get the lane ready; `progress` is told."""
        progress("warming up: language model")
        self._lane.warm_up()

    def round(self) -> bool:
        """Cancel, admit, one step; waits while there is nothing to do. False when the board is closed."""
        board = self._board
        while not board.live and self._lane.idle():
            pass  # a moment without requests is used for what was left out at the start
        with board.lock:
            board.speech_work.wait_for(self._has_work)
            if board.stopping:
                return False
            cancelled, board.to_cancel = board.to_cancel, []
        for key in cancelled:
            self._lane.cancel(key)
        for live, segment, job in self._next_jobs():
            self._admit(live, segment, job)
        if self._lane.busy:
            self._step()
        return True

    def _has_work(self) -> bool:
        board = self._board
        if board.stopping or board.to_cancel or self._lane.busy:
            return True
        return self._lane.room > 0 and next(board.wanting_slots(), None) is not None

    def _next_jobs(self) -> list[tuple[LiveRequest, LiveSegment, SpeechJob]]:
        """The most urgent segments that there is room for; those ahead of their turn leave slots to newcomers."""
        room = self._lane.room
        if room <= 0:
            return []
        jobs: list[tuple[LiveRequest, LiveSegment, SpeechJob]] = []
        with self._board.lock:
            wanting = sorted(self._board.wanting_slots(), key=lambda pair: pair[0].urgency(pair[1]))
            for live, segment in wanting:
                left = room - len(jobs)
                if left <= 0:
                    break
                if segment.number > live.head and left <= self._reserve:
                    continue
                segment.speech_key = next(self._keys)
                self._board.drawing[segment.speech_key] = (live, segment, time.perf_counter())
                jobs.append((live, segment, SpeechJob(segment.speech_key, _prompt(live, segment))))
        return jobs

    def _admit(self, live: LiveRequest, segment: LiveSegment, job: SpeechJob) -> None:
        try:
            self._lane.admit([job])
        except Exception as error:
            if not isinstance(error, SynthesisError) and not is_out_of_memory(error):
                raise
            with self._board.lock:
                if self._board.drawing.pop(job.key, None) is not None:  # else cancelled meanwhile
                    segment.speech_key = None
                    self._board.fail(live, segment, as_request_error(error))

    def _step(self) -> None:
        try:
            self.steps, self.rows = self.steps + 1, self.rows + len(self._board.drawing)
            with self.meter.working():
                events = self._lane.step()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self._give_up_newest(error)
            return
        now = time.perf_counter()
        with self._board.lock:
            due = [self._take(event, now) for event in events]
            if any(due):
                self._board.wave_work.notify_all()
        for event in events:
            if event.error is not None and is_device_fault(event.error):
                raise event.error

    def _give_up_newest(self, error: BaseException) -> None:
        """Out of memory in a step: the segment that came last goes, so that the others can go on."""
        logger.warning("The language model ran out of memory; its newest segment is given up.")
        with self._board.lock:
            if not self._board.drawing:
                raise error
            live, segment, _ = self._board.drawing[max(self._board.drawing)]
            self._board.fail(live, segment, out_of_memory())

    def _take(self, event: SpeechEvent, now: float) -> bool:
        """Note what was drawn for one segment; whether the wave thread has something to do for it."""
        board = self._board
        found = board.drawing.get(event.key)
        if found is None:  # cancelled meanwhile
            return False
        live, segment, admitted = found
        if event.tokens and not live.first_token:
            live.first_token = now - live.started
            live.queue += max(0.0, admitted - live.ready)
        if event.ended or event.error is not None:
            del board.drawing[event.key]
            segment.speech_key = None
            live.speech += now - admitted
        segment.add_tokens(event.tokens, event.ended)
        if event.error is not None:
            board.fail(live, segment, event.error)
        elif segment.drawn and not segment.tokens:
            board.fail(live, segment, no_sound())
        return segment.is_due


def _prompt(live: LiveRequest, segment: LiveSegment) -> SpeechPrompt:
    given = segment.input.model_input
    return SpeechPrompt(
        given.text_ids, given.prompt_text_ids, given.llm_prompt_tokens, segment.seed, live.request.exact
    )

"""One worker's policy: front end → segments → language-model lane → chunk schedule → token-to-wave lane → listener.

Front-end threads, the language-model thread and the wave thread meet on a `Board`; neither lane ever waits for the
other. The scheduler knows nothing of tensors, the lanes nothing of requests.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from inference.board import Board
from inference.faults import as_request_error, is_device_fault
from inference.frontend.requests import RequestFrontEnd
from inference.live_request import LiveRequest
from inference.protocol import Failed, FromWorker, Prepared, WorkerStats
from inference.runtime.language_model_lane import LanguageModelLane
from inference.runtime.wave_lane import WaveLane
from inference.speech_loop import SpeechLoop
from inference.types import Reference, SynthesisError, SynthesisRequest
from inference.validate import validate
from inference.wave_loop import WaveLoop

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SchedulerSettings:
    """`lookahead`: tokens that the flow model sees beyond a chunk; the rest as in `PoolSettings` and its lanes."""

    sample_rate: int
    lookahead: int
    slots: int
    max_batch: int
    front_end_threads: int = 2
    run_ahead: int = 2
    warm_up: bool = True


class Scheduler:
    """Serves requests; what becomes of them goes to `emit`, from any thread, in order for each key.

    `emit` must not block. `on_fault` hears of an error after which the lanes cannot be trusted; they do nothing more
    then. `lane_scope` is entered by each lane's thread for its lifetime (device, stream). `progress`
    hears how far warming up has come.
    """

    def __init__(
        self,
        front_end: RequestFrontEnd,
        speech: LanguageModelLane,
        wave: WaveLane,
        settings: SchedulerSettings,
        *,
        emit: Callable[[FromWorker], None],
        on_fault: Callable[[BaseException], None],
        lane_scope: Callable[[], AbstractContextManager[Any]] = nullcontext,
        progress: Callable[[str], None] = logger.info,
    ) -> None:
        self._front_end = front_end
        self._settings = settings
        self._on_fault = on_fault
        self._lane_scope = lane_scope
        self._progress = progress
        self._board = Board(emit, settings.sample_rate, settings.run_ahead)
        self._lanes = (speech, wave)
        self._speech = SpeechLoop(self._board, speech, settings.slots)
        alone = wave.loops == 1  # else every thread takes a piece, and leaves the others theirs
        self._waves = [
            WaveLoop(self._board, wave, settings.max_batch if alone else 1) for _ in range(wave.loops)
        ]
        self._orders = count()
        self._pool = ThreadPoolExecutor(settings.front_end_threads, thread_name_prefix="front-end")
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start the lanes' threads and warm each lane up, one after the other. Raises what warming up raises."""
        for loop in (self._speech, *self._waves):
            warm: Future[None] = Future()
            first = loop in (self._speech, self._waves[0])
            thread = threading.Thread(
                target=self._run, args=(loop, warm, first), name=type(loop).__name__, daemon=True
            )
            self._threads.append(thread)
            thread.start()
            warm.result()

    def submit(self, key: int, request: SynthesisRequest, waited: float = 0.0) -> None:
        """Serve a request: `Spoken` for each chunk, the last one marked final, or one `Failed`.

        `waited`: seconds since the caller asked.
        """
        live = LiveRequest(key, request, next(self._orders), waited)
        arrived = time.perf_counter()
        self._in_front_end(key, lambda: self._prepare(live, arrived), live)

    def prepare_voice(self, key: int, reference: Reference, exact: bool = False) -> None:
        """Prepare a clip: one `Prepared` or one `Failed`."""

        def work() -> None:
            voice = self._front_end.voices.prepare(reference, exact)
            self._board.emit(Prepared(key, voice))

        self._in_front_end(key, work, None)

    def cancel(self, key: int) -> None:
        """Forget a request or a voice. Its slot and caches are free before the next step of their lane."""
        with self._board.lock:
            self._board.preparing.discard(key)
            self._board.cancel(key)

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until nothing is live; False if that took longer than `timeout` seconds."""
        board = self._board
        with board.lock:
            return board.idle.wait_for(lambda: not (board.live or board.preparing), timeout)

    def close(self) -> None:
        """Stop the threads; what is live is dropped."""
        with self._board.lock:
            self._board.stopping = True
            self._board.speech_work.notify_all()
            self._board.wave_work.notify_all()
        self._pool.shutdown(wait=False, cancel_futures=True)
        for thread in self._threads:
            thread.join(timeout=10.0)

    def stats(self) -> WorkerStats:
        """What is going on now, but for the process's memory."""
        speech, waves = self._speech.meter, [loop.meter for loop in self._waves]
        board = self._board
        lane_bytes = sum(lane.memory_bytes() for lane in self._lanes)
        with board.lock:
            return replace(
                board.counts,
                live=len(board.live),
                preparing=len(board.preparing),
                drawing=len(board.drawing),
                waiting=sum(1 for _ in board.wanting_slots()),
                speech_busy=speech.share(),
                wave_busy=sum(wave.share() for wave in waves) / len(waves),
                stalled=max(meter.current() for meter in (speech, *waves)),
                lane_bytes=lane_bytes,
                slots=self._settings.slots,
                speech_steps=self._speech.steps,
                speech_rows=self._speech.rows,
                wave_batches=sum(loop.batches for loop in self._waves),
                wave_items=sum(loop.items for loop in self._waves),
                voice_hits=self._front_end.voices.hits,
                voice_misses=self._front_end.voices.misses,
            )

    def _run(self, loop: SpeechLoop | WaveLoop, warm: Future[None], first: bool) -> None:
        try:
            with self._lane_scope():
                if self._settings.warm_up and first:
                    loop.warm_up(self._progress)
                warm.set_result(None)
                while loop.round():
                    pass
        except BaseException as error:
            if not warm.done():
                warm.set_exception(error)
            elif not self._board.stopping:
                self._on_fault(error)

    # ------------------------------------------------------------------------------------------- front end
    def _in_front_end(self, key: int, work: Callable[[], None], live: LiveRequest | None) -> None:
        board = self._board
        with board.lock:
            if board.stopping:
                return
            board.preparing.add(key)
            if live is not None:
                board.live[key] = live
            self._pool.submit(self._guarded, key, work)

    def _guarded(self, key: int, work: Callable[[], None]) -> None:
        board = self._board
        if key not in board.preparing:  # cancelled
            return
        try:
            work()
        except BaseException as error:
            self._failed(key, error)
        finally:
            with board.lock:
                board.preparing.discard(key)
                board.tell_if_idle()

    def _failed(self, key: int, error: BaseException) -> None:
        if not isinstance(error, SynthesisError):
            logger.error("The front end failed%s.", self._board.named(key), exc_info=error)
        board = self._board
        with board.lock:
            board.live.pop(key, None)
            if key in board.preparing:  # else it was cancelled
                board.count(failed=1)
                board.emit(Failed(key, as_request_error(error)))
        if is_device_fault(error):
            self._on_fault(error)

    def _prepare(self, live: LiveRequest, arrived: float) -> None:
        started = time.perf_counter()
        validate(live.request)
        inputs = self._front_end.segments(live.request)
        with self._board.lock:
            if live.cancelled:
                return
            live.queue += started - arrived
            live.front_end = time.perf_counter() - started
            live.begin(inputs, self._settings.lookahead)
            self._board.begun(live)

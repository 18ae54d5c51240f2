"""Keeps a pool's places filled with living workers: starts them, hears how they are, ends the stuck, replaces the dead.

All of it under the pool's lock. Nothing there blocks, but for the moment that starting a process takes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from inference.devices import cpu_count
from inference.protocol import (
    DRAINED,
    Broken,
    Draining,
    Failed,
    FromWorker,
    Heartbeat,
    Loading,
    Prepared,
    Ready,
    Refused,
    Spoken,
    WorkerSettings,
)
from inference.routing import Place, Ticket
from inference.settings import PoolSettings
from inference.supervision import Backoff, WorkerProcess
from inference.types import EngineError, SynthesisError

logger = logging.getLogger(__name__)

News = Spoken | Prepared | Failed | Refused

_MOST_FRONT_END = 8  # threads, unless more are asked for
_STOP_SECONDS = 2.0  # that a worker has to exit when told to
# Seconds between two looks, some ten times as long as usual: this process itself was stopped meanwhile (Ctrl-Z, a
# debugger, a frozen container).
_PAUSE = 2.0
# So many times longer than one that serves may a loading worker be silent: imports and compilers may hold the
# interpreter for long, and with it the thread that sends the heartbeat.
_LOADING_PATIENCE = 3.0


class WorkerKeeper:
    """One worker for each of `settings.devices`.

    With `lock` held, `on_news` hears what became of a ticket, `on_loss` gets the tickets of a worker that has died, in
    the order of their arrival, and `on_change` is told when a worker became ready, died or cannot be started.
    """

    def __init__(
        self,
        settings: PoolSettings,
        lock: threading.RLock,
        *,
        on_news: Callable[[Ticket, News], None],
        on_loss: Callable[[list[Ticket]], None],
        on_change: Callable[[], None],
    ) -> None:
        self.places = [
            Place(f"worker {number} ({device})", device, Backoff(settings.longest_backoff))
            for number, device in enumerate(settings.devices)
        ]
        self.facts: Ready | None = None  # of the first worker that was ready
        self.restarts = 0
        # When this process last went on after a pause: no wait is counted from before.
        self.resumed = self._looked = time.monotonic()
        self._settings = settings
        self._lock = lock
        self._on_news, self._on_loss, self._on_change = on_news, on_loss, on_change
        self._closed = False

    # --------------------------------------------------------------------------------- with the lock held
    def launch_all(self) -> None:
        """The first start."""
        for place in self.places:
            self._launch(place)

    def look_after(self) -> None:
        """Start what is due and end what is stuck. To be called every now and then."""
        now = time.monotonic()
        if now - self._looked > _PAUSE:  # what was said in the meantime may still lie in the pipes
            self.resumed = now
        self._looked = now
        for place in self.places:
            if self._closed:
                return
            if place.restart_at is not None and now >= place.restart_at:
                logger.warning("%s is started again.", place.name)
                place.restarts += 1
                self.restarts += 1
                self._launch(place)
            elif place.process is not None and (why := self._why_stuck(place, place.process, now)):
                logger.error("%s is ended: %s.", place.name, why)
                place.error = EngineError("worker_failed", f"The worker was ended: {why}.")
                place.process.kill()

    def is_ready(self) -> bool:
        """Some worker is warm and takes requests."""
        return any(place.serving for place in self.places)

    def is_hopeless(self) -> bool:
        """Every worker has failed to start."""
        return all(place.failed and place.ready is None for place in self.places)

    def start_is_over(self) -> bool:
        """Each worker has been ready or has failed once."""
        return self._closed or all(place.ready is not None or place.failed for place in self.places)

    def start_error(self) -> SynthesisError | None:
        """Why no worker is ready; None if one is."""
        if self.is_ready():
            return None
        errors = [place.error for place in self.places if place.error is not None]
        return errors[0] if errors else not_ready()

    def close(self) -> list[WorkerProcess]:
        """Nothing is started or told any more. Returns the processes to be given to `stop`."""
        self._closed = True
        return [place.process for place in self.places if place.process is not None]

    # ---------------------------------------------------------------------------------------------- messages
    def _on_message(self, process: WorkerProcess, message: FromWorker) -> None:
        with self._lock:
            place = self._place_of(process)
            if place is None or self._closed:
                return
            if isinstance(message, (Spoken, Prepared, Failed, Refused)):
                if isinstance(message, Refused):
                    place.draining = True
                ticket = place.tickets.get(message.key)
                if ticket is not None:  # else it was given up
                    self._on_news(ticket, message)
            else:
                self._on_state(place, message)

    def _on_state(self, place: Place, message: FromWorker) -> None:
        if isinstance(message, Heartbeat):
            place.stats = message.stats
        elif isinstance(message, Loading):
            place.stage = message.stage
        elif isinstance(message, Ready):
            place.ready, place.ready_since = message, time.monotonic()
            place.failed, place.error = False, None
            self.facts = self.facts or message
            self._on_change()
        elif isinstance(message, Draining):
            place.draining = True
        elif isinstance(message, Broken):
            place.error = message.error

    def _place_of(self, process: WorkerProcess) -> Place | None:
        return next((place for place in self.places if place.process is process), None)

    # -------------------------------------------------------------------------------------- life and death
    def _launch(self, place: Place) -> None:
        place.restart_at = None
        place.stage = "starting"
        try:
            place.process = WorkerProcess(self._worker_settings(place), self._on_message, self._on_exit)
        except Exception as error:  # too many processes, threads or files, no memory
            expected = isinstance(error, (OSError, RuntimeError, MemoryError))
            logger.error("%s cannot be started: %s", place.name, error, exc_info=not expected)
            place.error = EngineError("worker_failed", f"The worker cannot be started: {error}.")
            self._restart_later(place, served=0.0)
            self._on_change()

    def _worker_settings(self, place: Place) -> WorkerSettings:
        chosen = self._settings
        threads = max(1, cpu_count() // len(self.places))
        return WorkerSettings(
            name=place.name,
            model_dir=str(chosen.model_dir),
            lexicon=None if chosen.lexicon is None else str(chosen.lexicon),
            device=place.device,
            precision=chosen.precision,
            vocoder_backend=chosen.vocoder_backend,
            flow_backend=chosen.flow_backend,
            concurrency=chosen.concurrency,
            lanes=chosen.lanes,
            low_memory=chosen.low_memory,
            memory=chosen.memory,
            warm_up=chosen.warm_up,
            front_end_threads=chosen.front_end_threads or max(2, min(_MOST_FRONT_END, threads // 2)),
            run_ahead=chosen.run_ahead,
            heartbeat=chosen.heartbeat,
            threads=threads,
            log_json=chosen.log_json,
        )

    def _on_exit(self, process: WorkerProcess) -> None:
        with self._lock:
            place = self._place_of(process)
            if place is None:
                return
            served = time.monotonic() - place.ready_since if place.ready else 0.0
            in_order = place.draining and process.exitcode == DRAINED
            lost = place.forget()
            if self._closed:
                return
            if in_order:
                place.restart_at = time.monotonic()
            else:
                logger.warning("%s has ended (exit code %s).", place.name, process.exitcode)
                place.error = place.error or EngineError(
                    "worker_failed", f"The worker ended with exit code {process.exitcode}; see the log."
                )
                self._restart_later(place, served)
            self._on_loss(lost)
            self._on_change()

    def _restart_later(self, place: Place, served: float) -> None:
        place.failed = served == 0.0
        place.restart_at = time.monotonic() + place.backoff.next_delay(served)

    def _why_stuck(self, place: Place, process: WorkerProcess, now: float) -> str:
        """A reason to end the process, else ""."""
        chosen = self._settings
        if place.ready is None and now - max(process.started, self.resumed) > chosen.start_timeout:
            return f"not ready after {chosen.start_timeout:.0f} s"
        patience = chosen.silence_timeout * (1.0 if place.ready else _LOADING_PATIENCE)
        has_spoken = process.last_heard > process.started  # before that, Python itself is starting
        if has_spoken and now - max(process.last_heard, self.resumed) > patience:
            return f"silent for {patience:.0f} s"
        # Measured by the worker, whose clock went on when it was stopped along with this process.
        if min(place.stats.stalled, now - self.resumed) > chosen.stall_timeout:
            return f"stuck in one step for {chosen.stall_timeout:.0f} s"
        return ""


def stop(processes: list[WorkerProcess]) -> None:
    """Ask all to exit, kill those that do not, return when they are gone. Without the lock: their threads need it."""
    deadline = time.monotonic() + _STOP_SECONDS
    for process in processes:
        process.ask_to_stop()
    for process in processes:
        process.stop(deadline)


def not_ready() -> EngineError:
    """No worker is warm."""
    return EngineError("not_ready", "The speech engine is not ready; try again in a moment.")

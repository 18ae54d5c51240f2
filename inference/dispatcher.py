"""The bookkeeping of a pool: who waits, who is served where, and what becomes of a dead worker's requests.

One lock guards it. Each worker has two threads here (to and from its pipe), and one supervisor thread keeps the workers
alive and collects what was abandoned.
"""

from __future__ import annotations

import atexit
import logging
import pickle
import threading
import time
import weakref
from dataclasses import replace
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any

from inference.pool_status import PoolCounters, PoolStatus
from inference.protocol import Cancel, Failed, Prepared, Ready, Spoken
from inference.routing import Ticket, WaitingRoom, choose
from inference.settings import PoolSettings
from inference.types import EngineError, RequestError, SynthesisError
from inference.worker_keeper import News, WorkerKeeper, not_ready, stop

logger = logging.getLogger(__name__)

_TICK = 0.25  # seconds between two looks at the workers
_AFTER_FAULT = 1.0  # seconds that the supervisor rests when it has failed itself
_LOOKS = 10  # at the mailboxes, in the time that they may lie unread


class Dispatcher:
    """Serves tickets with worker processes. All methods may be called from any thread.

    What is put into `abandoned` is given up by the supervisor: a ticket, or with None everything. That takes no
    lock, so a finaliser may do it.
    """

    def __init__(self, settings: PoolSettings) -> None:
        self.abandoned: SimpleQueue[Ticket | None] = SimpleQueue()
        self._settings = settings
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._keeper = WorkerKeeper(
            settings, self._lock, on_news=self._on_news, on_loss=self._rescue, on_change=self._on_change
        )
        self._waiting = WaitingRoom()
        self._known: weakref.WeakSet[Ticket] = weakref.WeakSet()  # as long as somebody holds its submission
        self._next_look = 0.0
        self._keys = count(1)
        self._counters = PoolCounters()
        self._started = self._closing = self._closed = False
        self._start_over = False
        self._start_error: SynthesisError | None = None
        self._supervisor = threading.Thread(target=self._supervise, name="supervisor", daemon=True)

    @property
    def facts(self) -> Ready | None:
        """What the first worker that was ready told of itself."""
        return self._keeper.facts

    # ---------------------------------------------------------------------------------------- start and end
    def start(self) -> None:
        """See `WorkerPool.start_blocking`."""
        with self._lock:
            if self._closed:
                raise _pool_closed()
            first, self._started = not self._started, True
        if first:
            self._start()
        with self._lock:  # another thread may be at it
            self._changed.wait_for(lambda: self._start_over)
            if self._start_error is not None:
                raise self._start_error

    def _start(self) -> None:
        """Launch the workers and wait; the outcome is in `_start_error` at the end, whatever happens."""
        error: SynthesisError | None = _pool_closed()  # what others hear who wait, after Ctrl-C while loading
        try:
            with self._lock:
                if not self._closed:
                    self._supervise_in_thread()
                    self._keeper.launch_all()
            atexit.register(self.close)  # before multiprocessing's own, which would wait for what is live
            with self._lock:
                self._changed.wait_for(self._keeper.start_is_over)
                error = self._keeper.start_error()
        except SynthesisError as failure:
            error = failure
        finally:
            try:
                if error is not None:
                    self.close()
            finally:
                with self._lock:
                    self._start_over, self._start_error = True, error
                    self._changed.notify_all()

    def drain(self, timeout: float | None) -> bool:
        """See `WorkerPool.drain_blocking`."""
        with self._lock:
            self._closing = True
            done = self._changed.wait_for(lambda: self._closed or not self._outstanding(), timeout)
        self.close()
        return done

    def close(self) -> None:
        """See `WorkerPool.close`."""
        with self._lock:
            self._closing = self._closed = True
            for ticket in self._outstanding():
                self._end(ticket, _pool_closed())
            processes = self._keeper.close()
            self._changed.notify_all()
        stop(processes)
        self.abandoned.put(None)
        if self._supervisor.is_alive() and self._supervisor is not threading.current_thread():
            self._supervisor.join()
        atexit.unregister(self.close)

    # ---------------------------------------------------------------------------------------------- tickets
    def enter(self, content: Any, work: int, voice_key: str, is_voice: bool) -> Ticket:
        """Queue `content` or begin to serve it.

        Raises `RequestError("busy")` and `EngineError`: not_ready, pool_closed.
        """
        payload = pickle.dumps(content, protocol=pickle.HIGHEST_PROTOCOL)
        with self._lock:
            if self._closing:
                raise _pool_closed()
            if not self._started or self._keeper.is_hopeless():
                raise not_ready()
            ticket = Ticket(next(self._keys), payload, work, voice_key, is_voice)
            self._waiting.add(ticket)
            self._dispatch()
            if ticket in self._waiting and len(self._waiting) > self._settings.queue_size:
                self._waiting.remove(ticket)
                self._count(refused=1)
                raise busy(len(self._outstanding()))
            self._count(accepted=1)
            self._known.add(ticket)
            return ticket

    def position(self, ticket: Ticket) -> int:
        """Place in the queue, 0 when served or done."""
        with self._lock:
            return self._waiting.position(ticket)

    def give_up(self, ticket: Ticket) -> None:
        """Nobody wants it any more. Does nothing to one that has ended."""
        with self._lock:
            if ticket.done:
                return
            place = ticket.place
            if place is not None and place.process is not None:
                place.process.send(Cancel(ticket.key))
            self._count(cancelled=1)
            self._end(ticket, None)
            self._dispatch()

    def status(self) -> PoolStatus:
        """A snapshot."""
        with self._lock:
            return PoolStatus(
                ready=self._keeper.is_ready() and not self._closing,
                closing=self._closing,
                waiting=len(self._waiting),
                live=sum(len(place.tickets) for place in self._keeper.places),
                queue_size=self._settings.queue_size,
                workers=tuple(place.status() for place in self._keeper.places),
                counters=replace(self._counters, restarts=self._keeper.restarts),
            )

    # ------------------------------------------------------------------------------------ with the lock held
    def _dispatch(self) -> None:
        """Give waiting tickets to workers as long as there is room."""
        for ticket in self._waiting:
            place = choose(ticket, self._keeper.places)
            if place is not None and place.process is not None:
                self._waiting.remove(ticket)
                place.take(ticket)
                place.process.send(ticket.message())

    def _end(self, ticket: Ticket, error: SynthesisError | None) -> None:
        ticket.done, ticket.payload = True, b""
        ticket.mailbox.close(error)
        self._waiting.remove(ticket)
        ticket.leave()
        self._changed.notify_all()

    def _outstanding(self) -> list[Ticket]:
        served = [ticket for place in self._keeper.places for ticket in place.tickets.values()]
        return [*self._waiting, *served]

    def _on_news(self, ticket: Ticket, message: News) -> None:
        if isinstance(message, Spoken):
            ticket.sounded = True
            ticket.mailbox.put(message.chunk)
            if not message.chunk.final:
                return
            self._count(finished=1)
            self._end(ticket, None)
        elif isinstance(message, Prepared):
            ticket.mailbox.put(message.voice)
            self._count(finished=1)
            self._end(ticket, None)
        elif isinstance(message, Failed):
            self._count(failed=1)
            self._end(ticket, message.error)
        else:  # refused by a worker that was leaving
            ticket.leave()
            self._waiting.put_first([ticket])
        self._dispatch()

    def _rescue(self, lost: list[Ticket]) -> None:
        """Requests of a dead worker: those that nobody has heard yet are tried once more, the others end."""
        again = [ticket for ticket in lost if not (ticket.sounded or ticket.retried)]
        self._give_up_on([ticket for ticket in lost if ticket not in again])
        for ticket in again:
            ticket.retried = True
        self._count(retried=len(again))
        self._waiting.put_first(again)

    def _on_change(self) -> None:
        if self._keeper.is_hopeless():
            self._give_up_on(list(self._waiting))
        self._dispatch()
        self._changed.notify_all()

    def _give_up_on(self, tickets: list[Ticket]) -> None:
        self._count(failed=len(tickets))
        for ticket in tickets:
            self._end(ticket, _worker_lost())

    def _count(self, **more: int) -> None:
        self._counters = replace(
            self._counters, **{name: getattr(self._counters, name) + by for name, by in more.items()}
        )

    # ------------------------------------------------------------------------------------------- supervisor
    def _supervise_in_thread(self) -> None:
        try:
            self._supervisor.start()
        except RuntimeError as error:  # no thread is left to be had
            raise EngineError("worker_failed", f"The workers cannot be supervised: {error}.") from error

    def _supervise(self) -> None:
        """Goes on whatever happens: without it no worker is ever replaced."""
        while True:
            try:
                if not self._collect():
                    return
                with self._lock:
                    self._keeper.look_after()
                    self._clear_unread()
            except Exception:
                logger.exception("The supervisor of the workers has failed at something; it goes on.")
                time.sleep(_AFTER_FAULT)

    def _clear_unread(self) -> None:
        """Give up what is held by somebody who neither reads it nor closes it: nobody will."""
        patience, now = self._settings.listener_timeout, time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + patience / _LOOKS
        for ticket in list(self._known):
            # Whoever reads here was stopped too when this process was.
            if min(ticket.mailbox.unread_for(), now - self._keeper.resumed) > patience:
                self.give_up(ticket)
                ticket.mailbox.discard(_not_listening(patience))
                self._known.discard(ticket)

    def _collect(self) -> bool:
        """Wait a moment for something abandoned. False when that is the pool."""
        try:
            ticket = self.abandoned.get(timeout=_TICK)
        except Empty:
            return True
        if ticket is not None:
            self.give_up(ticket)
            return True
        if not self._closed:
            self.close()
        return False


def busy(ahead: int) -> RequestError:
    """What a request gets that finds no place; `ahead`: those served or waiting before it."""
    others = "1 request is" if ahead == 1 else f"{ahead} requests are"
    return RequestError("busy", f"The server is busy, {others} ahead; try again in a moment.", ahead=ahead)


def _pool_closed() -> EngineError:
    return EngineError(
        "pool_closed", "The server is shutting down and did not finish this request; try again later."
    )


def _not_listening(patience: float) -> EngineError:
    return EngineError(
        "not_listening",
        f"Nobody took this request's sound for {patience:.0f} s; it was thrown away.",
        seconds=round(patience),
    )


def _worker_lost() -> EngineError:
    return EngineError("worker_lost", "The process that was speaking has failed; please try again.")

"""One worker process as its parent sees it: the pipe, the two threads at it, its death, and when to try again."""

from __future__ import annotations

import logging
import multiprocessing
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue

from inference.protocol import FromWorker, Stop, ToWorker, WorkerSettings
from inference.worker import run_worker

logger = logging.getLogger(__name__)

_FIRST_BACKOFF = 0.25  # seconds
_STEADY = 60.0  # a worker that has served so long starts with a clean record


class WorkerProcess:
    """A started process. `on_message` and `on_exit` are called from its reader thread; `on_exit` once, at the end.

    When `on_exit` is called, the process has been waited for and everything it said has been told.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        on_message: Callable[[WorkerProcess, FromWorker], None],
        on_exit: Callable[[WorkerProcess], None],
    ) -> None:
        context = multiprocessing.get_context("spawn")  # CUDA and threads do not survive a fork
        self._connection, theirs = context.Pipe(duplex=True)
        self._on_message, self._on_exit = on_message, on_exit
        self._outbox: SimpleQueue[bytes | None] = SimpleQueue()
        self._process = context.Process(
            target=run_worker, args=(theirs, settings), name=settings.name, daemon=True
        )
        self.started = self.last_heard = time.monotonic()
        self.exitcode: int | None = None
        self.pid = 0
        try:
            with _without_interrupts():
                self._process.start()
        except BaseException:
            self._connection.close()
            raise
        finally:
            theirs.close()
        self.pid = self._process.pid or 0
        self._sender = threading.Thread(target=self._send, name=f"to {settings.name}", daemon=True)
        self._reader = threading.Thread(target=self._read, name=f"from {settings.name}", daemon=True)
        try:
            self._sender.start()
            self._reader.start()  # last: once it runs, the end of the process is its business
        except BaseException:  # no thread is left to be had
            self.kill()
            if not self._reader.is_alive():
                self._bury()
            raise

    def send(self, message: ToWorker) -> None:
        """Never blocks; lost when the process is gone."""
        self._outbox.put(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))

    def kill(self) -> None:
        """End it without asking. `on_exit` follows."""
        try:
            self._process.kill()
        except ValueError:  # buried already
            return

    def ask_to_stop(self) -> None:
        """It should exit at once; `on_exit` follows if it does."""
        self.send(Stop())

    def stop(self, deadline: float) -> None:
        """Wait until `deadline` (`time.monotonic`) for it to be gone, then kill it. Returns when it is gone."""
        self._reader.join(max(0.0, deadline - time.monotonic()))
        if self._reader.is_alive():
            self.kill()
            self._reader.join()

    def _send(self) -> None:
        while (content := self._outbox.get()) is not None:
            try:
                self._connection.send_bytes(content)
            except OSError:  # it is gone; the reader notices too
                return

    def _read(self) -> None:
        while True:
            try:
                message: FromWorker = self._connection.recv()
            except (EOFError, OSError):
                break
            except Exception:
                logger.exception("%s said something unreadable; it is ended.", self._process.name)
                break
            self.last_heard = time.monotonic()
            self._on_message(self, message)
        self._bury()
        self._on_exit(self)

    def _bury(self) -> None:
        """Wait for the process, so that no zombie stays, and close all that belongs to it."""
        self._process.join(timeout=2.0)
        if self._process.is_alive():  # it closed its pipe but lives on
            self._process.kill()
            self._process.join()
        self.exitcode = self._process.exitcode
        self._outbox.put(None)
        if self._sender.ident is not None:  # else it could not be started
            self._sender.join()
        self._connection.close()
        self._process.close()


class Backoff:
    """How long to wait before a worker is started again: doubling while it keeps dying soon."""

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._failures = 0

    def next_delay(self, served: float) -> float:
        """Seconds. `served`: how long the worker that has just died was ready."""
        if served >= _STEADY:
            self._failures = 0
        delay = 0.0 if self._failures == 0 else _FIRST_BACKOFF * 2.0 ** (self._failures - 1)
        self._failures += 1
        return min(self._longest, delay)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """A process started here is born with SIGINT held back, until it has said that it ignores it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)

"""All batches of a studio: they are spoken in the background, take turns, and go on after a restart."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from inference.frontend.encode import media_type
from inference.types import RequestError
from webui.batch.job import BatchSettings, Job, RowResult
from webui.batch.rows import Row
from webui.batch.speaking import BatchPool, speak_row

logger = logging.getLogger(__name__)

MOST_JOBS = 20  # of one owner, finished ones included
_CROWDED_SECONDS = 1.0


@dataclass(frozen=True)
class BatchStatus:
    """A batch at one moment. `state`: "running", "stopped" or "done"."""

    id: str
    name: str
    created: float  # seconds since 1970
    state: str
    total: int
    spoken: int
    failures: tuple[RowResult, ...]
    seconds: float  # of sound so far


class BatchJobs:
    """Starts, speaks, stops and keeps batches. All methods may be called from any thread.

    An owner sees only what is theirs: every method that names a batch raises `RequestError("batch_unknown")` otherwise.
    """

    def __init__(self, pool: BatchPool, folder: Path, rows_at_once: int = 1) -> None:
        """`rows_at_once`: rows of all batches together that may be in the pool; one while visitors wait in its queue.

        Nothing is read or spoken before `begin` or the first use.
        """
        self._pool = pool
        self._folder = folder
        self._rows_at_once = max(1, rows_at_once)
        self._lock = threading.RLock()
        self._jobs: dict[str, Job] = {}
        self._order: list[str] = []  # whose turn it is
        self._live: dict[tuple[str, int], asyncio.Task[bool]] = {}
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed: asyncio.Event | None = None
        self._loaded = False
        self._closing = False

    # -------------------------------------------------------------------------------------------- for callers
    def begin(self) -> None:
        """Go on with what an earlier run left unfinished."""
        with self._lock:
            self._load()
            if any(self._open(job) for job in self._jobs.values()):
                self._wake()

    def allow(self, rows_at_once: int) -> None:
        """So many rows of all batches together may be in the pool from now on."""
        self._rows_at_once = max(1, rows_at_once)
        if self._thread is not None:
            self._wake()

    def start(self, rows: Sequence[Row], settings: BatchSettings, owner: str, name: str = "batch.txt") -> str:
        """Begin a new batch; its id. Raises `RequestError`: batch_empty, batch_too_many, audio_format_unknown."""
        if not owner or not rows:
            raise RequestError("batch_empty", "The file holds no text to speak.")
        media_type(settings.audio_format)
        with self._lock:
            self._load()
            if sum(job.owner == owner for job in self._jobs.values()) >= MOST_JOBS:
                raise RequestError(
                    "batch_too_many",
                    f"You already have {MOST_JOBS} batches; delete one first.",
                    limit=MOST_JOBS,
                )
            job = Job.create(self._folder / secrets.token_hex(8), owner, name, settings, rows)
            self._jobs[job.id] = job
            self._order.append(job.id)
            self._wake()
        return job.id

    def jobs(self, owner: str) -> list[BatchStatus]:
        """All batches of `owner`, the newest first."""
        with self._lock:
            self._load()
            found = [self._status(job) for job in self._jobs.values() if owner and job.owner == owner]
        return sorted(found, key=lambda status: -status.created)

    def status(self, number: str, owner: str) -> BatchStatus:
        with self._lock:
            return self._status(self._find(number, owner))

    def results(self, number: str, owner: str) -> dict[int, RowResult]:
        """What has become of the rows that have ended, by their number from 0."""
        with self._lock:
            return dict(self._find(number, owner).results)

    def sound(self, number: str, owner: str, row: int) -> Path | None:
        """The file of a row, None as long as there is none."""
        result = self.results(number, owner).get(row)
        return self._folder / number / "sound" / result.file if result and result.file else None

    def stop(self, number: str, owner: str) -> None:
        """Speak no further row, and give up those in hand."""
        with self._lock:
            job = self._find(number, owner)
            job.set_stopped(True)
            self._cancel(job)

    def resume(self, number: str, owner: str) -> None:
        """Go on with a stopped batch; of a finished one the rows that failed are tried again."""
        with self._lock:
            job = self._find(number, owner)
            if job.complete:
                job.forget_failures()
            job.set_stopped(False)
            self._wake()

    def delete(self, number: str, owner: str) -> None:
        """Stop it and remove all that is kept of it."""
        with self._lock:
            self._remove(self._find(number, owner))

    def archive(self, number: str, owner: str) -> Path:
        """A zip of the sound so far and a report; it lies in the batch's own folder."""
        with self._lock:
            job = self._find(number, owner)
        return job.archive()

    def clean(self, seconds: float, most_bytes: int = 0, now: float | None = None) -> None:
        """Of the batches that are not running, remove those begun more than `seconds` ago, then the oldest while all
        together take more than `most_bytes`; 0 is no bound."""
        limit = (time.time() if now is None else now) - seconds
        with self._lock:
            self._load()
            sizes = {job.id: job.size() for job in self._jobs.values()} if most_bytes else {}
            total = sum(sizes.values())
            for job in sorted(self._jobs.values(), key=lambda job: job.created):
                old = bool(seconds) and job.created < limit
                if not self._open(job) and (old or (most_bytes and total > most_bytes)):
                    total -= sizes.get(job.id, 0)
                    self._remove(job)

    def close(self) -> None:
        """End the work; what is unfinished goes on when the next studio begins."""
        with self._lock:
            self._closing = True
            thread = self._thread
            if self._changed is not None:
                self._tell(self._changed.set)
        if thread is not None:
            thread.join(timeout=10)

    # ----------------------------------------------------------------------------------------------- the state
    def _load(self) -> None:
        if self._loaded:
            return
        self._loaded = True
        for folder in sorted(self._folder.glob("*")):
            try:
                job = Job.load(folder)
            except (OSError, ValueError, KeyError, TypeError):
                logger.warning("the batch in %s cannot be read; it is left alone", folder)
                continue
            self._jobs[job.id] = job
        self._order = sorted(self._jobs, key=lambda number: self._jobs[number].created)

    def _find(self, number: str, owner: str) -> Job:
        self._load()
        job = self._jobs.get(number)
        if job is None or not owner or job.owner != owner:
            raise RequestError("batch_unknown", "This batch is no longer there.")
        return job

    def _open(self, job: Job) -> bool:
        return not job.complete and not job.stopped

    def _status(self, job: Job) -> BatchStatus:
        results = list(job.results.values())
        failures = tuple(sorted((one for one in results if not one.file), key=lambda one: one.row))
        state = "done" if job.complete else "stopped" if job.stopped else "running"
        seconds = sum(result.seconds for result in results)
        spoken = len(results) - len(failures)
        return BatchStatus(job.id, job.name, job.created, state, len(job.rows), spoken, failures, seconds)

    def _cancel(self, job: Job) -> None:
        for (number, _), task in self._live.items():
            if number == job.id:
                self._tell(task.cancel)

    def _remove(self, job: Job) -> None:
        self._cancel(job)
        del self._jobs[job.id]
        self._order.remove(job.id)
        shutil.rmtree(job.folder, ignore_errors=True)

    # ---------------------------------------------------------------------------------------------- the thread
    def _wake(self) -> None:
        if self._thread is None:
            ready = threading.Event()
            self._thread = threading.Thread(target=self._run, args=(ready,), name="batches", daemon=True)
            self._thread.start()
            ready.wait()
        elif self._changed is not None:
            self._tell(self._changed.set)

    def _tell(self, act: Callable[[], object]) -> None:
        """Have `act` done in the thread's loop, if that still runs."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(act)

    def _run(self, ready: threading.Event) -> None:
        asyncio.run(self._serve(ready))

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._changed = asyncio.get_running_loop(), asyncio.Event()
        ready.set()
        while not self._closing:
            self._changed.clear()
            try:
                crowded = self._fill()
            except Exception:  # whatever it was, the batches must not stand still for ever
                logger.exception("no row could be begun; it is tried again")
                crowded = True
            try:
                await asyncio.wait_for(self._changed.wait(), _CROWDED_SECONDS if crowded else None)
            except asyncio.TimeoutError:
                continue
        tasks = list(self._live.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _fill(self) -> bool:
        """Begin as many rows as may be in the pool; whether fewer than usual may."""
        crowded = self._crowded()
        places = 1 if crowded else self._rows_at_once
        with self._lock:
            while len(self._live) < places and (turn := self._next()) is not None:
                task = asyncio.ensure_future(speak_row(self._pool, *turn))
                key = (turn[0].id, turn[1])
                self._live[key] = task
                task.add_done_callback(functools.partial(self._ended, key))
        return crowded

    def _crowded(self) -> bool:
        """Whether visitors wait for a place: batches then step back to one row, which waits like anybody's."""
        status = getattr(self._pool, "status", None)
        return status is not None and status().waiting > 0

    def _next(self) -> tuple[Job, int] | None:
        """The next row of the batch whose turn it is."""
        for place, number in enumerate(self._order):
            job = self._jobs[number]
            if not self._open(job):
                continue
            for index in range(len(job.rows)):
                if index not in job.results and (number, index) not in self._live:
                    self._order.append(self._order.pop(place))
                    return job, index
        return None

    def _ended(self, key: tuple[str, int], task: asyncio.Task[bool]) -> None:
        with self._lock:
            self._live.pop(key, None)
        if not task.cancelled() and not task.exception() and not task.result():
            self._closing = True
        if self._changed is not None:
            self._changed.set()

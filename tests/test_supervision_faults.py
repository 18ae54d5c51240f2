"""What goes wrong around the workers rather than in them: pauses, no threads left, no process to be had."""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inference import supervision, worker_keeper
from inference.dispatcher import Dispatcher
from inference.protocol import Broken, Heartbeat, Loading, Ready, WorkerSettings, WorkerStats
from inference.settings import LaneSettings, PoolSettings
from inference.types import CheckpointError, EngineError
from tests.scheduler_support import LANES, eventually, pool_settings

pytestmark = pytest.mark.unit

READY = Ready("cpu", 24000, (), 1, LaneSettings(), 1.0)


class FakeProcess:
    """A worker that does what the test says."""

    def __init__(
        self, settings: WorkerSettings, on_message: Callable[..., None], on_exit: Callable[..., None]
    ):
        self._on_message, self._on_exit = on_message, on_exit
        self.started = self.last_heard = worker_keeper.time.monotonic()
        self.exitcode, self.pid, self.killed = -9, 1, False

    def say(self, message: Any) -> None:
        self.last_heard = worker_keeper.time.monotonic()
        self._on_message(self, message)

    def die(self) -> None:
        self._on_exit(self)

    def send(self, message: Any) -> None: ...

    def kill(self) -> None:
        self.killed = True

    def ask_to_stop(self) -> None: ...

    def stop(self, deadline: float) -> None:
        self._on_exit(self)


class Workers:
    """The processes started so far, the clock, and what happens at the next start."""

    def __init__(self) -> None:
        self.started: list[FakeProcess] = []
        self.failure: Exception | None = None
        self.now = 1000.0

    def launch(self, *arguments: Any) -> FakeProcess:
        if self.failure is not None:
            raise self.failure
        self.started.append(FakeProcess(*arguments))
        return self.started[-1]


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Workers:
    workers = Workers()
    monkeypatch.setattr(worker_keeper, "WorkerProcess", workers.launch)
    return workers


@pytest.fixture
def clock(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> Workers:
    """`workers.now` is the time; for tests that look after the workers themselves."""
    fake = SimpleNamespace(monotonic=lambda: workers.now, time=time.time, sleep=time.sleep)
    for module in ("worker_keeper", "dispatcher", "submission"):
        monkeypatch.setattr(f"inference.{module}.time", fake)
    return workers


def settings(**changes: Any) -> PoolSettings:
    return pool_settings(Path("nowhere"), **changes)


def look(dispatcher: Dispatcher, workers: Workers, seconds: float, step: float = 0.25) -> None:
    """What the supervisor does in so many seconds."""
    for _ in range(round(seconds / step)):
        workers.now += step
        dispatcher._keeper.look_after()
        dispatcher._clear_unread()


def launched(workers: Workers, **changes: Any) -> tuple[Dispatcher, FakeProcess]:
    """Without a supervisor."""
    dispatcher = Dispatcher(settings(**changes))
    dispatcher._started = True
    dispatcher._keeper.launch_all()
    look(dispatcher, workers, 0.25)
    return dispatcher, workers.started[-1]


def ask(dispatcher: Dispatcher) -> Any:
    return dispatcher.enter("text", 40, "", is_voice=False)


# ------------------------------------------------------------------------------------------------- pauses
def test_a_pause_of_the_parent_is_no_silence_of_its_workers(clock: Workers) -> None:
    dispatcher, process = launched(clock, silence_timeout=10.0, listener_timeout=20.0, start_timeout=30.0)
    process.say(Loading("loading"))
    clock.now += 100.0
    look(dispatcher, clock, 1.0)
    assert not process.killed  # neither silent nor late
    process.say(READY)
    ticket = ask(dispatcher)
    ticket.mailbox.put("sound")
    clock.now += 100.0
    look(dispatcher, clock, 9.0)
    assert not process.killed and not ticket.done
    assert ticket.mailbox.get() == "sound"
    look(dispatcher, clock, 1.5)  # but what stays silent afterwards is ended
    assert process.killed


def test_a_step_that_a_pause_made_long_does_not_count(clock: Workers) -> None:
    dispatcher, process = launched(clock, silence_timeout=1000.0, stall_timeout=5.0)
    process.say(READY)
    clock.now += 100.0
    process.say(Heartbeat(WorkerStats(stalled=100.0)))  # it was stopped, too
    look(dispatcher, clock, 4.0)
    assert not process.killed
    process.say(Heartbeat(WorkerStats(stalled=104.0)))
    look(dispatcher, clock, 1.5)
    assert process.killed


def test_a_worker_that_falls_silent_while_it_loads_is_ended_long_before_its_time_is_up(
    clock: Workers,
) -> None:
    dispatcher, process = launched(clock, silence_timeout=10.0)
    look(dispatcher, clock, 100.0)
    assert not process.killed  # Python itself is starting
    process.say(Loading("loading"))
    look(dispatcher, clock, 29.0)
    assert not process.killed
    look(dispatcher, clock, 1.5)
    assert process.killed and "silent for 30 s" in dispatcher.status().workers[0].error


# ------------------------------------------------------------------------------------- no process to be had
@pytest.mark.parametrize("which", ["to ", "from "])
def test_a_worker_whose_threads_cannot_be_started_is_not_left_behind(
    which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = worker_keeper.WorkerKeeper(
        settings(lanes=LANES),
        threading.RLock(),
        on_news=lambda *_: None,
        on_loss=lambda *_: None,
        on_change=lambda: None,
    )
    real = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name.startswith(which):
            raise RuntimeError("can't start new thread")
        real(thread)

    multiprocessing.get_context("spawn").Process(target=int).start()  # its resource tracker keeps a pipe
    eventually(lambda: not multiprocessing.active_children())
    files, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    monkeypatch.setattr(threading.Thread, "start", start)
    exits: list[Any] = []
    with pytest.raises(RuntimeError):
        supervision.WorkerProcess(pool._worker_settings(pool.places[0]), lambda *_: None, exits.append)
    assert not multiprocessing.active_children() and not exits
    assert len(os.listdir("/proc/self/fd")) <= files and threading.active_count() <= threads


@pytest.fixture
def dispatcher(workers: Workers) -> Iterator[Dispatcher]:
    """Started and supervised; its worker is ready."""
    dispatcher = Dispatcher(settings(concurrency=1, longest_backoff=0.25))
    with ThreadPoolExecutor(1) as threads:
        starting = threads.submit(dispatcher.start)
        eventually(lambda: bool(workers.started))
        workers.started[0].say(READY)
        starting.result(timeout=10.0)
    yield dispatcher
    dispatcher.close()


def test_whatever_a_start_fails_with_is_tried_again(dispatcher: Dispatcher, workers: Workers) -> None:
    workers.failure = RuntimeError("can't start new thread")
    workers.started[0].die()
    eventually(lambda: dispatcher.status().counters.restarts >= 2, 5.0)
    assert "can't start new thread" in dispatcher.status().workers[0].error
    workers.failure = None
    eventually(lambda: len(workers.started) == 2, 5.0)
    workers.started[1].say(READY)
    assert dispatcher.status().ready


@pytest.mark.parametrize("failure", [OSError("no memory"), RuntimeError("no thread")])
def test_who_waits_for_a_worker_that_cannot_be_started_is_told(
    dispatcher: Dispatcher, workers: Workers, failure: Exception
) -> None:
    tickets = [ask(dispatcher) for _ in range(3)]
    workers.failure = failure
    workers.started[0].die()
    for ticket in tickets:
        with pytest.raises(EngineError) as caught:
            ticket.mailbox.get(timeout=5.0)
        assert caught.value.code == "worker_lost"
    with pytest.raises(EngineError) as refused:
        ask(dispatcher)
    assert refused.value.code == "not_ready"


def test_the_supervisor_survives_what_nobody_foresaw(
    dispatcher: Dispatcher,
    workers: Workers,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    real, looks = dispatcher._keeper.look_after, []

    def look_after() -> None:
        looks.append(time.monotonic())
        if len(looks) <= 2:
            raise KeyError("unforeseen")
        real()

    with caplog.at_level(logging.ERROR):
        monkeypatch.setattr(dispatcher._keeper, "look_after", look_after)
        workers.started[0].die()
        eventually(lambda: len(workers.started) == 2, 5.0)
    assert caplog.text.count("KeyError: 'unforeseen'") == 2  # with its traceback
    assert looks[1] - looks[0] > 0.5  # at its leisure


# ------------------------------------------------------------------------------------------- two who start
def starting_twice(dispatcher: Dispatcher, workers: Workers, threads: ThreadPoolExecutor) -> list[Any]:
    first = threads.submit(dispatcher.start)
    eventually(lambda: bool(workers.started))
    second = threads.submit(dispatcher.start)
    time.sleep(0.2)
    assert not first.done() and not second.done()
    return [first, second]


def test_a_second_start_waits_for_the_first(workers: Workers) -> None:
    dispatcher = Dispatcher(settings())
    with ThreadPoolExecutor(2) as threads, closing(dispatcher):
        calls = starting_twice(dispatcher, workers, threads)
        workers.started[0].say(READY)
        for call in calls:
            call.result(timeout=10.0)
        assert dispatcher.status().ready
        workers.failure = OSError("no memory")
        workers.started[0].die()
        dispatcher.start()  # that is over: whatever has become of the workers since


def test_a_second_start_fails_as_the_first(workers: Workers) -> None:
    dispatcher = Dispatcher(settings())
    with ThreadPoolExecutor(2) as threads, closing(dispatcher):
        calls = starting_twice(dispatcher, workers, threads)
        workers.started[0].say(Broken(CheckpointError("checkpoint_not_cosyvoice2", "No model.")))
        workers.started[0].die()
        errors = [call.exception(timeout=10.0) for call in calls]
    assert errors[0] is errors[1] and isinstance(errors[0], CheckpointError)
    with pytest.raises(EngineError) as caught:
        dispatcher.start()
    assert caught.value.code == "pool_closed"


def test_a_pool_that_nobody_can_supervise_does_not_start(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    dispatcher = Dispatcher(settings())
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(EngineError) as caught:
            dispatcher.start()
    assert caught.value.code == "worker_failed" and not workers.started

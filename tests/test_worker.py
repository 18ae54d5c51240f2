"""A worker process by itself, spoken to over its pipe as the pool does."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from inference import CosyVoice, Mode
from inference.protocol import (
    DRAINED,
    LOAD_FAILED,
    Broken,
    Cancel,
    Drain,
    FromWorker,
    Heartbeat,
    Prepare,
    Ready,
    Refused,
    Speak,
    WorkerSettings,
)
from inference.runtime.backends import CPU_SPECTRUM
from inference.supervision import WorkerProcess
from inference.types import CheckpointError, EngineError
from tests.engine_support import CLIP, GOOD, LONG_TEXT, REQUESTS
from tests.golden_data import ROOT
from tests.scheduler_support import LANES, PATIENCE, Listener, assert_same, eventually

pytestmark = pytest.mark.e2e

LONG_STREAM = replace(REQUESTS[Mode.PRESET], text=LONG_TEXT, stream=True)


def settings_for_test(folder: Path) -> WorkerSettings:
    return WorkerSettings(
        name="worker under test",
        model_dir=str(folder),
        lexicon=None,
        device="cpu",
        precision="auto",
        vocoder_backend="auto",
        flow_backend="auto",
        concurrency=4,
        lanes=LANES,
        low_memory=False,
        memory=0,
        warm_up=False,
        front_end_threads=2,
        run_ahead=2,
        heartbeat=0.1,
        threads=1,
    )


class Parent:
    """What the pool is to a worker."""

    def __init__(self, folder: Path) -> None:
        self.listener = Listener()
        self.others: list[FromWorker] = []
        self.exits: list[int | None] = []
        self.process = WorkerProcess(settings_for_test(folder), self._on_message, self._on_exit)

    def _on_message(self, process: WorkerProcess, message: FromWorker) -> None:
        self.others.append(message)
        self.listener(message)

    def _on_exit(self, process: WorkerProcess) -> None:
        self.exits.append(process.exitcode)

    def heard(self, kind: type) -> bool:
        return any(isinstance(message, kind) for message in self.others)

    def speak(self, key: int, request: object) -> None:
        self.process.send(Speak(key, pickle.dumps(request)))


@pytest.fixture
def worker(random_model_dir: Path) -> Iterator[Parent]:
    parent = Parent(random_model_dir)
    eventually(lambda: parent.heard(Ready) or bool(parent.exits))
    assert parent.heard(Ready)
    yield parent
    parent.process.kill()
    eventually(lambda: bool(parent.exits))


def test_a_worker_serves_and_leaves_when_told(random_model_dir: Path, worker: Parent) -> None:
    engine = CosyVoice(random_model_dir, device="cpu")
    ready = next(message for message in worker.others if isinstance(message, Ready))
    assert (ready.device, ready.sample_rate, ready.presets) == ("cpu", 24000, ("someone",))
    assert (ready.concurrency, ready.lanes) == (4, LANES)
    worker.speak(0, REQUESTS[Mode.CLONE])
    worker.process.send(Speak(1, b"no pickle"))
    worker.process.send(Prepare(2, pickle.dumps((CLIP, False))))
    assert_same(worker.listener.chunks(0), list(engine.synthesize(REQUESTS[Mode.CLONE])))
    assert worker.listener.error(1).code == "worker_failed"
    assert worker.listener.voice(2).content_hash == engine.prepare_voice(CLIP).content_hash

    worker.speak(3, LONG_STREAM)
    worker.listener.wait_for_chunk(3)
    beats = [message.stats for message in worker.others if isinstance(message, Heartbeat)]
    assert beats[-1].vocoder_backend in CPU_SPECTRUM
    assert (beats[-1].flow_backend, beats[-1].backend_failures) == ("fused", 0)
    assert beats[-1].finished == 1 and beats[-1].memory_bytes > 50e6 and beats[-1].lane_bytes > 0
    os.kill(worker.process.pid, signal.SIGTERM)
    eventually(lambda: _refused(worker))
    assert worker.listener.chunks(3)[-1].final  # what was live is finished
    eventually(lambda: worker.exits == [DRAINED])


def _refused(worker: Parent) -> bool:
    """Whether the worker, told to leave, sends a newcomer elsewhere."""
    worker.speak(9, GOOD)
    worker.process.send(Cancel(9))
    return any(isinstance(message, Refused) for message in worker.others)


def test_a_worker_told_to_drain_with_nothing_live_leaves_at_once(worker: Parent) -> None:
    os.kill(worker.process.pid, signal.SIGINT)  # Ctrl-C reaches the whole group: it is for the parent alone
    worker.speak(0, GOOD)
    assert worker.listener.chunks(0)[-1].final
    worker.process.send(Drain())
    eventually(lambda: worker.exits == [DRAINED])


def test_a_worker_that_cannot_load_says_why(tmp_path: Path) -> None:
    parent = Parent(tmp_path)
    eventually(lambda: parent.exits == [LOAD_FAILED])
    (broken,) = [message for message in parent.others if isinstance(message, Broken)]
    assert isinstance(broken.error, CheckpointError) and broken.error.code == "checkpoint_not_cosyvoice2"


def test_workers_die_with_their_parent(random_model_dir: Path, tmp_path: Path) -> None:
    """Killed in such a way that it cannot tell them."""
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent(
            """
            import sys, time
            from pathlib import Path
            from inference import WorkerPool
            from tests.scheduler_support import pool_settings

            if __name__ == "__main__":
                pool = WorkerPool(pool_settings(Path(sys.argv[1])))
                pool.start_blocking()
                print(*(worker.pid for worker in pool.status().workers), flush=True)
                time.sleep(600)
            """
        ),
        encoding="utf-8",
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    parent = subprocess.Popen(
        [sys.executable, str(script), str(random_model_dir)],
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    )
    try:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 1 and all(map(is_running, pids))
    finally:
        parent.kill()
        parent.wait(PATIENCE)
        if parent.stdout is not None:
            parent.stdout.close()
    eventually(lambda: not any(map(is_running, pids)))


def is_running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_errors_survive_the_pipe() -> None:
    error = EngineError("out_of_memory", "Too little memory.", bytes=3)
    copied = pickle.loads(pickle.dumps(Broken(error))).error
    assert (type(copied), copied.code, copied.message, copied.details) == (
        EngineError, "out_of_memory", "Too little memory.", {"bytes": 3},
    )  # fmt: skip

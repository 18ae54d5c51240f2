"""A scheduler in this process with its listener, and a pool's usual settings."""

from __future__ import annotations

import pickle
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from inference.loading import LoadedModels
from inference.protocol import Failed, FromWorker, Prepared, Spoken
from inference.runtime.language_model_lane import LanguageModelLane
from inference.runtime.wave_lane import WaveLane
from inference.scheduler import Scheduler, SchedulerSettings
from inference.settings import LaneSettings, PoolSettings
from inference.types import AudioChunk, SynthesisError, SynthesisRequest, Voice

LANES = LaneSettings(slots=4, context=1024, prefill_tokens=256, max_batch=4, threads=1)
PATIENCE = 60.0  # seconds after which a test gives up


class Listener:
    """Takes what a scheduler says; wait for a key with `result`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._chunks: dict[int, list[AudioChunk]] = defaultdict(list)
        self._ends: dict[int, Any] = {}

    def __call__(self, message: FromWorker) -> None:
        with self._changed:
            if isinstance(message, Spoken):
                self._chunks[message.key].append(message.chunk)
                if message.chunk.final:
                    self._ends[message.key] = None
            elif isinstance(message, Prepared):
                self._ends[message.key] = message.voice
            elif isinstance(message, Failed):
                self._ends[message.key] = pickle.loads(pickle.dumps(message.error))  # as through the pipe
            self._changed.notify_all()

    def wait(self, ready: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(ready, PATIENCE), "nothing came"

    def wait_for_chunk(self, key: int) -> None:
        self.wait(lambda: bool(self._chunks[key]))

    def heard(self, key: int) -> list[AudioChunk]:
        """What has come so far."""
        with self._changed:
            return list(self._chunks[key])

    def ended(self, key: int) -> bool:
        with self._changed:
            return key in self._ends

    def chunks(self, key: int) -> list[AudioChunk]:
        """All chunks, once the last has come. Raises the request's error."""
        self.wait(lambda: key in self._ends)
        if self._ends[key] is not None:
            raise self._ends[key]
        return self._chunks[key]

    def error(self, key: int) -> SynthesisError:
        self.wait(lambda: key in self._ends)
        error = self._ends[key]
        assert isinstance(error, SynthesisError)
        return error

    def voice(self, key: int) -> Voice:
        self.wait(lambda: key in self._ends)
        voice = self._ends[key]
        assert isinstance(voice, Voice)
        return voice


class Serving:
    """A started scheduler, its lanes, its listener and the faults it reported."""

    def __init__(self, models: LoadedModels, lanes: LaneSettings = LANES, run_ahead: int = 2) -> None:
        self.listener = Listener()
        self.faults: list[BaseException] = []
        self.speech = LanguageModelLane(models.language_model, lanes)
        self.wave = WaveLane(models.flow, models.vocoder, lanes)
        settings = SchedulerSettings(
            sample_rate=models.config.sample_rate,
            lookahead=models.config.flow.pre_lookahead,
            slots=lanes.slots,
            max_batch=lanes.max_batch,
            run_ahead=run_ahead,
            warm_up=False,
        )
        self.scheduler = Scheduler(
            models.front_end,
            self.speech,
            self.wave,
            settings,
            emit=self.listener,
            on_fault=self.faults.append,
        )
        self.scheduler.start()

    def speak(self, requests: Sequence[SynthesisRequest]) -> list[list[AudioChunk]]:
        """All at once; returns the chunks of each."""
        for key, request in enumerate(requests):
            self.scheduler.submit(key, request)
        return [self.listener.chunks(key) for key in range(len(requests))]


def eventually(condition: Callable[[], bool], patience: float = PATIENCE) -> None:
    """Wait for what cannot announce itself."""
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


def assert_same(found: Sequence[AudioChunk], expected: Sequence[AudioChunk]) -> None:
    """The same chunks, sample for sample; only their timings may differ."""
    assert [len(chunk.pcm) for chunk in found] == [len(chunk.pcm) for chunk in expected]
    for mine, theirs in zip(found, expected):
        assert np.array_equal(mine.pcm, theirs.pcm)
        assert (mine.index, mine.text, mine.final) == (theirs.index, theirs.text, theirs.final)
        assert mine.sample_rate == theirs.sample_rate and mine.pcm.dtype == theirs.pcm.dtype


def pool_settings(folder: Path, **changes: Any) -> PoolSettings:
    """One CPU worker with small lanes, unless changed."""
    usual: dict[str, Any] = {
        "devices": ("cpu",), "max_workers": 1, "concurrency": 4, "lanes": LANES, "heartbeat": 0.2,
        "longest_backoff": 1.0, "warm_up": False,
    }  # fmt: skip
    return PoolSettings(folder, **{**usual, **changes})

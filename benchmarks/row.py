"""One way of serving, measured in a process of its own: memory and crashes stay apart. See `benchmarks.pool`."""

from __future__ import annotations

import gc
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.forced_length import force_length
from benchmarks.load import Load, summary
from benchmarks.machine import describe, worker_devices
from benchmarks.material import TRANSCRIPT, clip, text_of
from benchmarks.watch import Watch, left_over, open_card
from inference.types import AudioChunk, EngineError, Mode, Reference, SynthesisRequest

FORCED = "COSYVOICE_BENCH_SPEECH_TOKENS"  # for the worker processes, which are started afresh
TOKEN_SECONDS = 0.04


@dataclass(frozen=True)
class Job:
    """What one process measures: a way of serving, for several numbers of users, whole or streamed."""

    folder: str
    device: str
    precision: str
    pool: bool  # else one request at a time
    graphs: bool = False
    compile: bool = False
    users: tuple[int, ...] = (1,)
    streams: tuple[bool, ...] = (False,)
    requests: int = 0  # of each cell; 0: two a user, at least eight, and enough for `least_seconds`
    least_seconds: float = 0.0
    limit: float = 30.0  # seconds after which a cell begins nothing new
    text_tokens: int = 25
    speech_tokens: int = 250  # 0: as the model ends it
    reference: str = ""  # a clip; made up when empty
    transcript: str = TRANSCRIPT
    text: str = ""
    reference_seconds: float = 4.0
    workers: int = 1
    vocoder_backend: str = "auto"
    flow_backend: str = "auto"


@dataclass(frozen=True)
class Material:
    """The requests: every user has a voice and every turn a text of its own."""

    job: Job
    encode: Callable[[str], Sequence[int]]

    def voice(self, user: int) -> Reference:
        if self.job.reference:
            return Reference(Path(self.job.reference), self.job.transcript)
        return Reference(clip(self.job.reference_seconds, user), TRANSCRIPT)

    def request(self, user: int, turn: int, stream: bool) -> SynthesisRequest:
        text = self.job.text or text_of(self.job.text_tokens, self.encode, 7 * user + turn)
        return SynthesisRequest(Mode.CLONE, text, self.voice(user), seed=1000 * user + turn, stream=stream)


class OneByOne:
    """The plain engine behind a lock."""

    def __init__(self, job: Job) -> None:
        from inference import CosyVoice

        self._engine = CosyVoice(
            job.folder,
            device=job.device,
            precision=job.precision,
            vocoder_backend=job.vocoder_backend,
            flow_backend=job.flow_backend,
        )
        self._turn = threading.Lock()
        self.deadline = float("inf")

    def speak(self, request: SynthesisRequest) -> Iterator[AudioChunk]:
        with self._turn:
            if time.perf_counter() > self.deadline:
                raise EngineError("not_served_in_time", "The time of this measurement is over.")
            yield from self._engine.synthesize(request)

    def prepare(self, reference: Reference) -> None:
        self._engine.prepare_voice(reference)

    def state(self) -> dict[str, Any]:
        return {"language_model": str(self._engine._language_model.dtype).removeprefix("torch.")}

    def close(self) -> None:
        del self._engine
        gc.collect()


class Pooled:
    """The worker pool, with lanes as a worker would choose them but for what the job says."""

    def __init__(self, job: Job) -> None:
        from inference.pool import WorkerPool
        from inference.settings import PoolSettings

        most = -(-max(job.users) // job.workers)  # of each worker
        self._pool = WorkerPool(
            PoolSettings(
                model_dir=Path(job.folder),
                devices=worker_devices(job.device, job.workers),
                precision=job.precision,
                vocoder_backend=job.vocoder_backend,
                flow_backend=job.flow_backend,
                max_workers=job.workers,
                concurrency=most,
                queue_size=2 * max(job.users),
                lanes=lanes_of(job, most),
            )
        )
        self._pool.start_blocking()
        self.deadline = float("inf")

    def speak(self, request: SynthesisRequest) -> Iterator[AudioChunk]:
        with closing(self._pool.synthesize(request)) as chunks:
            yield from chunks

    def prepare(self, reference: Reference) -> None:
        self._pool.prepare_voice(reference)

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(json.dumps(asdict(self._pool.status()), default=str))
        return state

    def close(self) -> None:
        self._pool.close()


def lanes_of(job: Job, users: int) -> Any:
    """Lane settings for the job."""
    from inference.model_yaml import read_model_config
    from inference.settings import settings_for

    card = open_card(job.device)
    free = card.memory()[1] if card else 4 * 2**30
    lanes = settings_for(
        job.device,
        read_model_config(Path(job.folder)),
        free,
        threads=len(os.sched_getaffinity(0)),
        concurrency=users,
        half=job.precision not in ("fp32",) and job.device.startswith("cuda"),
    )
    return replace(lanes, graphs=job.graphs, compile=job.compile)


def measure(job: Job) -> dict[str, Any]:
    """All cells of the job, one after another."""
    from inference.frontend.tokenizer import TextTokenizer
    from inference.model_yaml import TOKENIZER_FOLDER

    material = Material(job, TextTokenizer(Path(job.folder) / TOKENIZER_FOLDER).encode)
    devices = worker_devices(job.device, job.workers)
    before = sum(card.memory()[0] for card in map(open_card, devices) if card) / 1e6
    began = time.perf_counter()
    server: OneByOne | Pooled = Pooled(job) if job.pool else OneByOne(job)
    result: dict[str, Any] = {"job": asdict(job), "ready_s": time.perf_counter() - began, "cells": []}
    try:
        for user in range(max(job.users)):
            server.prepare(material.voice(user))
        for stream in job.streams:
            list(server.speak(material.request(0, 999, stream)))
        for stream in job.streams:
            for users in job.users:
                result["cells"].append(cell(job, server, material, users, stream, before))
                print(json.dumps(result["cells"][-1]), flush=True)
        result["state"] = server.state()
    finally:
        server.close()
    result["processes_left"] = left_over()
    result["machine"] = describe(job.device)
    return result


def cell(
    job: Job, server: OneByOne | Pooled, material: Material, users: int, stream: bool, before: float
) -> dict[str, Any]:
    """One number of users: first all at once, unmeasured (pool only), then each again and again."""
    rounds = -(-(job.requests or max(8, 2 * users)) // users)
    if not job.pool and users > 1:
        rounds = 1  # whoever comes back would only wait again
    expected = job.speech_tokens * TOKEN_SECONDS

    def load(turns: int, offset: int) -> Load:
        server.deadline = time.perf_counter() + job.limit
        return Load(
            server.speak, lambda u, t: material.request(u, offset + t, stream), users, turns, job.limit
        )

    cold: dict[str, Any] = {}
    if job.pool:
        first_wave = load(1, 500)
        elapsed = first_wave.run()
        cold = summary(first_wave, elapsed, expected)
        if not job.requests and elapsed > 0:
            rounds = max(rounds, math.ceil(job.least_seconds / elapsed))
    measured = load(rounds, 0)
    measured.prepare()
    with Watch(*worker_devices(job.device, job.workers)) as watch:
        elapsed = measured.run()
    found = summary(measured, elapsed, expected)
    found |= watch.report() | {"stream": stream, "rounds": rounds, "cold": cold}
    if found["audio"]:  # tells more than seconds do on a machine that others use too
        found["cpu_per_audio"] = found["cpu_cores_used"] * elapsed / found["audio"]
    if found["device_peak_mb"] is not None:
        found["device_peak_mb"] -= before
    return found


@contextmanager
def forced(tokens: int) -> Iterator[None]:
    """Forced length here and in every process started from here."""
    if tokens:
        os.environ[FORCED] = str(tokens)
        force_length(tokens)
    yield


def main(arguments: Sequence[str]) -> int:
    """`python -m benchmarks.row JOB.json RESULT.json`."""
    described = json.loads(Path(arguments[0]).read_text())
    for name in ("users", "streams"):
        described[name] = tuple(described[name])
    job = Job(**described)
    with forced(job.speech_tokens):
        Path(arguments[1]).write_text(json.dumps(measure(job)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
if __name__ == "__mp_main__" and os.environ.get(
    FORCED
):  # a worker process of the pool, before its models load
    force_length(int(os.environ[FORCED]))

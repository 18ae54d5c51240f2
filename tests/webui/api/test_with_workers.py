"""The API over real worker processes: each caller's own sound, leaving, slow readers, and a worker that dies."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest

from inference import Mode, WorkerPool
from inference.types import Reference, SynthesisRequest
from tests.engine_support import CLIP, LONG_TEXT, pcm_of
from tests.scheduler_support import pool_settings
from tests.webui.api.support import Server, eventually, serving

pytestmark = pytest.mark.e2e

TEXT = "Hello there."
AUDIO = base64.b64encode(bytes(CLIP.audio)).decode() if isinstance(CLIP.audio, bytes) else ""


@pytest.fixture(scope="module")
def workers(random_model_dir: Path) -> Iterator[WorkerPool]:
    with WorkerPool(pool_settings(random_model_dir, concurrency=3, queue_size=2)) as pool:
        yield pool


@pytest.fixture
def server(workers: WorkerPool, tmp_path: Path) -> Iterator[Server]:
    with serving(workers, tmp_path) as server:
        yield server


def body(**more: object) -> dict[str, object]:
    return {"text": TEXT, "reference": AUDIO, "response_format": "pcm", **more}


def idle(workers: WorkerPool) -> bool:
    status = workers.status()
    return not (status.live or status.waiting or any(worker.stats.drawing for worker in status.workers))


def test_everybody_gets_their_own_sound_and_the_rest_is_told_to_come_again(
    server: Server, workers: WorkerPool
) -> None:
    request = SynthesisRequest(Mode.CROSS_LINGUAL, TEXT, Reference(CLIP.audio), stream=True)
    expected = {
        seed: pcm_of(list(workers.synthesize(SynthesisRequest(**{**vars(request), "seed": seed}))))
        for seed in (1, 2)
    }

    async def ask(client: httpx.AsyncClient, seed: int) -> httpx.Response:
        return await client.post("/v1/cross-lingual", json=body(seed=seed))

    async def crowd() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            return await asyncio.gather(*(ask(client, 1 + number % 2) for number in range(8)))

    answers = asyncio.run(crowd())
    good = [answer for answer in answers if answer.status_code == 200]
    rest = [answer for answer in answers if answer.status_code != 200]
    assert len(good) >= 5  # three are served and two may wait
    for answer in good:
        np.testing.assert_array_equal(
            np.frombuffer(answer.content, "<i2"), expected[int(answer.headers["x-seed"])]
        )
    for answer in rest:
        assert answer.status_code == 503 and int(answer.headers["retry-after"]) >= 1
    eventually(lambda: idle(workers))


def test_leaving_frees_the_place(server: Server, workers: WorkerPool) -> None:
    text = LONG_TEXT * 3
    with httpx.Client(base_url=server.url, timeout=60) as client:
        with client.stream("POST", "/v1/cross-lingual", json=body(text=text)) as answer:
            sound = answer.iter_raw()
            next(sound)
            assert workers.status().live == 1
        eventually(lambda: idle(workers))
    assert workers.status().counters.cancelled == 1


def test_a_slow_reader_frees_its_place_too(server: Server, workers: WorkerPool) -> None:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        with client.stream("POST", "/v1/cross-lingual", json=body(text=TEXT * 2)) as answer:
            sound = answer.iter_raw(1000)
            first = next(sound)
            eventually(lambda: idle(workers), seconds=60)
            assert sum(map(len, sound)) + len(first) > 48000


def test_when_the_worker_dies_everybody_gets_an_answer_and_the_service_recovers(
    server: Server, workers: WorkerPool
) -> None:
    def ask(number: int) -> str:
        with httpx.Client(base_url=server.url, timeout=80) as client:
            try:
                answer = client.post("/v1/cross-lingual", json=body(text=TEXT * 2, seed=number))
            except httpx.RemoteProtocolError:
                return "broken off"  # it had been heard already
            return str(answer.status_code)

    before = workers.status().counters.finished
    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(ask, number) for number in range(4)]
        eventually(lambda: workers.status().live == 3)
        (worker,) = workers.status().workers
        os.kill(worker.pid, signal.SIGKILL)
        eventually(lambda: httpx.get(f"{server.url}/ready").status_code == 503)
        outcomes = [one.result() for one in asked]
    assert set(outcomes) <= {"200", "503", "broken off"} and "200" in outcomes
    eventually(lambda: httpx.get(f"{server.url}/ready").status_code == 200, seconds=60)
    assert ask(9) == "200" and workers.status().counters.finished > before
    text = httpx.get(f"{server.url}/metrics").text
    assert 'cosyvoice_worker_restarts_total{device="cpu",worker="worker 0 (cpu)"} 1.0' in text
    assert 'cosyvoice_worker_backend_info{backend="float32 ' in text  # the flow's, and what computes it
    assert 'cosyvoice_worker_backend_failures_total{device="cpu",worker="worker 0 (cpu)"} 0.0' in text

"""A pool that makes tones, with the queue and the status of a real one, and the API over it on a real port."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import uvicorn
from fastapi import FastAPI

from inference.pool_status import PoolCounters, PoolStatus, WorkerStatus
from inference.protocol import WorkerStats
from inference.types import (
    AudioChunk,
    EngineError,
    Mode,
    Reference,
    ReferenceReport,
    RequestError,
    SynthesisError,
    SynthesisRequest,
    Timings,
    Voice,
)
from inference.validate import validate
from inference.voices import VoiceLibrary
from tests.make_clips import speech, wav_bytes
from webui.api import add_api
from webui.metrics import MeteredPool, Metrics
from webui.options import Options

RATE = 24000
CHUNK = 4800
CLIP = wav_bytes(speech(4.0, 16000), 16000)


class TonePool:
    """Speaks `sentences` of three chunks each; `pause` seconds before each chunk; takes `places` requests.

    `fail_at`: the chunk before which every request fails; `error` with what.
    """

    sample_rate = RATE

    def __init__(self, *, sentences: int = 2, pause: float = 0.0, places: int = 100) -> None:
        self.sentences, self.pause, self.places = sentences, pause, places
        self.presets = ["narrator"]
        self.position = 0  # in the queue, of each request
        self.running = 0
        self.given_up = 0
        self.finished = 0
        self.requests: list[SynthesisRequest] = []
        self.fail_at: int | None = None
        self.error: Exception = EngineError("engine_failed", "The engine failed.")
        self.ready = True

    def submit(self, request: SynthesisRequest) -> ToneSubmission:
        if isinstance(request.voice, str) and request.mode is not Mode.PRESET:
            request = replace(request, voice=tone_voice(request.voice))  # as the real pool does
        validate(request)
        if not self.ready:
            raise EngineError("not_ready", "The speech engine is not ready; try again in a moment.")
        if self.running >= self.places:
            raise RequestError(
                "busy", f"The server is busy, {self.running} requests are ahead.", ahead=self.running
            )
        self.requests.append(request)
        return ToneSubmission(self, request)

    async def voice(self, reference: Reference, exact: bool = False) -> Voice:
        return tone_voice(reference.transcript)

    def status(self) -> PoolStatus:
        worker = WorkerStatus(
            name="worker 0 (cpu)", device="cpu", pid=1, alive=True, ready=self.ready, draining=False,
            stage="ready", restarts=0, live=self.running, concurrency=self.places, error="",
            stats=WorkerStats(slots=self.places, drawing=self.running), backends={"vocoder": "torch"},
        )  # fmt: skip
        counters = PoolCounters(finished=self.finished)
        return PoolStatus(self.ready, False, 0, self.running, 8, (worker,), counters)


class ToneSubmission:
    """What the pool makes is put in a queue of its own accord, as by a real worker: a slow reader holds nothing."""

    def __init__(self, pool: TonePool, request: SynthesisRequest) -> None:
        self._pool = pool
        self.position = pool.position
        self._made: asyncio.Queue[AudioChunk | Exception] = asyncio.Queue()
        pool.running += 1
        self._task = asyncio.ensure_future(self._work(request))
        self._over = False

    async def _work(self, request: SynthesisRequest) -> None:
        pool = self._pool
        try:
            async for chunk in _chunks(pool, request):
                self._made.put_nowait(chunk)
            pool.finished += 1
        except asyncio.CancelledError:
            pool.given_up += 1
            raise
        except Exception as error:
            self._made.put_nowait(error)
        finally:
            pool.running -= 1

    def __aiter__(self) -> ToneSubmission:
        return self

    async def __anext__(self) -> AudioChunk:
        if self._over:
            raise StopAsyncIteration
        item = await self._made.get()
        if isinstance(item, Exception):
            raise item
        self._over = item.final
        return item

    def cancel(self) -> None:
        self._task.cancel()

    async def aclose(self) -> None:
        self._task.cancel()


async def _chunks(pool: TonePool, request: SynthesisRequest) -> AsyncGenerator[AudioChunk, None]:
    count = 3 * pool.sentences
    for index in range(count):
        if index == pool.fail_at:
            raise pool.error
        await asyncio.sleep(pool.pause)
        timings = Timings(queue=0.01, first_audio=0.1, total=0.1 * (index + 1))
        text = f"Sentence {index // 3} says it."
        yield AudioChunk(
            tone(request.seed, index), RATE, index, text, index == count - 1, timings, index // 3
        )


def tone(seed: int, index: int) -> np.ndarray:
    times = np.arange(index * CHUNK, (index + 1) * CHUNK) / RATE
    return (8000 * np.sin(2 * np.pi * (200 + 10 * seed) * times)).astype(np.int16)


def tones(seed: int, chunks: int = 6) -> np.ndarray:
    return np.concatenate([tone(seed, index) for index in range(chunks)])


def pitch(pcm: np.ndarray) -> float:
    """Hz, by the strongest line of the spectrum."""
    spectrum = np.abs(np.fft.rfft(pcm * np.hanning(len(pcm))))
    return float(np.argmax(spectrum) * RATE / len(pcm))


def tone_voice(transcript: str = "") -> Voice:
    report = ReferenceReport(4.0, 0.0, 4.0, 16000, -20.0, -60.0, 0.0)
    return Voice(
        np.arange(8, dtype=np.int32),
        np.zeros((16, 80), np.float32),
        np.ones(192, np.float32),
        transcript,
        report,
    )


class Server:
    """The API on a port of its own. `pool` may be touched between requests."""

    def __init__(self, pool: Any, folder: Path, studio: dict[str, Any] | None = None, **options: Any) -> None:
        self.pool = pool
        self.secret = ""  # of a key, for tests that make one
        self.options = replace(Options(), api_keys=folder / "keys.json", **options)
        self.voices = VoiceLibrary(folder / "voices")
        self.metrics = Metrics(pool.status)
        app = FastAPI()
        shown = SimpleNamespace(**{"voices": self.voices, **(studio or {})})
        add_api(app, MeteredPool(pool, self.metrics, "page"), shown, self.options)
        self.app = app
        config = uvicorn.Config(app, host="127.0.0.1", port=0, log_config=None, lifespan="off")
        self._uvicorn = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._uvicorn.run, daemon=True)
        self._thread.start()
        eventually(lambda: self._uvicorn.started)
        self.port: int = self._uvicorn.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        self._uvicorn.should_exit = True
        self._uvicorn.force_exit = True
        self._thread.join(10)


@contextmanager
def serving(
    pool: Any, folder: Path, studio: dict[str, Any] | None = None, **options: Any
) -> Iterator[Server]:
    server = Server(pool, folder, studio, **options)
    try:
        yield server
    finally:
        server.close()


def eventually(holds: Callable[[], Any], seconds: float = 60.0) -> None:
    """Wait until `holds()`; an error if that never comes. The bound is for a machine that others keep busy."""
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "it never came"
        time.sleep(0.01)


__all__ = ["CLIP", "Server", "SynthesisError", "TonePool", "eventually", "pitch", "serving", "tone", "tones"]

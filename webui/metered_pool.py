"""A pool that counts and times what it is asked, under the name of the front that asks."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Generator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from inference.types import AudioChunk, Reference, RequestError, SynthesisRequest, Voice

if TYPE_CHECKING:
    from webui.metrics import Metrics


class MeteredPool:
    """A pool whose requests are counted under `front`; whatever else the pool can is passed through."""

    def __init__(self, pool: Any, metrics: Metrics, front: str) -> None:
        self._pool = pool
        self.metrics = metrics
        self.front = front

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def for_front(self, front: str) -> MeteredPool:
        """The same pool, counted under another name."""
        return MeteredPool(self._pool, self.metrics, front)

    def submit(self, request: SynthesisRequest) -> MeteredSubmission:
        """As the pool's."""
        if not request.request_id:
            request = replace(request, request_id=f"{self.front}_{secrets.token_hex(6)}")
        meter = _Meter(self.metrics, self.front, request)
        try:
            return MeteredSubmission(self._pool.submit(request), meter)
        except BaseException as error:
            meter.ended(error)
            raise

    def synthesize(self, request: SynthesisRequest) -> Generator[AudioChunk, None, None]:
        """As the pool's."""
        return iter(self.submit(request))

    async def voice(self, reference: Reference, *more: Any) -> Voice:
        """As the pool's."""
        voice: Voice = await self._pool.voice(reference, *more)
        return voice


class MeteredSubmission:
    """A submission that is timed while its listener takes it."""

    def __init__(self, submission: Any, meter: _Meter) -> None:
        self._submission = submission
        self._meter = meter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._submission, name)

    @property
    def position(self) -> int:
        position: int = self._submission.position
        return position

    def __aiter__(self) -> AsyncIterator[AudioChunk]:
        return self

    async def __anext__(self) -> AudioChunk:
        try:
            chunk: AudioChunk = await anext(self._submission)
        except StopAsyncIteration:
            self._meter.ended(None)
            raise
        except Exception as error:
            self._meter.ended(error)
            raise
        self._meter.heard(chunk)
        return chunk

    def __iter__(self) -> Generator[AudioChunk, None, None]:
        try:
            for chunk in self._submission:
                self._meter.heard(chunk)
                yield chunk
            self._meter.ended(None)
        except Exception as error:
            self._meter.ended(error)
            raise
        finally:
            self.cancel()

    def cancel(self) -> None:
        self._meter.left()
        self._submission.cancel()

    async def aclose(self) -> None:
        self._meter.left()
        await self._submission.aclose()


class _Meter:
    """One request, from its submission to its only end."""

    def __init__(self, metrics: Metrics, front: str, request: SynthesisRequest) -> None:
        self._metrics = metrics
        self._front = front
        self._mode = getattr(request.mode, "value", "unknown")
        self._id = request.request_id
        self._characters = len(request.text) if isinstance(request.text, str) else 0
        self._started = time.perf_counter()
        self._sound = 0.0
        self._queue = 0.0
        self._over = False

    def heard(self, chunk: AudioChunk) -> None:
        # The engine's own times: a listener who takes the sound late does not make the service slow.
        if not self._sound and len(chunk.pcm):
            first = chunk.timings.first_audio or time.perf_counter() - self._started
            self._metrics.first_chunk.labels(self._front, self._mode).observe(first)
            self._metrics.latest_first.append(first)
        self._sound += len(chunk.pcm) / chunk.sample_rate
        self._queue = chunk.timings.queue
        if chunk.final:
            self._finish(chunk.timings.total or time.perf_counter() - self._started)

    def ended(self, error: BaseException | None) -> None:
        if self._over:
            return
        if error is None:
            self._end("cancelled")
            return
        self._end("refused" if isinstance(error, RequestError) else "failed")
        self._metrics.note_error(self._front, error, self._id)

    def left(self) -> None:
        if not self._over:
            self._end("cancelled")

    def _finish(self, seconds: float) -> None:
        if self._over:
            return
        metrics = self._metrics
        metrics.whole.labels(self._front, self._mode).observe(seconds)
        metrics.latest_whole.append(seconds)
        metrics.queue_wait.labels(self._front).observe(self._queue)
        if self._sound:
            metrics.real_time_factor.labels(self._front).observe(seconds / self._sound)
        self._end("finished")

    def _end(self, outcome: str) -> None:
        self._over = True
        self._metrics.requests.labels(self._front, self._mode, outcome).inc()
        self._metrics.outcomes[outcome] += 1
        self._metrics.audio.labels(self._front, self._mode).inc(self._sound)
        self._metrics.characters.labels(self._front, self._mode).inc(self._characters)

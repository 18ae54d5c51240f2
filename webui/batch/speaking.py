"""One row of a batch, from its request to its file."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any, Protocol

import numpy as np

from inference.frontend.encode import encode_audio
from inference.types import EngineError, Int16Audio, SynthesisError, SynthesisRequest
from webui.batch.job import Job

logger = logging.getLogger(__name__)

_RETRY = {
    "worker_lost",
    "engine_failed",
    "worker_failed",
}  # may be the engine's bad luck, not the row's fault
_WAIT = {"busy": 1.0, "not_ready": 2.0}  # seconds until the row is tried again


class BatchPool(Protocol):
    """The part of `inference.pool.WorkerPool` that batches use."""

    @property
    def sample_rate(self) -> int: ...

    def submit(self, request: SynthesisRequest) -> Any: ...


async def speak_row(pool: BatchPool, job: Job, index: int) -> bool:
    """Speak a row and note how it ended; a failure is the row's alone. False when the pool is closing."""
    try:
        try:
            pcm = await _sound_in_time(pool, job.request(index))
            rate = pool.sample_rate
            data = await asyncio.to_thread(encode_audio, pcm, rate, job.settings.audio_format)
            await asyncio.to_thread(job.add_sound, index, data, len(pcm) / rate)
        except SynthesisError as error:
            if error.code == "pool_closed":
                return False  # the row is spoken when the next studio begins
            if error.code == "output_not_writable":
                raise
            job.add_failure(index, error)
        except Exception:
            logger.exception("row %d of batch %s failed", index + 1, job.id)
            job.add_failure(index, EngineError("engine_failed", "An unexpected error; see the log."))
    except SynthesisError as error:  # a full disk would cost every further row
        logger.error("batch %s is stopped: %s", job.id, error.message)
        with contextlib.suppress(SynthesisError):
            job.set_stopped(True)
    return True


async def _sound_in_time(pool: BatchPool, request: SynthesisRequest) -> Int16Audio:
    """`_sound`, waiting while there is no place, and once more after what may be the engine's bad luck."""
    again = True
    while True:
        try:
            return await _sound(pool, request)
        except SynthesisError as error:
            if error.code in _WAIT:
                await asyncio.sleep(_WAIT[error.code])
            elif error.code in _RETRY and again:
                again = False
            else:
                raise


async def _sound(pool: BatchPool, request: SynthesisRequest) -> Int16Audio:
    spoken = pool.submit(request)
    try:
        pieces = [chunk.pcm async for chunk in spoken]
    finally:
        await spoken.aclose()
    pcm = np.concatenate(pieces) if pieces else np.zeros(0, np.int16)
    if not len(pcm):
        raise EngineError("no_sound", "The model produced no sound; try again with another seed.")
    return pcm

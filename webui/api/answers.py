"""Answers that are made while they are sent: nothing before the first sound, given up when the reader leaves."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response

from inference.types import AudioChunk, EngineError, SynthesisRequest
from webui.api.doubts import Doubts
from webui.api.errors import ApiError, as_api_error, error_response
from webui.api.patience import OutOfTimeError, in_time
from webui.api.quota import Lease
from webui.api.timestamps import estimated_words, subtitles
from webui.api.writers import SoundWriter

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from webui.metrics import MeteredPool

logger = logging.getLogger("cosyvoice.api")

QUEUE_PATIENCE = 50.0  # seconds in the queue; many proxies give up after 60 without a byte
PATIENCE = 300.0  # seconds until the first sound of what is being served
STALL = 120.0  # seconds that a reader may take nothing
# Proxies must hand on what they get at once, and keep none of it.
STREAM_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


@asynccontextmanager
async def speaking(
    pool: MeteredPool, request: SynthesisRequest
) -> AsyncIterator[AsyncGenerator[AudioChunk, None]]:
    """Hand the request in and wait for its first sound; leaving the block takes it out of the pool.

    Raises what the pool raises, `ApiError` 503 when the first sound does not come in time, `EngineError` no_sound.
    """
    submission = pool.submit(request)
    first = asyncio.ensure_future(_first_sound(submission))
    try:
        done, _ = await asyncio.wait({first}, timeout=QUEUE_PATIENCE)
        if not done and submission.position == 0:
            done, _ = await asyncio.wait({first}, timeout=PATIENCE - QUEUE_PATIENCE)
        if not done:
            again = pool.metrics.retry_after()
            raise ApiError(503, "too_slow", "It was not this request's turn in time.", retry_after=again)
        async with aclosing(_with_first(first.result(), submission)) as chunks:
            yield chunks
    finally:
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await submission.aclose()


async def _first_sound(submission: Any) -> AudioChunk:
    async for chunk in submission:
        if len(chunk.pcm):
            found: AudioChunk = chunk
            return found
    raise EngineError("no_sound", "The model produced no sound; try again with another seed.")


async def _with_first(first: AudioChunk, submission: Any) -> AsyncGenerator[AudioChunk, None]:
    yield first
    if not first.final:
        async for chunk in submission:
            yield chunk


class SpeechAnswer(Response):
    """Base of the answers to a synthesis request. The lease is released when all is over."""

    def __init__(
        self,
        pool: MeteredPool,
        request: SynthesisRequest,
        lease: Lease,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__()
        self._pool = pool
        self._request = request
        self._lease = lease
        self._own_headers = {
            "X-Seed": str(request.seed),
            "X-Sample-Rate": str(pool.sample_rate),
            **(headers or {}),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._doubts = Doubts(self._request)
        work = asyncio.ensure_future(self._guarded(scope, receive, send))
        gone = asyncio.ensure_future(_reader_gone(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
            else:
                logger.info("The reader has gone; the work is given up.")
        finally:
            self._lease.release()
            for task in (work, gone):
                task.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)
            await self._doubts.close()

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._serve(scope, receive, send)
        except Exception as error:
            told = as_api_error(error, self._pool.metrics.retry_after())
            await error_response(told)(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer. May raise as long as nothing has been sent."""
        raise NotImplementedError


class StreamAnswer(SpeechAnswer):
    """Sound, or events with sound, from the first chunk on."""

    def __init__(
        self,
        pool: MeteredPool,
        request: SynthesisRequest,
        lease: Lease,
        writer: SoundWriter,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(pool, request, lease, {**STREAM_HEADERS, **(headers or {})})
        self._writer = writer

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with speaking(self._pool, self._request) as chunks:
            headers = {"Content-Type": self._writer.media_type, **self._own_headers}
            headers |= _warning_header(self._doubts.known)
            raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
            await send({"type": "http.response.start", "status": 200, "headers": raw})
            try:
                async for chunk in chunks:
                    await _put(send, await self._writer.feed(chunk))
                self._writer.warnings = await self._doubts.all()
                await _put(send, await self._writer.finish())
            except _StalledError:
                logger.warning("A reader took nothing for %.0f s and is left.", STALL)
                return
            except Exception as error:
                last_words = self._writer.fail(as_api_error(error))
                if last_words is None:
                    # Without an end the connection is closed, and no reader takes the piece for the whole.
                    logger.warning("An answer breaks off: %s", error)
                    return
                await _put(send, last_words)
            await send({"type": "http.response.body", "body": b"", "more_body": False})


class WholeAnswer(SpeechAnswer):
    """One JSON object with the sound in base64, its segments' times and, if wanted, subtitles."""

    def __init__(
        self,
        pool: MeteredPool,
        request: SynthesisRequest,
        lease: Lease,
        writer: SoundWriter,
        audio_format: str,
        subtitle_format: str | None = None,
    ) -> None:
        super().__init__(pool, request, lease)
        self._writer = writer
        self._format = audio_format
        self._subtitles = subtitle_format

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        parts: list[bytes] = []
        async with speaking(self._pool, self._request) as chunks:
            async for chunk in chunks:
                parts.append(await self._writer.feed(chunk))
            parts.append(await self._writer.finish())
        timeline, warnings = self._writer.timeline, await self._doubts.all()
        content: dict[str, Any] = {
            "audio": base64.b64encode(b"".join(parts)).decode(),
            "format": self._format,
            "sample_rate": self._pool.sample_rate,
            "duration": round(timeline.duration, 3),
            "seed": self._request.seed,
            "segments": [{"id": number, **span.as_json()} for number, span in enumerate(timeline.segments)],
            "words": [word.as_json() for span in timeline.segments for word in estimated_words(span)],
            "warnings": list(warnings),
        }
        if self._subtitles:
            content["subtitles"] = subtitles(timeline.segments, self._subtitles)
        headers = {**self._own_headers, **_warning_header(warnings)}
        await JSONResponse(content, headers=headers)(scope, receive, send)


def _warning_header(warnings: tuple[str, ...]) -> dict[str, str]:
    return {"X-Warning": ", ".join(warnings)} if warnings else {}


class _StalledError(Exception):
    """The reader takes nothing any more."""


async def _put(send: Send, data: bytes) -> None:
    if data:
        message = {"type": "http.response.body", "body": data, "more_body": True}
        try:
            await in_time(send(message), STALL)
        except OutOfTimeError as error:
            raise _StalledError from error


async def _reader_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue

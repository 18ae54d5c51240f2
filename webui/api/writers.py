"""What an answer's bytes are: sound itself, or server-sent events with sound in them."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import numpy as np

from inference.types import AudioChunk, Int16Audio
from webui.api.encoders import stream_encoder
from webui.api.errors import ApiError, error_body
from webui.api.tempo import Tempo
from webui.api.timestamps import Span, Timeline, estimated_words

TOKENS_A_SECOND = 25  # speech tokens of the model
_CHEAP = ("pcm", "wav")


class SoundWriter:
    """The file itself, as it is made. `factor`: what is left of the speed for the finished sound."""

    def __init__(self, audio_format: str, sample_rate: int, factor: float = 1.0) -> None:
        self._encoder = stream_encoder(audio_format, sample_rate)
        self._in_thread = audio_format not in _CHEAP or factor != 1.0
        self._tempo = Tempo(factor, sample_rate) if factor != 1.0 else None
        self.timeline = Timeline(sample_rate, factor)
        self.warnings: tuple[str, ...] = ()  # codes, to be set before the end by who knows

    @property
    def media_type(self) -> str:
        """Of the answer."""
        return self._encoder.media_type

    async def feed(self, chunk: AudioChunk) -> bytes:
        """The bytes that a chunk brings, maybe none."""
        self.timeline.add(chunk)
        return await self.encode(chunk.pcm)

    async def finish(self) -> bytes:
        """The last bytes."""
        self.timeline.close()
        return await self.encode(None)

    def fail(self, error: ApiError) -> bytes | None:
        """What tells of an error in the middle; None: only breaking off can."""
        return None

    async def encode(self, pcm: Int16Audio | None) -> bytes:
        """`pcm` as bytes of the format; None for the end."""
        return await asyncio.to_thread(self._encode, pcm) if self._in_thread else self._encode(pcm)

    def _encode(self, pcm: Int16Audio | None) -> bytes:
        last = pcm is None
        sound = np.zeros(0, np.int16) if pcm is None else pcm
        if self._tempo is not None:
            sound = self._tempo.finish() if last else self._tempo.feed(sound)
        data = self._encoder.encode(sound) if len(sound) else b""
        return data + self._encoder.finish() if last else data


class EventWriter(SoundWriter):
    """Server-sent events as OpenAI's: `speech.audio.delta` … `speech.audio.done`.

    `characters`: of the text, told as usage; `with_segments` adds a `speech.segment` event as each one ends.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        audio_format: str,
        sample_rate: int,
        factor: float = 1.0,
        *,
        characters: int = 0,
        with_segments: bool = False,
    ) -> None:
        super().__init__(audio_format, sample_rate, factor)
        self._characters = characters
        self._with_segments = with_segments

    async def feed(self, chunk: AudioChunk) -> bytes:
        ended = self.timeline.add(chunk)
        return self._segment(ended) + _delta(await self.encode(chunk.pcm))

    async def finish(self) -> bytes:
        ended = self.timeline.close()
        sound = _delta(await self.encode(None))
        made = round(self.timeline.duration * self.timeline.stretch * TOKENS_A_SECOND)
        usage = {
            "input_tokens": self._characters,
            "output_tokens": made,
            "total_tokens": self._characters + made,
        }
        done: dict[str, Any] = {"type": "speech.audio.done", "usage": usage}
        if self.warnings:
            done["warnings"] = list(self.warnings)
        return sound + self._segment(ended) + event(done)

    def fail(self, error: ApiError) -> bytes | None:
        return event({"type": "error", **error_body(error)})

    def _segment(self, span: Span | None) -> bytes:
        if span is None or not self._with_segments:
            return b""
        words = [word.as_json() for word in estimated_words(span)]
        number = len(self.timeline.segments) - 1
        return event({"type": "speech.segment", "id": number, **span.as_json(), "words": words})


def event(content: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n".encode("utf-8", "replace")


def _delta(sound: bytes) -> bytes:
    if not sound:
        return b""
    return event({"type": "speech.audio.delta", "audio": base64.b64encode(sound).decode()})

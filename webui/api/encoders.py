"""Sound as a stream of bytes: one encoder a response, fed chunk by chunk, first bytes at the first chunk."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from inference.types import Int16Audio

if TYPE_CHECKING:
    from av.audio.stream import AudioStream

# name: (container, codec, media type, options of the container)
_CODECS: dict[str, tuple[str, str, str, dict[str, str]]] = {
    "mp3": ("mp3", "libmp3lame", "audio/mpeg", {"write_xing": "0", "id3v2_version": "0"}),
    "opus": (
        "ogg",
        "libopus",
        "audio/ogg",
        {"page_duration": "100000"},
    ),  # microseconds; one second otherwise
    "aac": ("adts", "aac", "audio/aac", {}),
    "flac": ("flac", "flac", "audio/flac", {}),
}
FORMATS = ("mp3", "opus", "aac", "flac", "wav", "pcm")
_BIT_RATES = {"mp3": 96_000, "opus": 48_000, "aac": 96_000}
_UNKNOWN_LENGTH = 0xFFFFFFFF  # of a WAV that is still being made; readers go on to the end of the file
_BUFFER = 4096  # bytes that FFmpeg may hold back


class StreamEncoder(Protocol):
    """`encode` takes (n,) int16 mono samples and gives the bytes that are ready; `finish` the rest."""

    media_type: str

    def encode(self, pcm: Int16Audio) -> bytes: ...

    def finish(self) -> bytes: ...


def stream_encoder(audio_format: str, sample_rate: int) -> StreamEncoder:
    """An encoder for one of `FORMATS`. Raises ValueError for another."""
    if audio_format == "pcm":
        return PcmEncoder(sample_rate)
    if audio_format == "wav":
        return WavEncoder(sample_rate)
    if audio_format in _CODECS:
        return CodecEncoder(audio_format, sample_rate)
    raise ValueError(f"unknown audio format {audio_format!r}")


class PcmEncoder:
    """Little-endian int16 samples and nothing else."""

    def __init__(self, sample_rate: int) -> None:
        self.media_type = f"audio/pcm;rate={sample_rate};channels=1"

    def encode(self, pcm: Int16Audio) -> bytes:
        return pcm.astype("<i2", copy=False).tobytes()

    def finish(self) -> bytes:
        return b""


class WavEncoder:
    """A WAV file whose header says that its length is unknown."""

    media_type = "audio/wav"

    def __init__(self, sample_rate: int) -> None:
        self._header = struct.pack(
            "<4sI4s4sIHHIIHH4sI",
            *(b"RIFF", _UNKNOWN_LENGTH, b"WAVE", b"fmt ", 16, 1, 1, sample_rate, 2 * sample_rate, 2, 16),
            *(b"data", _UNKNOWN_LENGTH),
        )

    def encode(self, pcm: Int16Audio) -> bytes:
        header, self._header = self._header, b""
        return header + pcm.astype("<i2", copy=False).tobytes()

    def finish(self) -> bytes:
        return self._header


class _Sink:
    """What FFmpeg writes to. It cannot seek, so nothing is written that would be patched later."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        parts, self._parts = self._parts, []
        return b"".join(parts)


class CodecEncoder:
    """MP3, Ogg/Opus, AAC (ADTS) or FLAC by FFmpeg."""

    def __init__(self, audio_format: str, sample_rate: int) -> None:
        import av

        container, codec, self.media_type, options = _CODECS[audio_format]
        self._rate = sample_rate
        self._sink = _Sink()
        self._samples = 0
        self._output = av.open(
            cast("Any", self._sink),
            "w",
            format=container,
            options={**options, "flush_packets": "1"},
            buffer_size=_BUFFER,
        )
        self._stream = cast("AudioStream", self._output.add_stream(codec, rate=sample_rate, layout="mono"))
        if audio_format in _BIT_RATES:
            self._stream.bit_rate = _BIT_RATES[audio_format]

    def encode(self, pcm: Int16Audio) -> bytes:
        import av

        if len(pcm):
            frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(pcm[None]), format="s16", layout="mono")
            frame.sample_rate, frame.pts = self._rate, self._samples
            self._samples += len(pcm)
            self._output.mux(self._stream.encode(frame))
        return self._sink.take()

    def finish(self) -> bytes:
        if self._samples:
            self._output.mux(self._stream.encode(None))
        self._output.close()
        return self._sink.take()

"""Finished audio as a file: WAV by hand, FLAC, MP3 and Ogg/Opus by FFmpeg."""

from __future__ import annotations

import io
import struct
from typing import TYPE_CHECKING, cast

import numpy as np

from inference.types import EngineError, Int16Audio, RequestError

if TYPE_CHECKING:
    from av.audio.stream import AudioStream

# name: (container, codec, media type)
_ENCODERS = {
    "flac": ("flac", "flac", "audio/flac"),
    "mp3": ("mp3", "libmp3lame", "audio/mpeg"),
    "ogg": ("ogg", "libopus", "audio/ogg"),
}
FORMATS = ("wav", *_ENCODERS)
_BLOCK = 1 << 16  # samples handed to the encoder at a time


def media_type(audio_format: str) -> str:
    """MIME type of a format in `FORMATS`. Raises RequestError("audio_format_unknown")."""
    _require_format(audio_format)
    return "audio/wav" if audio_format == "wav" else _ENCODERS[audio_format][2]


def encode_audio(pcm: Int16Audio, sample_rate: int, audio_format: str) -> bytes:
    """A mono file of (n,) int16 samples in "wav", "flac", "mp3" or "ogg" (Opus).

    Raises RequestError("audio_format_unknown"); EngineError decoder_missing without the `av` package, or
    encoding_failed (no samples, or a rate that the format does not know).
    """
    _require_format(audio_format)
    if not len(pcm):
        raise EngineError("encoding_failed", "There is no sound to write.")
    if audio_format == "wav":
        return _wav(pcm, sample_rate)
    try:
        import av
    except ImportError as error:
        raise EngineError("decoder_missing", "Only WAV can be written; `pip install av` for more.") from error
    container, codec, _ = _ENCODERS[audio_format]
    buffer = io.BytesIO()
    try:
        with av.open(buffer, "w", format=container) as output:
            stream = cast("AudioStream", output.add_stream(codec, rate=sample_rate, layout="mono"))
            for start in range(0, len(pcm), _BLOCK):
                block = np.ascontiguousarray(pcm[None, start : start + _BLOCK])
                frame = av.AudioFrame.from_ndarray(block, format="s16", layout="mono")
                frame.sample_rate = sample_rate
                frame.pts = start
                output.mux(stream.encode(frame))
            output.mux(stream.encode(None))
    except (av.FFmpegError, ValueError) as error:
        raise EngineError("encoding_failed", f"Writing {audio_format} failed: {error}") from error
    return buffer.getvalue()


def _wav(pcm: Int16Audio, sample_rate: int) -> bytes:
    data = pcm.astype("<i2").tobytes()
    header = struct.pack(
        "<4sI4s4sIHHIIHH4sI",
        *(b"RIFF", 36 + len(data), b"WAVE", b"fmt ", 16, 1, 1, sample_rate, 2 * sample_rate, 2, 16, b"data"),
        len(data),
    )
    return header + data


def _require_format(audio_format: str) -> None:
    if audio_format not in FORMATS:
        raise RequestError(
            "audio_format_unknown",
            f"The output format {audio_format!r} is unknown; choose one of {', '.join(FORMATS)}.",
            format=audio_format,
        )

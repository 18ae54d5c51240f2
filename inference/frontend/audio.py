"""Audio files in whatever format people have, decoded to mono float32 under limits (SPEC 2.1).

The limits hold before and while a file is decoded, so neither a long recording nor a small file that unpacks
to gigabytes costs more than they allow. Whatever the bytes are, the result is a clip or a RequestError.
"""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from inference.frontend.wav import read_wav_layout, read_wav_mono
from inference.types import EngineError, FloatAudio, RequestError

if TYPE_CHECKING:
    import av

AudioInput = Path | str | bytes

TOKENIZER_RATE = 16000  # Hz, for the speech tokenizer and the speaker encoder
MAX_SECONDS = 300.0
MAX_BYTES = 256 * 2**20
MIN_RATE = 8000  # Hz
MAX_RATE = 192000
MAX_CHANNELS = 16
DECODING_DEADLINE = 60.0  # seconds of wall-clock time; five minutes of any format take two or three
_LARGEST_SAMPLE = 32768.0  # a float file written in 16-bit units still fits

# Containers of sound only; none that refers to other files or addresses (playlists, concatenations, devices).
_FORMATS = "wav,w64,aiff,caf,au,flac,mp3,ogg,aac,amr,mov,matroska,asf,avi,mpegts"
# Formats that state no duration: the library's guess from the first frame's bit rate can be far off.
_GUESSED_DURATION = {"mp3", "aac", "amr"}


@dataclass(frozen=True)
class Clip:
    """Decoded sound."""

    samples: FloatAudio  # (n,) mono, [-1, 1] but for files that go beyond
    sample_rate: int  # Hz, of the file
    damaged: bool = False  # parts of the file could not be decoded and are left out

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.sample_rate


def decode_audio(audio: AudioInput, max_seconds: float = MAX_SECONDS, max_bytes: int = MAX_BYTES) -> Clip:
    """Decode a file, given by path or by its bytes; channels are averaged, the rate stays the file's.

    Raises RequestError: audio_missing, audio_empty, audio_too_large, audio_too_long, audio_no_stream,
    audio_unreadable, sample_rate_unsupported; EngineError decoder_missing where the `av` package is not
    installed and the file is no plain WAV.
    """
    with _open(audio) as file:
        size = file.seek(0, io.SEEK_END)
        if size == 0:
            raise RequestError("audio_empty", "The audio file is empty (0 bytes).")
        if size > max_bytes:
            raise RequestError(
                "audio_too_large",
                f"The audio file has {size / 2**20:.0f} MB; at most {max_bytes / 2**20:.0f} MB are accepted.",
                megabytes=round(size / 2**20),
                limit=round(max_bytes / 2**20),
            )
        clip = _decode_plain_wav(file, max_seconds) or _decode_with_av(file, max_seconds)
    return _checked(clip)


def _open(audio: AudioInput) -> BinaryIO:
    if isinstance(audio, (bytes, bytearray, memoryview)):
        return io.BytesIO(audio)
    path = Path(audio)
    try:
        if not path.is_file():
            raise RequestError("audio_missing", f"There is no audio file {path.name!r}.", name=path.name)
        return path.open("rb")
    except (OSError, ValueError) as error:
        raise RequestError(
            "audio_missing", f"The audio file {path.name!r} cannot be opened: {error}.", name=path.name
        ) from error


def _decode_plain_wav(file: BinaryIO, max_seconds: float) -> Clip | None:
    layout = read_wav_layout(file)
    if layout is None:
        return None
    _require_format(layout.sample_rate, layout.channels)
    _require_seconds(layout.seconds, max_seconds)
    return Clip(read_wav_mono(file, layout), layout.sample_rate, layout.truncated)


# ------------------------------------------------------------------------ everything else, by FFmpeg
def _decode_with_av(file: BinaryIO, max_seconds: float) -> Clip:
    try:
        import av
    except ImportError as error:
        raise EngineError(
            "decoder_missing", "Only plain WAV files can be read here; `pip install av` for the others."
        ) from error
    file.seek(0)
    options = {"format_whitelist": _FORMATS, "protocol_whitelist": "none"}
    try:
        with av.open(file, mode="r", options=options, metadata_errors="replace") as container:
            return _decode_container(container, max_seconds)
    except RequestError:
        raise
    except Exception as error:  # hostile bytes make the library raise nearly anything
        raise _unreadable() from error


def _unreadable() -> RequestError:
    return RequestError(
        "audio_unreadable",
        "The file is damaged or not audio; use wav, flac, mp3, ogg, opus, m4a, aac, webm or mp4.",
    )


def _decode_container(container: av.container.InputContainer, max_seconds: float) -> Clip:
    stream = _best_stream(container)
    if container.format.name not in _GUESSED_DURATION:
        _require_seconds(_declared_seconds(container, stream), max_seconds)
    collector = _Collector(max_seconds)
    for frame in _frames(container, stream, collector):
        collector.add(frame)
    return collector.clip()


def _best_stream(container: av.container.InputContainer) -> av.audio.stream.AudioStream:
    import av

    best = container.streams.best("audio")
    if not isinstance(best, av.audio.stream.AudioStream):
        raise RequestError("audio_no_stream", "The file holds no sound track.")
    return best


def _declared_seconds(container: av.container.InputContainer, stream: av.audio.stream.AudioStream) -> float:
    if stream.duration and stream.time_base:
        return float(stream.duration * stream.time_base)
    return (container.duration or 0) / 1e6


def _frames(
    container: av.container.InputContainer, stream: av.audio.stream.AudioStream, collector: _Collector
) -> Iterator[av.AudioFrame]:
    """Every frame that decodes; damaged packets are noted and skipped, as players do."""
    import av

    deadline = time.monotonic() + DECODING_DEADLINE
    packets = iter(container.demux(stream))
    while True:
        if time.monotonic() > deadline:
            raise _unreadable()
        try:
            packet = next(packets, None)
        except av.FFmpegError:
            collector.damaged = True
            return
        if packet is None:
            return
        try:
            yield from packet.decode()
        except av.FFmpegError as error:
            collector.damaged = collector.damaged or not isinstance(error, EOFError)


class _Collector:
    """Gathers frames as mono blocks of one rate, within the limit."""

    def __init__(self, max_seconds: float) -> None:
        self.damaged = False
        self._max_seconds = max_seconds
        self._rate = 0
        self._total = 0
        self._blocks: list[FloatAudio] = []

    def add(self, frame: av.AudioFrame) -> None:
        _require_format(frame.sample_rate, frame.layout.nb_channels)
        self._rate = self._rate or frame.sample_rate
        block = _mono(frame.to_ndarray(), frame.layout.nb_channels, frame.format.is_planar)
        if frame.sample_rate != self._rate:
            import torch  # rarely needed, and the studio's own process does without it

            from inference.frontend.features import sinc_resample

            block = sinc_resample(torch.from_numpy(block), frame.sample_rate, self._rate).numpy()
        self._total += len(block)
        _require_seconds(self._total / self._rate, self._max_seconds)
        self._blocks.append(block)

    def clip(self) -> Clip:
        if not self._total:
            raise _unreadable() if self.damaged else RequestError("audio_empty", "The file holds no sound.")
        return Clip(np.concatenate(self._blocks), self._rate, self.damaged)


def _mono(samples: np.ndarray[Any, Any], channels: int, planar: bool) -> FloatAudio:
    """(channels, n) or interleaved (1, n * channels) in any sample type → (n,) float32."""
    by_channel = samples if planar else samples.reshape(-1, channels).T
    if samples.dtype.kind == "u":
        scaled = (by_channel.astype(np.float32) - 128.0) / 128.0
    elif samples.dtype.kind == "i":
        scaled = by_channel.astype(np.float32) / np.float32(2 ** (8 * samples.dtype.itemsize - 1))
    else:
        scaled = by_channel.astype(np.float32)
    mono: FloatAudio = scaled.mean(axis=0, dtype=np.float32)
    return mono


# -------------------------------------------------------------------------------------------- checks
def _require_format(rate: int, channels: int) -> None:
    if not MIN_RATE <= rate <= MAX_RATE:
        raise RequestError(
            "sample_rate_unsupported",
            f"The sample rate is {rate} Hz; {MIN_RATE} to {MAX_RATE} Hz are accepted.",
            rate=rate,
        )
    if not 1 <= channels <= MAX_CHANNELS:
        raise _unreadable()


def _require_seconds(seconds: float, limit: float) -> None:
    if seconds > limit:
        raise RequestError(
            "audio_too_long", f"The audio is longer than {limit:.0f} s; cut it before uploading.", limit=limit
        )


def _checked(clip: Clip) -> Clip:
    """Replace values that are no numbers by silence, and refuse a clip without a sample."""
    if not len(clip.samples):
        raise RequestError("audio_empty", "The file holds no sound.")
    if -_LARGEST_SAMPLE <= clip.samples.min() and clip.samples.max() <= _LARGEST_SAMPLE:  # false for NaN, too
        return clip
    repaired = np.nan_to_num(clip.samples, nan=0.0, posinf=0.0, neginf=0.0)
    return Clip(np.clip(repaired, -_LARGEST_SAMPLE, _LARGEST_SAMPLE), clip.sample_rate, damaged=True)

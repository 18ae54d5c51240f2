"""Sound files for tests, made on the spot: speech-like clips in every container and sample format."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

Audio = npt.NDArray[np.float32]

REAL_CLIPS = Path(__file__).resolve().parents[2] / "shared" / "reference" / "audio"


def speech(
    seconds: float, rate: int = 24000, seed: int = 0, pitch: float = 140.0, pause: float = 0.3
) -> Audio:
    """(n,) voiced syllables of 0.2 s, after every fifth a pause of `pause` s, peak 0.4, no noise."""
    rng = np.random.default_rng(seed)
    time = np.arange(int(seconds * rate)) / rate
    phase = 2 * np.pi * np.cumsum(pitch * (1 + 0.1 * np.sin(2 * np.pi * 0.7 * time))) / rate
    harmonics = [k for k in range(1, 20) if k * pitch < rate * 0.4]
    voice = sum(np.sin(k * phase + rng.uniform(0, 6)) / k for k in harmonics)
    cycle = 1.0 + pause
    position = time % cycle
    syllable = np.sin(np.pi * (position % 0.2) / 0.2) ** 0.5
    envelope = np.where(position < 1.0, syllable, 0.0)
    result = voice * envelope
    return (0.4 * result / np.abs(result).max()).astype(np.float32)


def noise(seconds: float, rate: int, level_db: float, seed: int = 0) -> Audio:
    """(n,) white noise of the given RMS."""
    samples = np.random.default_rng(seed).standard_normal(int(seconds * rate))
    return (samples * 10 ** (level_db / 20)).astype(np.float32)


def silence(seconds: float, rate: int) -> Audio:
    return np.zeros(int(seconds * rate), dtype=np.float32)


def wav_bytes(samples: Audio, rate: int, kind: str = "s16", extensible: bool = False) -> bytes:
    """WAV of (n,) or (n, channels) samples; kind is u8, s16, s24, s32, f32 or f64."""
    channels = 1 if samples.ndim == 1 else samples.shape[1]
    bits = int(kind[1:])
    block = channels * bits // 8
    tag = 3 if kind[0] == "f" else 1
    data = _pack(samples.reshape(-1).astype(np.float64), kind)
    fields = struct.pack("<HHIIHH", 0xFFFE if extensible else tag, channels, rate, rate * block, block, bits)
    if extensible:
        guid = bytes.fromhex("000000001000800000aa00389b71")
        fields += struct.pack("<HHIH", 22, bits, 0, tag) + guid
    chunks = b"fmt " + struct.pack("<I", len(fields)) + fields + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


def _pack(samples: npt.NDArray[np.float64], kind: str) -> bytes:
    if kind[0] == "f":
        return samples.astype(f"<f{int(kind[1:]) // 8}").tobytes()
    if kind == "u8":
        return np.clip(np.round(samples * 128 + 128), 0, 255).astype(np.uint8).tobytes()
    scale = 2.0 ** (int(kind[1:]) - 1)
    integers = np.clip(np.round(samples * scale), -scale, scale - 1)
    if kind == "s24":
        return integers.astype("<i4").view(np.uint8).reshape(-1, 4)[:, :3].tobytes()
    return integers.astype(f"<i{int(kind[1:]) // 8}").tobytes()


def av_bytes(
    samples: Audio, rate: int, container: str, codec: str, sample_format: str | None = None
) -> bytes:
    """Any container and codec that PyAV can write, from (n,) or (n, channels) samples."""
    import av

    columns = samples[:, None] if samples.ndim == 1 else samples
    layout = {1: "mono", 2: "stereo"}[columns.shape[1]]
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as output:
        stream = output.add_stream(codec, rate=rate, layout=layout)
        if sample_format:
            stream.format = sample_format
        packed = np.ascontiguousarray(columns.reshape(1, -1))
        frame = av.AudioFrame.from_ndarray(packed, format="flt", layout=layout)
        frame.sample_rate = rate
        output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    return buffer.getvalue()


def video_bytes(samples: Audio | None, rate: int, container: str = "mp4") -> bytes:
    """A film of a few grey pictures, with sound (AAC) or without."""
    import av

    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as output:
        pictures = output.add_stream("mpeg4", rate=10)
        pictures.width, pictures.height, pictures.pix_fmt = 64, 64, "yuv420p"
        sound = output.add_stream("aac", rate=rate, layout="mono") if samples is not None else None
        for number in range(10):
            picture = av.VideoFrame.from_ndarray(np.full((96, 64), 20 * number, np.uint8), format="yuv420p")
            output.mux(pictures.encode(picture))
        output.mux(pictures.encode(None))
        if sound is not None:
            frame = av.AudioFrame.from_ndarray(
                np.ascontiguousarray(samples[None]), format="flt", layout="mono"
            )
            frame.sample_rate = rate
            output.mux(sound.encode(frame))
            output.mux(sound.encode(None))
    return buffer.getvalue()

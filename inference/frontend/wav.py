"""Plain WAV files read with NumPy alone: exact to the bit, and there when no decoder library is installed."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from inference.types import FloatAudio

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_BLOCK_FRAMES = 1 << 18  # read at a time, so that a wide file needs no more memory than its mono version
_UNKNOWN_SIZE = 0x7FFFF000  # streams state 0 or a size from here up, as they do not know it


@dataclass(frozen=True)
class WavLayout:
    """Where the samples of a WAV file lie and how they are written."""

    sample_rate: int  # Hz
    channels: int
    bits: int  # per sample: 8, 16, 24, 32 or 64
    is_float: bool
    start: int  # byte offset of the first sample
    frames: int  # samples per channel that are really there
    truncated: bool  # fewer than the header promises

    @property
    def seconds(self) -> float:
        return self.frames / self.sample_rate


def read_wav_layout(file: BinaryIO) -> WavLayout | None:
    """Layout of a PCM or float WAV file, or None for anything else (compressed, another format, damaged)."""
    file.seek(0, 2)
    end = file.tell()
    file.seek(0)
    header = file.read(12)
    if len(header) < 12 or header[:4] != b"RIFF" or header[8:] != b"WAVE":
        return None
    position = 12
    description = b""
    while True:
        file.seek(position)
        chunk = file.read(8)
        if len(chunk) < 8:
            return None
        name, size = chunk[:4], struct.unpack("<I", chunk[4:])[0]
        if name == b"data":
            return _layout(description, position + 8, size, end)
        if name == b"fmt ":
            description = file.read(min(size, 64))
        position += 8 + size + size % 2


def _layout(description: bytes, start: int, size: int, end: int) -> WavLayout | None:
    if len(description) < 16:
        return None
    tag, channels, rate, _, block, bits = struct.unpack("<HHIIHH", description[:16])
    if tag == _EXTENSIBLE and len(description) >= 26:
        tag = struct.unpack("<H", description[24:26])[0]
    supported = (tag == _PCM and bits in (8, 16, 24, 32)) or (tag == _FLOAT and bits in (32, 64))
    if not supported or rate == 0 or channels == 0 or block != channels * bits // 8:
        return None
    streamed = size == 0 or size >= _UNKNOWN_SIZE
    there = end - start if streamed else min(size, end - start)
    truncated = not streamed and size > end - start
    return WavLayout(rate, channels, bits, tag == _FLOAT, start, there // block, truncated)


def read_wav_mono(file: BinaryIO, layout: WavLayout) -> FloatAudio:
    """Mean over channels, (frames,) float32; integers are scaled so that full scale is 1."""
    file.seek(layout.start)
    block = layout.channels * layout.bits // 8
    mono = np.empty(layout.frames, dtype=np.float32)
    for start in range(0, layout.frames, _BLOCK_FRAMES):
        frames = min(_BLOCK_FRAMES, layout.frames - start)
        samples = _to_float(file.read(frames * block), layout).reshape(frames, layout.channels)
        mono[start : start + frames] = samples.mean(axis=1, dtype=np.float32)
    return mono


def _to_float(raw: bytes, layout: WavLayout) -> FloatAudio:
    scaled: FloatAudio
    if layout.is_float:
        scaled = np.frombuffer(raw, dtype=f"<f{layout.bits // 8}").astype(np.float32)
    elif layout.bits == 8:
        scaled = (np.frombuffer(raw, dtype=np.uint8).astype(np.float32) - 128.0) / 128.0
    elif layout.bits == 24:
        scaled = _widen_24_bit(raw).astype(np.float32) / np.float32(2**31)
    else:
        integers = np.frombuffer(raw, dtype=f"<i{layout.bits // 8}")
        scaled = integers.astype(np.float32) / np.float32(2 ** (layout.bits - 1))
    return scaled


def _widen_24_bit(raw: bytes) -> npt.NDArray[np.int32]:
    """Three-byte samples as int32 with the low byte zero."""
    wide = np.zeros((len(raw) // 3, 4), dtype=np.uint8)
    wide[:, 1:] = np.frombuffer(raw, dtype=np.uint8).reshape(-1, 3)
    return wide.reshape(-1).view("<i4")

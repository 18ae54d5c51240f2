"""One track of a subtitle file's sound: each line begins at its time, or when the one before has ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from inference.frontend.audio import decode_audio
from inference.types import Int16Audio

LONGEST_SECONDS = 4 * 3600.0


@dataclass(frozen=True)
class Line:
    """A spoken subtitle: its sound, its text and when it should begin (seconds)."""

    path: Path
    text: str
    start: float


@dataclass(frozen=True)
class Track:
    """(n,) int16 samples, and subtitles with the times at which the lines are really heard."""

    pcm: Int16Audio
    sample_rate: int
    subtitles: str


def make_track(lines: Sequence[Line]) -> Track | None:
    """The track of all lines; None without any, or when it would be longer than four hours."""
    ordered = sorted(lines, key=lambda line: line.start)
    if not ordered or ordered[-1].start > LONGEST_SECONDS:
        return None
    pieces: list[Int16Audio] = []
    blocks: list[str] = []
    length = rate = 0
    for number, line in enumerate(ordered, 1):
        clip = decode_audio(line.path)
        rate = rate or clip.sample_rate
        sound = (np.clip(clip.samples, -1.0, 1.0) * 32767).round().astype(np.int16)
        begin = max(length, round(line.start * rate))
        pieces += [np.zeros(begin - length, np.int16), sound]
        length = begin + len(sound)
        if length > LONGEST_SECONDS * rate:
            return None
        blocks.append(f"{number}\n{_time(begin / rate)} --> {_time(length / rate)}\n{line.text}\n")
    return Track(np.concatenate(pieces), rate, "\n".join(blocks))


def _time(seconds: float) -> str:
    milliseconds = round(seconds * 1000)
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{rest // 1000:02d},{rest % 1000:03d}"

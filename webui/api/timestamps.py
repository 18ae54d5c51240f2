"""When each part of the text is heard: segments exactly, words as estimates, and subtitles of both kinds.

A segment is what was made in one go, about a sentence; its times are counted in samples. Inside of it nothing is known,
so words are spread by their length and marked `estimated`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from inference.types import AudioChunk

_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\s\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")
_SOUNDLESS = re.compile(r"[\W_]+")


@dataclass(frozen=True)
class Span:
    """A piece of text and when it is heard, in seconds from the beginning."""

    text: str
    start: float
    end: float
    estimated: bool = False

    def as_json(self) -> dict[str, str | float | bool]:
        """For answers; times in milliseconds' precision."""
        shown: dict[str, str | float | bool] = {
            "text": self.text,
            "start": round(self.start, 3),
            "end": round(self.end, 3),
        }
        if self.estimated:
            shown["estimated"] = True
        return shown


@dataclass
class Timeline:
    """Takes chunks in their order and tells the segments. `stretch`: factor by which the sound is sped up later."""

    sample_rate: int
    stretch: float = 1.0
    segments: list[Span] = field(default_factory=list)
    _samples: int = 0
    _start: int = 0
    _open: tuple[int, str] | None = None

    def add(self, chunk: AudioChunk) -> Span | None:
        """The segment that ended before this chunk, if one did."""
        ended = None
        if self._open is not None and self._open[0] != chunk.segment:
            ended = self.close()
        if len(chunk.pcm):
            self._open = self._open or (chunk.segment, chunk.text)
        self._samples += len(chunk.pcm)
        return ended

    def close(self) -> Span | None:
        """End the segment that is open; to be called once more after the last chunk."""
        if self._open is None:
            return None
        span = Span(self._open[1], self._seconds(self._start), self._seconds(self._samples))
        self._open, self._start = None, self._samples
        self.segments.append(span)
        return span

    @property
    def duration(self) -> float:
        """Seconds so far."""
        return self._seconds(self._samples)

    def _seconds(self, samples: int) -> float:
        return samples / self.sample_rate / self.stretch


def estimated_words(segment: Span) -> list[Span]:
    """The words (for Chinese, Japanese and Korean the characters) of a segment, spread over it by their length."""
    words = _WORD.findall(segment.text)
    weights = [_weight(word) for word in words]
    total = sum(weights)
    if not total:
        return []
    spans, before, length = [], 0, segment.end - segment.start
    for word, weight in zip(words, weights):
        start = segment.start + length * before / total
        before += weight
        spans.append(Span(word, start, segment.start + length * before / total, estimated=True))
    return spans


def subtitles(segments: list[Span], kind: str) -> str:
    """The segments as "srt" or "vtt"."""
    vtt = kind == "vtt"
    lines = ["WEBVTT\n"] if vtt else []
    for number, segment in enumerate(segments, 1):
        clock = f"{_clock(segment.start, vtt)} --> {_clock(segment.end, vtt)}"
        # A line break would end the entry, and an arrow begin another.
        text = " ".join(segment.text.split()).replace("-->", "→")
        lines.append(f"{number}\n{clock}\n{text}\n")
    return "\n".join(lines)


def _weight(word: str) -> int:
    return max(1, len(_SOUNDLESS.sub("", word))) if _SOUNDLESS.sub("", word) else 0


def _clock(seconds: float, vtt: bool) -> str:
    milliseconds = round(seconds * 1000)
    hours, rest = divmod(milliseconds, 3_600_000)
    minutes, rest = divmod(rest, 60_000)
    whole, thousandths = divmod(rest, 1000)
    return f"{hours:02d}:{minutes:02d}:{whole:02d}{'.' if vtt else ','}{thousandths:03d}"

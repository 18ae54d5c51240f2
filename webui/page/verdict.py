"""What the page says about a reference clip: seconds, level, noise and distortion, in words."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from inference.types import ReferenceReport
from webui.page.texts import WARNINGS, say

_QUIET_ROOM_DB = 25.0  # speech so far above the noise is heard as clean
_WHOLE_SECONDS = 1.0  # less than this cut away is no cut to speak of
_GRAVE = {"short", "clipped", "noisy", "damaged"}
_HARMLESS = {"long_cut", "transcript_dropped", "transcript_doubtful", "long"}

Chip = tuple[str, str]  # kind (good, fair, bad, plain), words


def is_cut(report: ReferenceReport) -> bool:
    """A noticeable part of the clip is not used."""
    return report.duration - (report.used_end - report.used_start) > _WHOLE_SECONDS


def verdict_html(report: ReferenceReport, language: str, notes: Iterable[str] = ()) -> str:
    """One line of findings and, under it, what to know or do; `notes` are finished sentences."""
    warnings = set(report.warnings)
    quality = say(f"quality_{_quality(warnings)}", language)
    seconds = say("usable", language).format(seconds=report.used_end - report.used_start)
    chips = "".join(_chip(kind, words) for kind, words in _chips(report, warnings, language))
    advice = [_sentence(WARNINGS[code][language], language) for code in report.warnings if code in WARNINGS]
    if is_cut(report):
        advice.append(_part(report, language))
    lines = "".join(f"<li>{escape(line)}</li>" for line in [*advice, *notes])
    return (
        f'<div class="verdict"><p class="findings"><strong class="{_quality(warnings)}">{escape(quality)}</strong>'
        f'<span class="seconds">{escape(seconds)}</span>{chips}</p>'
        + (f"<ul>{lines}</ul>" if lines else "")
        + "</div>"
    )


def sentence_html(words: str, kind: str = "plain") -> str:
    """A single sentence in the place of a verdict; kind "bad" for one that says what is wrong."""
    return f'<div class="verdict"><p class="{kind}">{escape(words)}</p></div>'


def _part(report: ReferenceReport, language: str) -> str:
    return say("used_part", language).format(
        start=report.used_start, end=report.used_end, duration=report.duration
    )


def _quality(warnings: set[str]) -> str:
    if warnings & _GRAVE:
        return "poor"
    return "fair" if warnings - _HARMLESS else "good"


def _chips(report: ReferenceReport, warnings: set[str], language: str) -> list[Chip]:
    distance = report.level_db - report.noise_db
    level = ("fair", "level_quiet") if "quiet" in warnings else ("good", "level_good")
    if "noisy" in warnings:
        noise = ("bad", "noise_bad")
    else:
        noise = ("good", "noise_good") if distance >= _QUIET_ROOM_DB else ("fair", "noise_some")
    clipping = ("bad", "clipping_bad") if "clipped" in warnings else ("good", "clipping_good")
    found = [level, noise, clipping]
    if "low_rate" in warnings:
        found.append(("fair", "rate_low"))
    return [(kind, say(key, language)) for kind, key in found]


def _chip(kind: str, words: str) -> str:
    return f'<span class="chip {kind}">{escape(words)}</span>'


def _sentence(words: str, language: str) -> str:
    return words + "。" if language == "zh" else words[:1].upper() + words[1:] + "."

"""Whether a transcript can be what is said in a clip, by its length alone."""

from __future__ import annotations

import re

from inference.frontend.normalise import HAN, HANGUL, KANA
from inference.frontend.text import normalise_prompt
from inference.types import ReferenceReport

# Syllables a second. People speak 3 to 7, pauses within the clip and all; beyond these bounds nobody does.
_SLOWEST, _FASTEST = 1.2, 10.0
_VOWELS = re.compile(r"[aeiouyà-öø-ÿ]+", re.IGNORECASE)


def doubtful_transcript(transcript: str, seconds: float) -> bool:
    """True when `seconds` of speech are far too many or too few for the words. False for an empty transcript."""
    text = normalise_prompt(transcript)
    if not text or seconds <= 0:
        return False
    return not _SLOWEST <= _syllables(text) / seconds <= _FASTEST


def doubtful_beside(report: ReferenceReport, transcript: str) -> bool:
    """`doubtful_transcript` for what is used of a clip; False where the transcript is not."""
    seconds = report.used_end - report.used_start
    return "transcript_dropped" not in report.warnings and doubtful_transcript(transcript, seconds)


def _syllables(text: str) -> int:
    """About: one a character of Chinese, Japanese and Korean, one a group of vowels elsewhere."""
    return sum(len(script.findall(text)) for script in (HAN, KANA, HANGUL, _VOWELS))

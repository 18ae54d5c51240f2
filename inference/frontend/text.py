"""A request's text to the segments that are spoken one after another (SPEC 2.6)."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache

from inference.frontend.clean import TAG, clean
from inference.frontend.lexicon import Lexicon
from inference.frontend.normalise import LANGUAGES, closed, language_of, speakable, spoken
from inference.frontend.original_text import original_prompt, original_segments
from inference.frontend.segment import Segmenter
from inference.frontend.tokenizer import TextTokenizer
from inference.types import MAX_TEXT_CHARACTERS, RequestError

MAX_SEGMENT_TOKENS = 80
MIN_SEGMENT_TOKENS = 10


@dataclass(frozen=True)
class Segment:
    """One independently spoken part of a text."""

    text: str  # as given to the tokenizer
    source_span: tuple[int, int]  # where it comes from in the original; spans touch and cover all of it
    language: str  # "zh", "en", "ja" or "ko"


def prepare_text(
    text: str,
    tokenizer: TextTokenizer,
    *,
    language: str = "auto",
    exact: bool = False,
    max_tokens: int = MAX_SEGMENT_TOKENS,
    lexicon: Lexicon | None = None,
    _plain: bool = False,
) -> list[Segment]:
    """Normalise and part a text; never empty.

    No segment has more than `max_tokens` tokens (at least 10), and no word of the text is lost. `lexicon` has the
    user's readings. `exact` does what the original does: no lexicon, a segment can be longer and spans are estimates;
    `_plain` is its variant without wetext.

    Raises RequestError: empty_text, text_too_long, nothing_to_speak, unknown_language.
    """
    check_text(text, language, exact)
    if exact:
        segments = _exact(text, tokenizer, language, _plain)
    else:
        segmenter = Segmenter(
            lambda part: len(tokenizer.encode(part)), max(MIN_SEGMENT_TOKENS, max_tokens), language
        )
        cleaned = clean(text) if lexicon is None else lexicon.apply(clean(text))
        found = segmenter.segments(cleaned, len(text))
        segments = [Segment(part.text, part.span, part.language) for part in found]
    if not segments:
        raise _nothing_to_speak()
    return segments


@lru_cache(maxsize=1024)
def normalise_prompt(text: str, *, language: str = "auto", exact: bool = False, _plain: bool = False) -> str:
    """What a reference clip says, as given to the tokenizer; "" if it holds nothing to speak. Never parted.

    A full stop is added where there is none: the new text is a new sentence.
    """
    if exact:
        return original_prompt(text, wetext=not _plain)
    cleaned = re.sub(r"\s*\n\s*", " ", clean(text).text.strip())
    if not speakable(re.sub(TAG, "", cleaned)):
        return ""
    chosen = language_of(cleaned) if language not in LANGUAGES or language == "auto" else language
    return closed(spoken(cleaned, chosen), chosen)


def check_text(text: str, language: str = "auto", exact: bool = False) -> None:
    """What can be said against a text without a model.

    Raises RequestError: empty_text (also for blanks and invisible characters), text_too_long, nothing_to_speak,
    unknown_language. `exact` leaves it to the original's rules whether there is anything to speak.
    """
    if language not in LANGUAGES:
        names = ", ".join(LANGUAGES)
        raise RequestError(
            "unknown_language", f"Unknown language {language!r}; choose one of {names}.", languages=names
        )
    if not isinstance(text, str) or all(
        character.isspace() or unicodedata.category(character)[0] == "C" for character in text
    ):
        raise RequestError("empty_text", "Write the text that should be spoken.")
    if len(text) > MAX_TEXT_CHARACTERS:
        raise RequestError(
            "text_too_long",
            f"The text has {len(text)} characters; {MAX_TEXT_CHARACTERS} is the limit. Send it in parts.",
            count=len(text),
            limit=MAX_TEXT_CHARACTERS,
        )
    if not exact and not speakable(clean(text).text):
        raise _nothing_to_speak()


def _nothing_to_speak() -> RequestError:
    return RequestError(
        "nothing_to_speak", "There is nothing to speak in the text: it has no letters or digits."
    )


def _exact(text: str, tokenizer: TextTokenizer, language: str, plain: bool) -> list[Segment]:
    parts = original_segments(text, tokenizer, wetext=not plain)
    total, done, segments = sum(len(part) for part in parts), 0, []
    for part in parts:
        start, done = len(text) * done // total, done + len(part)
        chosen = language_of(part) if language == "auto" else language
        segments.append(Segment(part, (start, len(text) * done // total), chosen))
    return segments

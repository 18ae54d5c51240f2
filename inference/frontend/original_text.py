"""Normalisation and splitting to the letter of the original, quirks included (SPEC 2.6). For parity, not for people."""

from __future__ import annotations

import functools
import logging
import re
import unicodedata
from collections.abc import Callable

from inference.frontend.number_words import english_cardinal
from inference.frontend.tokenizer import TextTokenizer

logger = logging.getLogger(__name__)

MOST, FEWEST, SHORTEST_LAST = 80, 60, 20  # of the original's segments
_HAN = re.compile(r"[\u4e00-\u9fff]")
_STOPS = {"zh": "。？！；：、.?!;", "en": ".?!;:"}
_NEW_SPELLING = str.maketrans({"²": "平方", "³": "立方"})
_NEW_STOPS = [(".", "。"), (" - ", "，")]
_DROPPED = str.maketrans("", "", "（）【】`")


def original_segments(text: str, tokenizer: TextTokenizer, wetext: bool = True) -> list[str]:
    """The original's segments, [] when there is nothing to speak. `wetext` False: as without that library."""
    if _untouched(text):
        return [text]
    language, normal = _normalised(text, wetext)

    def size(part: str) -> int:
        return len(part) if language == "zh" else len(tokenizer.encode(part))

    return [part for part in _join(_scan(normal, language), size) if not _silent(part)]


def original_prompt(text: str, wetext: bool = True) -> str:
    """The original's prompt text: normalised, not split."""
    return text if _untouched(text) else _normalised(text, wetext)[1]


def _untouched(text: str) -> bool:
    return not text.strip() or ("<|" in text and "|>" in text)


def _normalised(text: str, wetext: bool) -> tuple[str, str]:
    """("zh" or "en", normalised text)."""
    text = text.strip()
    language = "zh" if _HAN.search(text) else "en"
    if wetext:
        text = _apply_wetext(text, language)
    if language == "en":
        return language, _spell_numbers(text)
    text = _drop_spaces(text.replace("\n", "")).translate(_NEW_SPELLING)
    for old, new in _NEW_STOPS:
        text = text.replace(old, new)
    text = text.translate(_DROPPED).replace("——", " ")
    return language, re.sub("[，,、]+$", "。", text)


def _apply_wetext(text: str, language: str) -> str:
    normalise = _wetext(language)
    if normalise is None or not re.search(r"\d", text):
        return text
    # The original's wetext leaves a space after English; newer ones strip it.
    return normalise(text).rstrip(" ") + " " if language == "en" else normalise(text)


@functools.lru_cache(maxsize=2)
def _wetext(language: str) -> Callable[[str], str] | None:
    try:
        from wetext import Normalizer
    except ImportError:
        logger.warning("wetext is not installed: exact mode reads text as the original does without it.")
        return None
    normalise: Callable[[str], str] = Normalizer(lang=language, operator="tn", remove_erhua=False).normalize
    return normalise


def _drop_spaces(text: str) -> str:
    """Keep a space only between two ASCII characters; the first one's left neighbour is the last character."""

    def ascii_at(place: int) -> bool:
        return place < len(text) and text[place].isascii() and text[place] != " "

    return "".join(
        character
        for place, character in enumerate(text)
        if character != " " or (ascii_at(place + 1) and ascii_at(place - 1))
    )


def _spell_numbers(text: str) -> str:
    parts, run = [], ""
    for character in text + "\0":
        if character.isdigit():
            run += character
            continue
        if run:
            parts.append(_number(run))
            run = ""
        parts.append(character)
    return "".join(parts)[:-1]


def _number(run: str) -> str:
    digits = "".join(str(unicodedata.digit(character)) for character in run)
    return english_cardinal(int(digits), hyphen="-", comma=",")


def _scan(text: str, language: str) -> list[str]:
    """Pieces that end with a stop character; of consecutive stops only the first stays."""
    stops = _STOPS[language]
    if text[-1:] not in stops:
        text += "。" if language == "zh" else "."
    pieces: list[str] = []
    start = 0
    for place, character in enumerate(text):
        if character not in stops:
            continue
        if place > start:
            pieces.append(text[start : place + 1])
        start = place + 1
        if pieces and text[start : start + 1] in ('"', "”"):
            pieces[-1] += text[start]
            start += 1
    return pieces


def _join(pieces: list[str], size: Callable[[str], int]) -> list[str]:
    segments: list[str] = []
    current = ""
    for piece in pieces:
        if size(current + piece) > MOST and size(current) > FEWEST:
            segments.append(current)
            current = ""
        current += piece
    if not current:
        return segments
    if segments and size(current) < SHORTEST_LAST:
        segments[-1] += current
    else:
        segments.append(current)
    return segments


def _silent(text: str) -> bool:
    return all(unicodedata.category(character)[0] in "PS" for character in text)

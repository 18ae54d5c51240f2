"""The user's own readings of words: a text file with lines `word = how to say it`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from inference.frontend.clean import clean
from inference.frontend.traced import Traced
from inference.types import RequestError

DEFAULT = Path(__file__).resolve().parents[2] / "lexicon.txt"
_LETTER = r"[A-Za-z0-9À-ɏ]"  # what a word of these may not touch; Chinese words touch each other


class Lexicon:
    """Replaces whole words in a text before its numbers and signs are read.

    A word written without capitals is found in any case, one with capitals only as it is written. Of words that begin
    at one place the longest wins; what was put in is not searched again.
    """

    def __init__(self, entries: Mapping[str, str]) -> None:
        """`entries`: word → how to say it, both not empty."""
        cleaned = {clean(word).text.strip(): clean(said).text.strip() for word, said in entries.items()}
        self._exact = {word: said for word, said in cleaned.items() if word != word.lower()}
        self._any_case = {word: said for word, said in cleaned.items() if word == word.lower()}
        words = sorted(filter(None, cleaned), key=len, reverse=True)
        pattern = "|".join(_whole(word, any_case=word in self._any_case) for word in words)
        self._pattern = re.compile(pattern) if pattern else None

    def apply(self, text: Traced) -> Traced:
        """`text` (already cleaned) with every known word as it is said."""
        return text if self._pattern is None else text.sub(self._pattern, self._said)

    def _said(self, match: re.Match[str]) -> str:
        word = match.group()
        return self._exact[word] if word in self._exact else self._any_case[word.lower()]


def read_lexicon(path: Path) -> Lexicon:
    """Read a UTF-8 file of lines `word = how to say it`; blank lines and those that start with # are skipped.

    Raises RequestError: lexicon_unreadable, lexicon_bad_line (names the file and the line's number).
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise RequestError(
            "lexicon_unreadable", f"The lexicon {path} cannot be read ({reason}).", file=str(path)
        ) from error
    entries: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        word, _, said = (part.strip() for part in line.partition("="))
        if not _usable(word) or not _usable(said):
            raise RequestError(
                "lexicon_bad_line",
                f"Line {number} of {path} is not of the form 'word = how to say it': {line.strip()[:60]!r}.",
                file=str(path),
                line=number,
            )
        entries[word] = said
    return Lexicon(entries)


def find_lexicon(explicit: Path | None) -> Path | None:
    """The lexicon to use: the named one, else `lexicon.txt` beside the program if there is one.

    Raises as `read_lexicon`, so that a mistake shows before a model is loaded.
    """
    path = explicit or (DEFAULT if DEFAULT.is_file() else None)
    if path is not None:
        read_lexicon(path)
    return path


def _usable(text: str) -> bool:
    return any(character.isalnum() for character in clean(text).text)


def _whole(word: str, *, any_case: bool) -> str:
    body = re.escape(word)
    before = rf"(?<!{_LETTER})" if re.match(_LETTER, word) else ""
    after = rf"(?!{_LETTER})" if re.search(rf"{_LETTER}\Z", word) else ""
    return f"{before}(?i:{body}){after}" if any_case else f"{before}{body}{after}"

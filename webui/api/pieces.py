"""Cuts text that is still being written into pieces that can be spoken already."""

from __future__ import annotations

import re

# A full stop ends a sentence only before a space: "3.14" and "example.org" go on. CJK marks end one by themselves.
_END = re.compile(r"[。！？；…\n]+[”’」』）)\"']*|[.!?;]+[\"')\]]*(?=\s)")
_CLAUSE = re.compile(r"[，、：]|[,:](?=\s)")
_ENDED = re.compile(r"[。！？；…\n.!?;][”’」』）)\"'\]]*\s*$")
_ABBREVIATION = re.compile(r"(?:^|[\s(])(?:[A-Z]|Mr|Mrs|Ms|Dr|Prof|St|No|vs|etc|e\.g|i\.e|approx)\.$")
SHORTEST = 6  # letters; CJK characters count twice
CLAUSE = 14  # of a piece that may end at a comma, as its listener hears nothing
HURRIED = 60  # after which such a piece ends between two words
LONGEST = 240


class PieceCutter:
    """Takes text as it comes; `push`, `cut` and `flush` give what can be spoken.

    `hungry` tells that the listener has nothing to hear: then the next piece may be a clause, or the beginning of a
    sentence that is long in coming, so that sound comes while the sentence is still being written.
    """

    def __init__(self) -> None:
        self._text = ""

    @property
    def rest(self) -> str:
        """What waits for its end."""
        return self._text

    @property
    def looks_ended(self) -> bool:
        """Whether the rest ends like a sentence, so that a pause of the writer may be taken for its end."""
        return bool(_ENDED.search(self._text)) and not _ABBREVIATION.search(self._text.rstrip())

    def push(self, text: str, hungry: bool = False) -> list[str]:
        """Add text; the pieces that it completes."""
        self._text += text
        return self.cut(hungry)

    def cut(self, hungry: bool = False) -> list[str]:
        """The pieces that are complete; of a hungry listener the first one may be less than a sentence."""
        pieces: list[str] = []
        while (end := self._next_cut(hungry and not pieces)) is not None:
            pieces += self._take(end)
        return pieces

    def flush(self) -> list[str]:
        """The rest, whether complete or not."""
        return self._take(len(self._text))

    def _take(self, cut: int) -> list[str]:
        piece, self._text = self._text[:cut].strip(), self._text[cut:].lstrip(" \t")
        return [piece] if piece else []

    def _next_cut(self, hungry: bool) -> int | None:
        for match in _END.finditer(self._text):
            piece = self._text[: match.end()]
            if _weight(piece) >= SHORTEST and not _ABBREVIATION.search(piece):
                return match.end()
        if hungry:
            for match in _CLAUSE.finditer(self._text):
                if _weight(self._text[: match.end()]) >= CLAUSE:
                    return match.end()
        longest = HURRIED if hungry else LONGEST
        return self._forced_cut(longest) if _weight(self._text) > longest else None

    def _forced_cut(self, longest: int) -> int:
        """Of a text without any stop: at the last clause or space that fits, else anywhere."""
        end = len(self._text)
        while _weight(self._text[:end]) > longest:
            end -= 1
        clauses = [match.end() for match in _CLAUSE.finditer(self._text[:end])]
        space = self._text.rfind(" ", 0, end)
        return clauses[-1] if clauses else (space if space > 0 else end)


def _weight(text: str) -> int:
    return sum(2 if ord(char) > 0x2E7F else 1 for char in text if not char.isspace())

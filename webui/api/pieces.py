"""Cuts text that is still being written into pieces that can be spoken already."""

from __future__ import annotations

import re

# A full stop ends a sentence only before a space: "3.14" and "example.org" go on. CJK marks end one by themselves.
_END = re.compile(r"[。！？；…\n]+[”’」』）)\"']*|[.!?;]+[\"')\]]*(?=\s)")
_CLAUSE = re.compile(r"[，、：]|[,:](?=\s)")
_ENDED = re.compile(r"[。！？；…\n.!?;][”’」』）)\"'\]]*\s*$")
_ABBREVIATION = re.compile(r"(?:^|[\s(])(?:[A-Z]|Mr|Mrs|Ms|Dr|Prof|St|No|vs|etc|e\.g|i\.e|approx)\.$")
SHORTEST = 6  # letters; CJK characters count twice
FIRST_CLAUSE = 14  # of the first piece, which may end at a comma so that it is heard soon
LONGEST = 240


class PieceCutter:
    """Takes text as it comes; `push` and `flush` give what can be spoken."""

    def __init__(self) -> None:
        self._text = ""
        self._first = True

    @property
    def rest(self) -> str:
        """What waits for its end."""
        return self._text

    @property
    def looks_ended(self) -> bool:
        """Whether the rest ends like a sentence, so that a pause of the writer may be taken for its end."""
        return bool(_ENDED.search(self._text)) and not _ABBREVIATION.search(self._text.rstrip())

    def push(self, text: str) -> list[str]:
        """Add text; the pieces that it completes."""
        self._text += text
        pieces = []
        while (cut := self._next_cut()) is not None:
            pieces += self._take(cut)
        return pieces

    def flush(self) -> list[str]:
        """The rest, whether complete or not."""
        pieces = self._take(len(self._text))
        self._first = True
        return pieces

    def _take(self, cut: int) -> list[str]:
        piece, self._text = self._text[:cut].strip(), self._text[cut:].lstrip(" \t")
        if piece:
            self._first = False
        return [piece] if piece else []

    def _next_cut(self) -> int | None:
        for match in _END.finditer(self._text):
            piece = self._text[: match.end()]
            if _weight(piece) >= SHORTEST and not _ABBREVIATION.search(piece):
                return match.end()
        if self._first:
            for match in _CLAUSE.finditer(self._text):
                if _weight(self._text[: match.end()]) >= FIRST_CLAUSE:
                    return match.end()
        return self._forced_cut() if _weight(self._text) > LONGEST else None

    def _forced_cut(self) -> int:
        """Of a text without any stop: at the last clause or space that fits, else anywhere."""
        end = len(self._text)
        while _weight(self._text[:end]) > LONGEST:
            end -= 1
        clauses = [match.end() for match in _CLAUSE.finditer(self._text[:end])]
        space = self._text.rfind(" ", 0, end)
        return clauses[-1] if clauses else (space if space > 0 else end)


def _weight(text: str) -> int:
    return sum(2 if ord(char) > 0x2E7F else 1 for char in text if not char.isspace())

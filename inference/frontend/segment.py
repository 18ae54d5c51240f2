"""Parts a cleaned text into pieces that fit the model, at the best places, losing nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from inference.frontend.clean import TAG
from inference.frontend.normalise import STOPS, closed, language_of, speakable, spoken
from inference.frontend.traced import Traced

_ABBREVIATION = r"(?<!\bDr)(?<!\bMr)(?<!\bMrs)(?<!\bMs)(?<!\bProf)(?<!\bSt)(?<!\bvs)(?<!\b[A-Za-z])"
# "No. 5" and "Jan. 5" go on, "No. I stay." does not.
_BEFORE_NUMBER = r"(?!(?<=\bNo\.)\s?\d)(?!(?<=\b(?:Nos|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\.)\s?\d)"
_SENTENCE_END = re.compile(
    rf"\n+|(?:[。？！；!;]|[?](?!\w+=)|{_ABBREVIATION}\.{_BEFORE_NUMBER}(?!(?<=\bSept\.)\s?\d)(?![\w@/]))(?:[。？！；?!;.…\"')]|(?:</(?:strong|laughter)>))*"
)
_CLAUSE_END = re.compile(r"[，、：]|[,:](?!\d)|—+")
_ATOM = re.compile(
    rf"{TAG}|[\w.+-]+@[\w.-]+|https?://[\w./?=&#%:~+-]+|[A-Za-z0-9][A-Za-z0-9.,:/'%+_-]*[A-Za-z0-9%]", re.A
)
_MERGE_UNDER = 20  # tokens; shorter last segments are evened out with the one before


@dataclass(frozen=True)
class Piece:
    """A part of the text and how it is spoken."""

    source: Traced
    speech: str
    language: str


@dataclass(frozen=True)
class Spoken:
    """A finished segment: speech text, its place (start, end) in the original, language."""

    text: str
    span: tuple[int, int]
    language: str


class Segmenter:
    """Parts one text; `count` gives a text's length in tokens, `cap` the most a segment may have."""

    def __init__(self, count: Callable[[str], int], cap: int, language: str) -> None:
        self._count = count
        self._cap = cap
        self._hint = language

    def segments(self, cleaned: Traced, length: int) -> list[Spoken]:
        """Segments in order; spans touch and together cover the original of `length` characters."""
        default = language_of(cleaned.text)
        pieces = [part for piece in self._sentences(cleaned, default) for part in self._fitting(piece)]
        groups = self._packed(pieces)
        starts = [group[0].source.origins[0] for group in groups] + [length]
        starts[0] = 0
        return [
            Spoken(
                closed(_joined(group), group[-1].language),
                (starts[number], starts[number + 1]),
                group[0].language,
            )
            for number, group in enumerate(groups)
        ]

    # -------------------------------------------------------------------------------------------- pieces
    def _sentences(self, cleaned: Traced, default: str) -> Iterator[Piece]:
        start = 0
        ends = [match.end() for match in _SENTENCE_END.finditer(cleaned.text)]
        for end in [*ends, len(cleaned.text)]:
            piece = self._piece(cleaned.cut(start, end), default)
            if speakable(piece.speech):
                yield piece
            start = end

    def _piece(self, source: Traced, default: str) -> Piece:
        bare = source.strip()
        language = language_of(bare.text, default) if self._hint == "auto" else self._hint
        speech = spoken(bare.text.replace("\n", " "), language)
        if source.text.endswith("\n") and speech and speech[-1] not in STOPS + ",，、:：…\"'":
            speech += "，" if language in ("zh", "ja") else ","  # a line end is a pause
        return Piece(bare, speech, language)

    def _fits(self, speech: str, language: str) -> bool:
        return self._count(closed(speech, language)) <= self._cap

    def _fitting(self, piece: Piece) -> list[Piece]:
        if self._fits(piece.speech, piece.language):
            return [piece]
        cut = _best_cut(piece.source.text)
        if cut is None:
            return self._hard_cut(piece)
        halves = [
            self._piece(piece.source.cut(start, end), piece.language)
            for start, end in ((0, cut), (cut, len(piece.source.text)))
        ]
        return [part for half in halves if speakable(half.speech) for part in self._fitting(half)]

    def _hard_cut(self, piece: Piece) -> list[Piece]:
        """One number or word whose speech is too long: the speech is cut, its source shared out."""
        speech = piece.speech
        if len(speech) < 2:
            return [piece]
        middle = len(speech) // 2
        blanks = [place for place in range(1, len(speech) - 1) if speech[place] == " "]
        cut = min(blanks, key=lambda place: abs(place - middle)) if blanks else middle
        share = min(len(piece.source.text) - 1, len(piece.source.text) * cut // len(speech))
        halves = (
            Piece(piece.source.cut(0, max(1, share)), speech[:cut].strip(), piece.language),
            Piece(
                piece.source.cut(max(0, share), len(piece.source.text)), speech[cut:].strip(), piece.language
            ),
        )
        whole = [half for half in halves if speakable(half.speech)]
        return [
            part
            for half in whole
            for part in ([half] if self._fits(half.speech, half.language) else self._hard_cut(half))
        ]

    # ------------------------------------------------------------------------------------------- packing
    def _packed(self, pieces: list[Piece]) -> list[list[Piece]]:
        groups: list[list[Piece]] = []
        for piece in pieces:
            if groups and self._group_fits([*groups[-1], piece]):
                groups[-1].append(piece)
            else:
                groups.append([piece])
        while len(groups) > 1 and len(groups[-2]) > 1 and self._length(groups[-1]) < _MERGE_UNDER:
            moved = [groups[-2][-1], *groups[-1]]
            if not self._group_fits(moved) or self._length(moved) > self._length(groups[-2][:-1]):
                break
            groups[-2:] = [groups[-2][:-1], moved]
        return groups

    def _length(self, group: list[Piece]) -> int:
        return self._count(_joined(group))

    def _group_fits(self, group: list[Piece]) -> bool:
        return self._fits(_joined(group), group[-1].language)


def _joined(group: list[Piece]) -> str:
    text = group[0].speech
    for piece in group[1:]:
        blank = text[-1:].isascii() and (piece.speech[:1].isascii() or piece.language == "ko")
        text += (" " if blank else "") + piece.speech
    return text


def _best_cut(text: str) -> int | None:
    """Where to part a text that is too long: near its middle, at a clause end, else a blank, else a character."""
    middle, low, high = len(text) / 2, len(text) * 0.2, len(text) * 0.8
    inside = {place for atom in _ATOM.finditer(text) for place in range(atom.start() + 1, atom.end())}
    ends = [match.end() for match in _CLAUSE_END.finditer(text)]
    blanks = [place + 1 for place, character in enumerate(text) if character.isspace()]
    for places, least, most in (
        (ends, low, high),
        (blanks, low, high),
        (ends + blanks, 1, len(text) - 1),
        (range(1, len(text)), 1, len(text) - 1),
    ):
        fitting = [place for place in places if place not in inside and least <= place <= most]
        if fitting:
            return min(fitting, key=lambda place: abs(place - middle))
    return None

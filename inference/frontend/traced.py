"""A text under rewriting that remembers where in the original each of its characters came from."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Replacement = str | Callable[["re.Match[str]"], "str | None"]


@dataclass(frozen=True)
class Traced:
    """`text` and, for each of its characters, the place in the original text where what it stands for begins.

    `origins` (len(text),) never decreases. Characters of the original that left no trace belong to what precedes them.
    """

    text: str
    origins: tuple[int, ...]

    @staticmethod
    def of(text: str) -> Traced:
        return Traced(text, tuple(range(len(text))))

    @staticmethod
    def join(parts: Sequence[Traced]) -> Traced:
        origins: list[int] = []
        for part in parts:
            origins.extend(part.origins)
        return Traced("".join(part.text for part in parts), tuple(origins))

    def __len__(self) -> int:
        return len(self.text)

    def cut(self, start: int, stop: int) -> Traced:
        return Traced(self.text[start:stop], self.origins[start:stop])

    def strip(self) -> Traced:
        """Without white space at both ends."""
        start = len(self.text) - len(self.text.lstrip())
        return self.cut(start, max(start, len(self.text.rstrip())))

    def sub(self, pattern: re.Pattern[str], replacement: Replacement) -> Traced:
        """Replace every match; a callable may return None to leave its match alone.

        A string is taken literally. The new characters spread evenly over what they replace.
        """
        parts: list[Traced] = []
        done = 0
        for match in pattern.finditer(self.text):
            new = replacement if isinstance(replacement, str) else replacement(match)
            if new is None or new == match.group():
                continue
            start, stop = match.span()
            parts += [self.cut(done, start), self._spread(new, start, stop)]
            done = stop
        return Traced.join([*parts, self.cut(done, len(self))]) if parts else self

    def _spread(self, new: str, start: int, stop: int) -> Traced:
        if start == stop:  # an insertion
            origin = self.origins[start - 1] if start else 0
            return Traced(new, (origin,) * len(new))
        size = stop - start
        return Traced(new, tuple(self.origins[start + place * size // len(new)] for place in range(len(new))))

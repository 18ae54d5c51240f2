"""Roman numerals as they stand behind names: II to XXXIX."""

from __future__ import annotations

# No single letters (I, V and X are mostly words and names), and no L, C, D, M: those make MIX, CD and DIM.
ROMAN = r"(?:X{1,3}(?:IX|IV|V?I{0,3})|IX|IV|V?I{1,3})(?<=[IVX]{2})"
_ROMAN_CHARACTERS = {"I": 1, "V": 5, "X": 10}


def roman_value(numeral: str) -> int:
    """ "XIV" → 14. `numeral` matches `ROMAN`, or is "V" or "X"."""
    values = [_ROMAN_CHARACTERS[letter] for letter in numeral]
    smaller_before = [-1 if value < after else 1 for value, after in zip(values, [*values[1:], 0])]
    return sum(sign * value for sign, value in zip(smaller_before, values))

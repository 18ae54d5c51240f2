"""Phone symbols as numbers, and the phone error rate."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_NOT_PHONES = frozenset("ˈˌ.,!?;:—…\"“”‘’()'-–·、。，！？；：/|_")


class PhoneTable:
    """Numbers symbols as they turn up: 0 is CTC's blank. Symbols beyond the capacity are left out."""

    def __init__(self, capacity: int, symbols: list[str] | None = None) -> None:
        self.capacity = capacity
        self.symbols: list[str] = list(symbols or [])
        self._numbers = {symbol: i + 1 for i, symbol in enumerate(self.symbols)}
        self._known: dict[str, list[int]] = {}

    def encode(self, phones: str) -> list[int]:
        """Space-separated symbols to numbers; stress marks and punctuation are dropped."""
        if phones in self._known:
            return self._known[phones]
        numbers = self._known[phones] = []
        for token in phones.split():
            symbol = "".join(character for character in token if character not in _NOT_PHONES)
            if not symbol:
                continue
            if symbol not in self._numbers:
                if len(self.symbols) + 1 >= self.capacity:
                    continue
                self.symbols.append(symbol)
                self._numbers[symbol] = len(self.symbols)
            numbers.append(self._numbers[symbol])
        return numbers


def edit_distance(expected: list[int] | list[str], found: list[int] | list[str]) -> int:
    """Insertions, deletions and substitutions at least needed."""
    row = np.arange(len(found) + 1)
    other = np.array(found, dtype=object)
    offsets = np.arange(len(found) + 1)
    for i, symbol in enumerate(expected, 1):
        best = row + 1
        best[1:] = np.minimum(best[1:], row[:-1] + (other != symbol))
        best[0] = i
        row = np.minimum.accumulate(best - offsets) + offsets  # insertions, all at once
    return int(row[-1])


def greedy_phones(logits: Tensor, lengths: list[int]) -> list[list[int]]:
    """(B, T, phones) logits to sequences without blanks and repeats."""
    best = logits.argmax(-1).cpu()
    return [
        [int(number) for number in torch.unique_consecutive(best[i, :length]) if number]
        for i, length in enumerate(lengths)
    ]

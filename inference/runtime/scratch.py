"""Memory that programs of many sizes use in turn: the largest one's is enough for all of them."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Scratch:
    """Each name stands for one tensor, of which every size gets the front. Used from one thread, on one stream.

    Who takes a front finds it zeroed, and what others held there is lost: whatever must outlast the next one's turn is
    to be written anew at the beginning of each turn. Larger sizes should come first, or a new tensor is made for them
    while the smaller ones go on using the old one.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._kept: dict[tuple[str, torch.dtype], Tensor] = {}

    def zeros(self, name: str, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """The front, contiguous."""
        count = math.prod(shape)
        kept = self._kept.get((name, dtype))
        if kept is None or len(kept) < count:
            kept = self._kept[name, dtype] = torch.empty(count, dtype=dtype, device=self._device)
        return kept[:count].zero_().view(shape)

    def clear(self) -> None:
        """Give the memory back, once nobody uses it any more."""
        self._kept.clear()

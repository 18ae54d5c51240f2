"""Which positions an attention layer may look at: padding and block-causal chunks (SPEC 4, 5.1)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Visibility:
    """What may be seen by whom in one attention stack.

    `length` positions in all; `chunk` is None (everything is visible) or the size of the block-causal chunks, counted
    from position 0 with all left context visible; `valid` (B, length) bool marks real positions, None when no
    item is padded. Position 0 of every item counts as valid, so that no row is ever without a key.
    """

    length: int
    chunk: int | None = None
    valid: Tensor | None = None

    def keys_for(self, end: int) -> int:
        """How many keys, from position 0 on, the queries before `end` may see at most."""
        if self.chunk is None:
            return self.length
        return min(self.length, -(-end // self.chunk) * self.chunk)

    def mask(self, start: int, end: int, device: torch.device) -> Tensor | None:
        """Boolean mask, True = visible, for queries start..end against keys 0..keys_for(end).

        Returns a tensor that broadcasts to (B, heads, end - start, keys), or None when everything is visible.
        """
        keys = self.keys_for(end)
        padding = None if self.valid is None else self.valid[:, None, None, :keys]
        if self.chunk is None or start // self.chunk == (end - 1) // self.chunk:
            return padding
        queries = torch.arange(start, end, device=device)
        limit = (queries // self.chunk + 1) * self.chunk
        chunks = (torch.arange(keys, device=device) < limit[:, None])[None, None]
        return chunks if padding is None else chunks & padding

    def full_mask(self, device: torch.device) -> Tensor | None:
        """`mask` for all queries at once."""
        return self.mask(0, self.length, device)


def valid_positions(lengths: Tensor, size: int) -> Tensor:
    """(B,) lengths → (B, size) bool, True where a position belongs to the item."""
    return torch.arange(size, device=lengths.device) < lengths[:, None]


def visibility(size: int, lengths: Tensor | None, chunk: int | None) -> Visibility:
    """The `Visibility` of a batch of `size` positions; `lengths` (B,) is None when no item is padded."""
    valid = None if lengths is None else valid_positions(lengths.clamp_min(1), size)
    return Visibility(size, chunk, valid)


@dataclass(frozen=True)
class MixedVisibility(Visibility):
    """A padded batch whose items differ in their masks: query i of item b sees the first `limits[b, i]` ≥ 1 keys."""

    limits: Tensor | None = None  # (B, length) int

    def keys_for(self, end: int) -> int:
        """All: some item may see everything."""
        return self.length

    def mask(self, start: int, end: int, device: torch.device) -> Tensor | None:
        """As in `Visibility`: (B, 1, end - start, length)."""
        if self.limits is None:
            return super().mask(start, end, device)
        keys = torch.arange(self.length, device=device)
        return (keys < self.limits[:, start:end, None])[:, None]


def mixed_visibility(size: int, lengths: Tensor, causal: Tensor, chunk: int) -> MixedVisibility:
    """lengths (B,), causal (B,) bool: which items see chunk by chunk only."""
    ends = (torch.arange(size, device=lengths.device) // chunk + 1) * chunk
    everything = lengths.clamp_min(1)[:, None]
    return MixedVisibility(size, limits=torch.where(causal[:, None], ends.minimum(everything), everything))

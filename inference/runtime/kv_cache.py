"""Preallocated keys and values of the language model: one row a slot, each at its own position.

Shapes never change and nothing waits for the device, so that a decode step can be captured as a CUDA graph.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from inference.models.config import LanguageModelConfig


class KvCache:
    """`data` (layers, 2, rows, kv_heads, max_len, head_dim); `lengths` (rows,) int64 positions filled so far."""

    def __init__(
        self,
        cfg: LanguageModelConfig,
        rows: int,
        max_len: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        shape = (cfg.num_layers, 2, rows, cfg.num_kv_heads, max_len, cfg.head_dim)
        self.data = _zeros(shape, torch.device(device), dtype)
        self.lengths = torch.zeros(rows, device=device, dtype=torch.int64)
        self.rows = rows
        self.max_len = max_len

    def reset(self, rows: Tensor) -> None:
        """Empty the slots `rows` (n,).

        The values are cleared too: a masked position has weight 0, but 0 times a NaN left behind is NaN.
        """
        self.lengths.index_fill_(0, rows, 0)
        self.data.index_fill_(2, rows, 0)

    def clear(self, row: int, used: int) -> None:
        """Empty one slot of which at most the first `used` positions were ever written; see `reset`."""
        self.lengths[row : row + 1].fill_(0)
        self.data[:, :, row, :, :used].zero_()

    def move(self, source: int, target: int, used: int) -> None:
        """Copy the first `used` positions and the length of slot `source` to the empty slot `target`."""
        self.lengths[target : target + 1].copy_(self.lengths[source : source + 1])
        self.data[:, :, target, :, :used].copy_(self.data[:, :, source, :, :used])

    def advance(self, counts: Tensor, rows: Tensor | None = None) -> None:
        """Add `counts` (B,) to the lengths of `rows` (B,), or of the first B rows."""
        if rows is None:
            self.lengths[: len(counts)] += counts
        else:
            self.lengths.index_add_(0, rows, counts)

    def lengths_of(self, rows: Tensor | None, batch: int) -> Tensor:
        """(B,) filled positions of `rows`, or of the first `batch` rows."""
        return self.lengths[:batch] if rows is None else self.lengths.index_select(0, rows)


class CacheView:
    """One forward pass over a batch of a cache's rows; an `AttentionMemory` of the language model.

    `positions` (B, T) are where the new keys go. `prefix` is the number of cached positions to attend over; it must
    cover the longest row including the new positions, and is chosen by the host (any larger value gives the same
    result). None says that all rows start at 0: then the new positions attend among themselves.
    `rows` None stands for the first B rows, which are used in place; other rows are copied out for the attention.
    Padded positions are written as well: past their row's length, where they are masked until overwritten.
    """

    def __init__(
        self, cache: KvCache, positions: Tensor, prefix: int | None, rows: Tensor | None = None
    ) -> None:
        self._cache = cache
        self._positions = positions.clamp_max(cache.max_len - 1)  # a finished row may idle at the end
        self._batch = len(positions)
        self._rows = rows
        self._write_rows = rows if rows is not None else torch.arange(self._batch, device=positions.device)
        self._prefix = prefix
        self._mask: Tensor | None = None
        if prefix is not None:
            places = torch.arange(prefix, device=positions.device)
            self._mask = (places <= self._positions[:, :, None])[:, None]

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """See `AttentionMemory.extend`."""
        stored = self._cache.data[layer]
        places = (self._write_rows[:, None], slice(None), self._positions)
        stored[0][places] = keys.transpose(1, 2).to(stored.dtype)
        stored[1][places] = values.transpose(1, 2).to(stored.dtype)
        if self._prefix is None:
            return keys, values, None
        if self._rows is None:
            chosen = stored[:, : self._batch, :, : self._prefix]
        else:
            chosen = stored[:, :, :, : self._prefix].index_select(1, self._rows)
        return chosen[0].to(keys.dtype), chosen[1].to(keys.dtype), self._mask


def _zeros(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """On the CPU the system's own zeros, which take no memory before they are written: most slots are never full."""
    if device.type != "cpu" or dtype != torch.float32:
        return torch.zeros(shape, device=device, dtype=dtype)
    return torch.from_numpy(np.zeros(shape, dtype=np.float32))

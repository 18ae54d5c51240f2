"""Preallocated keys and values for a fixed number of rows (slots), each at a position of its own."""

from __future__ import annotations

import torch
from torch import Tensor


class KVCache:
    """Keys and values of every layer: (layers, 2, rows, kv_heads, max_len + 1, head_dim).

    Writing needs no wait for the host: positions are device tensors. The last place is a bin for padding, so that a
    padded position never overwrites a real one. A row is reused by writing it from position 0 again.
    """

    def __init__(
        self,
        layers: int,
        rows: int,
        kv_heads: int,
        max_len: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.max_len = max_len
        self._store = torch.zeros(layers, 2, rows, kv_heads, max_len + 1, head_dim, dtype=dtype, device=device)
        self._rows = torch.arange(rows, device=device)[:, None]

    def update(self, layer: int, k: Tensor, v: Tensor, positions: Tensor, limit: int) -> tuple[Tensor, Tensor]:
        """Keep k, v (B, kv_heads, S, head_dim) at `positions` (B, S) of rows 0..B-1.

        Returns all keys and values of those rows up to `limit`: (B, kv_heads, limit, head_dim).
        """
        batch = k.shape[0]
        places = positions.clamp(max=self.max_len)
        keys, values = self._store[layer, 0, :batch], self._store[layer, 1, :batch]
        keys[self._rows[:batch], :, places] = k.transpose(1, 2)
        values[self._rows[:batch], :, places] = v.transpose(1, 2)
        return keys[:, :, :limit], values[:, :, :limit]

    @property
    def nbytes(self) -> int:
        return self._store.nbytes

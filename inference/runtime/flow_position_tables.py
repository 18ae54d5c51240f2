"""W_pos r(k) of the flow encoder's layers for chunks at any place of a stream (SPEC 4)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor, nn

from inference.models.flow_encoder import ConformerLayer, RelativeAttention, relative_positions
from inference.runtime.flow_block import Block

_ROWS = 1024  # distances projected at a time, so that a table's values do not depend on its length


class PositionTables:
    """One table a layer. They depend on the weights alone and grow with the longest stream."""

    def __init__(self, layers: nn.ModuleList) -> None:
        self._attentions = [cast(ConformerLayer, layer).self_attn for layer in layers]
        self._tables: list[Tensor] = []

    def select(self, block: Block, rate: int) -> Iterator[Tensor]:
        """For each layer (1, R, D): the distances between a block's queries and keys at `rate` positions a token.

        R = n + K - 1 rows, from the last query and first key to the first query and last key.
        """
        size, keys = block.size * rate, block.most * rate
        tables = self._covering(size + keys)
        zero = len(tables[0]) // 2 - 1  # the row of distance 0
        start = zero - (block.first * rate + size - 1)
        return (table[None, start : start + keys + size - 1] for table in tables)

    def _covering(self, distance: int) -> list[Tensor]:
        """(2 · capacity, D) each: distances capacity - 1 … -capacity in falling order."""
        tables = self._tables
        capacity = len(tables[0]) // 2 if tables else 0
        if capacity < distance:
            capacity = max(capacity, _ROWS)
            while capacity < distance:
                capacity *= 2
            tables = self._tables = [_project(attention, capacity) for attention in self._attentions]
        return tables


def _project(attention: RelativeAttention, capacity: int) -> Tensor:
    weight = attention.linear_pos.weight
    sinusoids = relative_positions(capacity + 1, weight.shape[1], weight.device)[1:]
    return torch.cat([attention.linear_pos(part) for part in sinusoids.to(weight.dtype).split(_ROWS)])

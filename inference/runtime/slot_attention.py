"""How the fused language model attends over a cache of slots: prompts, and one new position of many rows.

Every write names its row, so that padding and rows that have ended write to a spare row instead of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from inference.models.language_model import grouped_attention
from inference.runtime.kv_cache import KvCache

_SPAN = 64  # positions; rows in step with each other are then mostly alike, and little is read in vain


class _Store:
    """Splits queries from keys and values (N, heads + 2 kv_heads, head_dim) and stores the latter."""

    def __init__(self, cache: KvCache, write_rows: Tensor, positions: Tensor) -> None:
        self._cache = cache
        self._write_rows, self._positions = write_rows, positions
        self._kv_heads, self._head_dim = cache.data.shape[3], cache.data.shape[5]

    def put(self, layer: int, fused: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns queries (N, heads, D), new keys and values (N, 2, kv_heads, D), the layer's store."""
        stored = self._cache.data[layer]
        heads = fused.shape[1] - 2 * self._kv_heads
        queries, new = fused[:, :heads], fused[:, heads:]
        new = new.unflatten(1, (2, self._kv_heads))
        stored[:, self._write_rows, :, self._positions] = new.to(stored.dtype)
        return queries, new, stored


class PromptAttention:
    """Right-padded pieces of prompts, B × T symbols.

    `rows` (B,) are theirs, `write_rows` and `positions` (B × T,) say where each symbol goes. With `prefix` None they
    are beginnings and attend causally among themselves; otherwise over the first `prefix` positions of their rows.
    """

    def __init__(
        self, cache: KvCache, rows: Tensor, write_rows: Tensor, positions: Tensor, prefix: int | None
    ) -> None:
        self._store = _Store(cache, write_rows, positions)
        self._rows = rows
        self._mask: Tensor | None = None
        self._prefix = prefix
        if prefix is not None:
            places = torch.arange(prefix, device=positions.device)
            self._mask = (places <= positions.view(len(rows), 1, -1, 1)).contiguous()

    def attend(self, layer: int, fused: Tensor) -> Tensor:
        """See `SlotAttention.attend`."""
        queries, new, stored = self._store.put(layer, fused)
        by_row = (len(self._rows), -1)
        queries = queries.unflatten(0, by_row).transpose(1, 2)
        if self._prefix is None:
            keys, values = new.unflatten(0, by_row).permute(2, 0, 3, 1, 4)
        else:
            keys, values = stored[:, :, :, : self._prefix].index_select(1, self._rows).to(queries.dtype)
        attended = grouped_attention(queries, keys, values, self._mask)
        return attended.transpose(1, 2).reshape(len(fused), -1)


def _summand(newest: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """(B, 1, 1, count): 0 up to each row's newest position (B,), -inf beyond.

    Added, not a choice: the fused kernel would make a sum of a bool mask in every layer.
    """
    hidden = (torch.arange(count, device=newest.device) > newest[:, None])[:, None, None]
    return torch.zeros(hidden.shape, device=newest.device, dtype=dtype).masked_fill(hidden, -torch.inf)


class PrefixAttention:
    """One position of each of the first B rows over the first `prefix` positions, longer ones masked.

    All shapes are fixed by B and `prefix`, which makes a step with it fit for a captured graph. `product` takes two
    batched matrix products instead of the fused kernel, which uses few processors for few rows.
    """

    def __init__(
        self,
        cache: KvCache,
        write_rows: Tensor,
        positions: Tensor,
        prefix: int,
        dtype: torch.dtype,
        product: bool = False,
    ) -> None:
        self._store = _Store(cache, write_rows, positions)
        self._batch, self._prefix, self._product = len(positions), prefix, product
        self._mask = _summand(positions, prefix, torch.float32 if product else dtype)

    def attend(self, layer: int, fused: Tensor) -> Tensor:
        """See `SlotAttention.attend`."""
        queries, new, stored = self._store.put(layer, fused)
        kv_heads = new.shape[2]
        queries = queries.unflatten(1, (kv_heads, -1))  # (B, kv_heads, group, D)
        keys, values = stored[:, : self._batch].unbind(0)
        attend = self._by_products if self._product else self._by_kernel
        return attend(queries, keys, values).reshape(self._batch, -1)

    def _by_kernel(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        keys, values = (stored[:, :, : self._prefix].to(queries.dtype) for stored in (keys, values))
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=self._mask)

    def _by_products(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        shape = queries.shape
        keys, values = (stored.flatten(0, 1)[:, : self._prefix] for stored in (keys, values))
        scores = _float_product(queries.flatten(0, 1), keys.transpose(1, 2)).view(*shape[:3], -1)
        shares = torch.softmax(torch.add(self._mask, scores, alpha=shape[3] ** -0.5), dim=-1)
        return torch.bmm(shares.to(values.dtype).flatten(0, 1), values).view(shape)


def _float_product(left: Tensor, right: Tensor) -> Tensor:
    """Batched product with float32 results: half-precision scores would lose what softmax needs."""
    if left.dtype == torch.float32:
        return torch.bmm(left, right)
    if left.is_cuda:
        return torch.bmm(left, right, out_dtype=torch.float32)
    return torch.bmm(left.float(), right.float())


class RowAttention:
    """One position of each row of a block, over as many positions as the row's own length rounded up to a span.

    Neighbours with equally many spans go together, longer ones' rest masked: each row's heads are computed one by one
    in any case, over a number of positions that is the row's own, so that what a row gets cannot depend on the others,
    bit by bit. `places`: (row within the block, slot, positions including the new one) of the rows that matter, in
    order; the others get zeros.
    """

    def __init__(
        self,
        cache: KvCache,
        write_rows: Tensor,
        positions: Tensor,
        places: Sequence[tuple[int, int, int]],
    ) -> None:
        self._store = _Store(cache, write_rows, positions)
        self._block = len(positions)
        self._runs = [_Run(cache.data, run) for run in _runs(places)]

    def attend(self, layer: int, fused: Tensor) -> Tensor:
        """See `SlotAttention.attend`."""
        queries, new, _ = self._store.put(layer, fused)
        queries = queries.unflatten(1, (new.shape[2], -1))
        attended, done = [], 0
        for run in self._runs:
            if run.first > done:
                attended.append(torch.zeros_like(queries[done : run.first]))
            done = run.first + run.count
            attended.append(run.attend(layer, queries[run.first : done]))
        if done < self._block:
            attended.append(torch.zeros_like(queries[done:]))
        return torch.cat(attended).flatten(1)


class _Run:
    """Rows side by side that attend over equally many spans."""

    def __init__(self, data: Tensor, places: Sequence[tuple[int, int, int]]) -> None:
        self.first, slot, _ = places[0]
        self.count = len(places)
        positions = min(_spans(places[0]) * _SPAN, data.shape[4])
        # Keys and values by layer: made once a step, as making views takes longer than using them.
        self._memory = data[:, :, slot : slot + self.count, :, :positions].flatten(0, 1).unbind(0)
        newest = torch.tensor([length - 1 for _, _, length in places])
        self._mask = _summand(newest, positions, data.dtype)

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        """(count, kv_heads, group, D) → the same."""
        keys, values = self._memory[2 * layer : 2 * layer + 2]
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=self._mask)


def _spans(place: tuple[int, int, int]) -> int:
    return -(-place[2] // _SPAN)


def _runs(places: Sequence[tuple[int, int, int]]) -> list[list[tuple[int, int, int]]]:
    """Places in runs of neighbouring rows and slots with equally many spans."""
    runs: list[list[tuple[int, int, int]]] = []
    for place in places:
        last = runs[-1][-1] if runs else None
        row, slot, _ = place
        if last is not None and (last[0] + 1, last[1] + 1, _spans(last)) == (row, slot, _spans(place)):
            runs[-1].append(place)
        else:
            runs.append([place])
    return runs

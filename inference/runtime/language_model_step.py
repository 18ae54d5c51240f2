"""Forward passes of the language model over a cache: prefill of many prompts, one step for many rows."""

from __future__ import annotations

import torch
from torch import Tensor

from inference.models.language_model import LanguageModel
from inference.runtime.kv_cache import CacheView, KvCache

PREFIX_STEP = 64  # cached positions to attend over are rounded up to this, so that few shapes occur


def round_prefix(length: int, max_len: int) -> int:
    """The prefix to attend over for rows of at most `length` positions."""
    return min(max_len, -(-length // PREFIX_STEP) * PREFIX_STEP)


def prefill(
    model: LanguageModel,
    cache: KvCache,
    kinds: Tensor,
    ids: Tensor,
    lengths: Tensor,
    rows: Tensor | None = None,
) -> Tensor:
    """Run right-padded prompts into empty rows; returns the hidden state of each one's last symbol (B, hidden).

    kinds, ids: (B, T); lengths: (B,) ≥ 1; rows: (B,) or None for the first B rows.
    """
    batch, size = ids.shape
    positions = torch.arange(size, device=ids.device).expand(batch, size)
    hidden: Tensor = model(model.embed(kinds, ids), positions, CacheView(cache, positions, None, rows))
    cache.advance(lengths, rows)
    return hidden[torch.arange(batch, device=ids.device), lengths - 1]


def extend(
    model: LanguageModel,
    cache: KvCache,
    kinds: Tensor,
    ids: Tensor,
    lengths: Tensor,
    prefix: int,
    rows: Tensor | None = None,
) -> Tensor:
    """Append right-padded symbols to rows that may already hold some; returns each one's last hidden state.

    As `prefill`, with `prefix` as in `CacheView`.
    """
    batch, size = ids.shape
    start = cache.lengths_of(rows, batch)
    positions = start[:, None] + torch.arange(size, device=ids.device)
    hidden: Tensor = model(model.embed(kinds, ids), positions, CacheView(cache, positions, prefix, rows))
    cache.advance(lengths, rows)
    return hidden[torch.arange(batch, device=ids.device), lengths - 1]


def decode(
    model: LanguageModel,
    cache: KvCache,
    speech_ids: Tensor,
    active: Tensor,
    prefix: int,
    rows: Tensor | None = None,
) -> Tensor:
    """Feed one speech token to each row (B,) int64; returns hidden states (B, hidden).

    Rows with `active` (B,) bool False are computed, so that shapes stay fixed, but do not advance.
    """
    positions = cache.lengths_of(rows, len(speech_ids))[:, None]
    embeddings = model.speech_embedding(speech_ids)[:, None]
    hidden: Tensor = model(embeddings, positions, CacheView(cache, positions, prefix, rows))
    cache.advance(active.long(), rows)
    return hidden[:, 0]

"""Repetition-aware sampling for a whole batch on the device, without waiting for it (SPEC 3.1)."""

from __future__ import annotations

import torch
from torch import Tensor

from inference.models.config import SamplingConfig

UNIFORMS_PER_STEP = 2  # one for the nucleus, one for the fallback


def nucleus(probabilities: Tensor, cfg: SamplingConfig) -> tuple[Tensor, Tensor]:
    """(B, V) → candidate weights (B, k) float64, 0 outside the nucleus, and their ids (B, k), likeliest first.

    A candidate belongs while those before it sum to less than `top_p`, so the one that crosses it is in.
    """
    ranked, ids = torch.sort(probabilities, dim=-1, descending=True, stable=True)
    ranked, ids = ranked[:, : cfg.top_k], ids[:, : cfg.top_k]
    before = torch.cumsum(ranked, dim=-1) - ranked
    # The running sum is float32 as in the original: subtracting back would round differently.
    before[:, 1:] = torch.cumsum(ranked, dim=-1)[:, :-1]
    return torch.where(before < cfg.top_p, ranked, 0.0).double(), ids


def draw(weights: Tensor, uniforms: Tensor) -> Tensor:
    """weights (B, n) float64 ≥ 0, uniforms (B,) in [0, 1) → index (B,) drawn in proportion to its weight."""
    cumulative = torch.cumsum(weights, dim=-1)
    target = uniforms[:, None] * cumulative[:, -1:]
    index = (cumulative <= target).sum(dim=-1)
    return index.clamp_max(weights.shape[-1] - 1)


def sample(logp: Tensor, recent: Tensor, uniforms: Tensor, cfg: SamplingConfig) -> Tensor:
    """One token for every row.

    logp (B, V) log-probabilities, masked ids at −inf; recent (B, window) the latest ids of each row, −1 where there are
    none; uniforms (B, 2). Returns ids (B,) int64. A drawn id that was said recently is masked and another one drawn
    from the whole vocabulary.
    """
    weights, ids = nucleus(torch.softmax(logp, dim=-1), cfg)
    first = ids.gather(1, draw(weights, uniforms[:, 0])[:, None])
    repeated = (recent == first).sum(dim=-1) >= cfg.win_size * cfg.tau_r
    others = torch.softmax(logp.scatter(1, first, float("-inf")), dim=-1).double()
    second = draw(others, uniforms[:, 1])
    return torch.where(repeated, second, first[:, 0])

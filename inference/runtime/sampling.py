"""Repetition-aware sampling for a whole batch, on the device, without waiting for it (SPEC 3.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from inference.models.config import LanguageModelConfig, SamplingConfig
from inference.runtime.uniforms import keyed_uniforms, stream_keys

NOT_FINITE = -1  # what `sample_step` gives for a row whose logits are not finite
NO_ID = -1  # an empty place of the history
_LOW_BITS = (1 << 32) - 1


def nucleus(probabilities: Tensor, cfg: SamplingConfig) -> tuple[Tensor, Tensor]:
    """Candidates in descending probability: ids (B, k) int64 and weights (B, k) float64, 0 for those left out.

    probabilities: (B, V) float32. A candidate is in while the sum of those before it is below `top_p`, so the one that
    crosses the border is included; equal probabilities keep the order of their ids.
    """
    count = min(cfg.top_k, probabilities.shape[1])
    order = torch.arange(probabilities.shape[1], device=probabilities.device)
    # The bits of non-negative floats sort like the floats; the id in the low half makes the order total and stable.
    keys = (probabilities.contiguous().view(torch.int32).long() << 32) | (_LOW_BITS - order)
    ids = _LOW_BITS - (keys.topk(count, dim=1).values & _LOW_BITS)
    values = probabilities.gather(1, ids)
    before = [torch.zeros_like(values[:, 0])]
    for place in range(count - 1):  # float32 additions one by one, as recorded: cumsum rounds differently
        before.append(before[-1] + values[:, place])
    return ids, values.double() * (torch.stack(before, dim=1) < cfg.top_p)


def draw(weights: Tensor, uniforms: Tensor) -> Tensor:
    """First index whose cumulative share exceeds the uniform: weights (B, n) float64, uniforms (B,) → (B,) int64."""
    cumulative = weights.cumsum(1)
    passed = (cumulative <= (uniforms * cumulative[:, -1])[:, None]).sum(1)
    # Only a uniform that rounds up to 1 gets past the end.
    return passed.clamp_max(weights.shape[1] - 1)


def repetition_aware(logp: Tensor, recent: Tensor, uniforms: Tensor, cfg: SamplingConfig) -> Tensor:
    """One id per row (B,) int64.

    logp (B, V) float32 log-probabilities with forbidden ids at -inf; recent (B, W) the last ids, -1 where there is
    none; uniforms (B, 2). A candidate that occurs among the recent ones is dropped, and another is drawn from the whole
    vocabulary.
    """
    ids, weights = nucleus(torch.softmax(logp, dim=1), cfg)
    first = ids.gather(1, draw(weights, uniforms[:, 0])[:, None])
    repeated = (recent == first).sum(1) >= cfg.win_size * cfg.tau_r
    if not repeated.is_cuda and not repeated.any():  # nothing to wait for on the CPU, and rare
        return first[:, 0]
    others = torch.softmax(logp.scatter(1, first, -torch.inf), dim=1)
    return torch.where(repeated, draw(others.double(), uniforms[:, 1]), first[:, 0])


@dataclass
class SamplerState:
    """What sampling remembers of each row; all tensors (B,) int64 but `recent` (B, W)."""

    keys: Tensor  # `stream_keys` of the seeds
    steps: Tensor  # ids drawn so far
    min_len: Tensor
    max_len: Tensor
    recent: Tensor
    active: Tensor  # bool, or int64 with 0 and 1; False once the row has ended

    @classmethod
    def create(
        cls,
        cfg: SamplingConfig,
        seeds: Sequence[int],
        min_len: Sequence[int],
        max_len: Sequence[int],
        device: torch.device,
    ) -> SamplerState:
        """State of fresh rows."""

        def column(values: Sequence[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int64).to(device)

        limits = column(max_len)
        recent = torch.full((len(seeds), cfg.win_size), NO_ID, dtype=torch.int64, device=device)
        keys = stream_keys(column(seeds))
        return cls(keys, torch.zeros_like(limits), column(min_len), limits, recent, limits > 0)

    def remember(self, ids: Tensor) -> None:
        """Put `ids` (B,) at the end of the history."""
        self.recent.copy_(torch.cat((self.recent[:, 1:], ids[:, None]), dim=1))
        self.steps += 1


def sample_step(
    logits: Tensor, state: SamplerState, cfg: LanguageModelConfig, exact: bool | Tensor = False
) -> Tensor:
    """Draw the next id of every row (B,) int64 and bring `state` up to date, in place.

    logits (B, V) float32. End-of-speech is impossible before `min_len`, the two ids behind it (unused, fill) always
    unless `exact`, for all or for each row (B,): the original leaves those possible, and one of them cuts a sentence
    off after a few sounds.
    A row ends (`state.active`) with an id of the stop set, at `max_len`, or with `NOT_FINITE`; ids of rows that had
    ended before mean nothing.
    """
    logp = torch.log_softmax(logits, dim=1)
    end = cfg.end_of_speech
    too_early = state.steps < state.min_len
    logp[:, end] = torch.where(too_early, -torch.inf, logp[:, end])
    if isinstance(exact, Tensor):
        logp[:, end + 1 :].masked_fill_(~exact[:, None], -torch.inf)
    elif not exact:
        logp[:, end + 1 :] = -torch.inf
    ids = repetition_aware(logp, state.recent, keyed_uniforms(state.keys, state.steps), cfg.sampling)
    # log_softmax carries a single NaN or +inf to the whole row, so one sum tells.
    sound = torch.isfinite(logits.sum(1))
    ids = torch.where(sound, ids, NOT_FINITE)
    state.remember(ids)
    goes_on = sound & (ids < end) & (state.steps < state.max_len)
    state.active &= goes_on
    return ids

"""From prompts to speech tokens, one step for all rows at a time (SPEC 3)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from inference.models.counter_noise import counter_uniform
from inference.models.language_model import LanguageModel, Prompt
from inference.runtime.kv_cache import KVCache
from inference.runtime.sampling import UNIFORMS_PER_STEP, sample
from inference.types import EngineError

NOT_FINITE = -1  # takes the place of a token whose logits were not finite


@dataclass(frozen=True)
class GenerationJob:
    """One row: its prompt, the seed of its random stream and the bounds on its length."""

    prompt: Prompt
    seed: int
    min_tokens: int
    max_tokens: int


@dataclass
class RowState:
    """Device tensors of all rows, (B,) but for `recent` (B, window)."""

    hidden: Tensor  # (B, hidden) after the final norm, at the latest position
    positions: Tensor  # where the next token goes
    seeds: Tensor
    min_tokens: Tensor
    recent: Tensor


def choose(model: LanguageModel, state: RowState, step: int) -> Tensor:
    """Sample every row's next id (B,); `NOT_FINITE` where the logits are unusable. Waits for nothing."""
    cfg = model.cfg
    logits = model.logits(state.hidden)
    logp = torch.log_softmax(logits, dim=-1)
    too_early = step < state.min_tokens
    logp[:, cfg.end_of_speech] = logp[:, cfg.end_of_speech].masked_fill(too_early, float("-inf"))
    steps = torch.full_like(state.seeds, step)
    ids = sample(logp, state.recent, counter_uniform(state.seeds, steps, UNIFORMS_PER_STEP), cfg.sampling)
    return torch.where(torch.isfinite(logits).all(dim=-1), ids, NOT_FINITE)


def advance(model: LanguageModel, state: RowState, ids: Tensor, cache: KVCache, limit: int) -> None:
    """Feed the chosen ids and remember them."""
    state.recent = torch.cat((state.recent[:, 1:], ids[:, None]), dim=1)
    embedded = model.embed_speech(ids.clamp_min(0))[:, None]
    state.hidden = model(embedded, state.positions[:, None], cache, limit=limit)[:, 0]
    state.positions = state.positions + 1


@torch.inference_mode()
def generate_batch(model: LanguageModel, jobs: Sequence[GenerationJob]) -> Iterator[list[int | None]]:
    """Yield one entry per job and step: its next speech token, or None once it has ended.

    Whatever else is in the batch, a job gets the tokens it gets alone. Closing the iterator stops the work.
    Raises `EngineError("non_finite")` when the model's numbers overflow.
    """
    stop = set(model.cfg.stop_ids)
    prompts = [model.embed_prompt(job.prompt) for job in jobs]
    longest = max(len(prompt) for prompt in prompts)
    steps = max(job.max_tokens for job in jobs)
    cache = model.new_cache(len(jobs), longest + steps)
    state = _start(model, jobs, prompts, cache)
    ended = [job.max_tokens == 0 for job in jobs]
    for step in range(steps):
        if all(ended):
            return
        ids = choose(model, state, step)
        tokens = ids.tolist()  # the only wait of a step
        if any(token == NOT_FINITE and not over for token, over in zip(tokens, ended)):
            raise EngineError("non_finite", "The language model's numbers overflowed; use a higher precision.")
        ended = [over or token in stop for token, over in zip(tokens, ended)]
        yield [None if over else token for token, over in zip(tokens, ended)]
        ended = [over or step + 1 >= job.max_tokens for over, job in zip(ended, jobs)]
        if step + 1 < steps and not all(ended):
            advance(model, state, ids, cache, limit=longest + step + 1)


def generate(model: LanguageModel, job: GenerationJob) -> Iterator[int]:
    """The speech tokens of one job, as `generate_batch`."""
    for tokens in generate_batch(model, [job]):
        if tokens[0] is None:
            return
        yield tokens[0]


def _start(
    model: LanguageModel, jobs: Sequence[GenerationJob], prompts: Sequence[Tensor], cache: KVCache
) -> RowState:
    def column(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=model.device)

    window = model.cfg.sampling.win_size
    return RowState(
        hidden=model.prefill(prompts, cache),
        positions=column([len(prompt) for prompt in prompts]),
        seeds=column([job.seed for job in jobs]),
        min_tokens=column([job.min_tokens for job in jobs]),
        recent=torch.full((len(jobs), window), -1, dtype=torch.int64, device=model.device),
    )


def text_bounds(text_tokens: int) -> tuple[int, int]:
    """Fewest and most speech tokens for a text of so many tokens: 2 and 20 for each (SPEC 2.7)."""
    return 2 * text_tokens, 20 * text_tokens

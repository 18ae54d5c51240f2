"""Sampling decisions of the original, and randomness that belongs to a request."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from inference.models.config import LanguageModelConfig, SamplingConfig
from inference.runtime.sampling import NOT_FINITE, SamplerState, nucleus, repetition_aware, sample_step
from inference.runtime.uniforms import derive_seed, step_uniforms, stream_key, stream_keys
from tests.golden_data import Case, load_case, parametrize

RAS = parametrize("name", "ras_")
CFG = SamplingConfig()


def masked_logp(case: Case) -> Tensor:
    logp = case.tensor("logp")
    logp[case.tensor("ignore_eos").bool(), case.meta["params"]["eos"]] = -torch.inf
    return logp


def recent_ids(case: Case, size: int) -> Tensor:
    rows = torch.full((len(case.arrays["history"]), size), -1)
    for row, (history, length) in enumerate(zip(case.arrays["history"], case.arrays["history_len"])):
        latest = history[:length][-size:]
        if len(latest):
            rows[row, -len(latest) :] = torch.from_numpy(latest.astype(np.int64))
    return rows


def config_of(case: Case) -> SamplingConfig:
    keys = ("top_p", "top_k", "win_size", "tau_r")
    return SamplingConfig(**{key: case.meta["params"][key] for key in keys})


@pytest.mark.golden
@RAS
def test_decisions_equal_recorded(name: str, device: torch.device) -> None:
    case = load_case(name)
    cfg = config_of(case)
    inputs = (x.to(device) for x in (masked_logp(case), recent_ids(case, cfg.win_size), case.tensor("u")))
    assert repetition_aware(*inputs, cfg).tolist() == case.arrays["result"].tolist()


@pytest.mark.golden
@RAS
def test_nucleus_equals_recorded(name: str) -> None:
    case = load_case(name)
    ids, weights = nucleus(torch.softmax(masked_logp(case), dim=1), config_of(case))
    shares = weights / weights.sum(1, keepdim=True)
    expected_ids, expected = case.tensor("nucleus_ids"), case.tensor("nucleus_probs")
    for row in range(len(ids)):
        count = int((expected_ids[row] >= 0).sum())
        assert ids[row, :count].tolist() == expected_ids[row, :count].tolist()
        assert not weights[row, count:].any()
        torch.testing.assert_close(shares[row, :count], expected[row, :count], rtol=1e-5, atol=1e-8)


@pytest.mark.golden
@RAS
def test_marginals_equal_recorded(name: str) -> None:
    """A grid of uniforms gives the exact marginal distribution to within the grid's step."""
    case = load_case(name)
    logp, recent = masked_logp(case), recent_ids(case, CFG.win_size)
    side = 32
    grid = (torch.arange(side, dtype=torch.float64) + 0.5) / side
    uniforms = torch.cartesian_prod(grid, grid)
    for row in range(0, len(logp), 6):
        ids = repetition_aware(
            logp[row].expand(len(uniforms), -1),
            recent[row].expand(len(uniforms), -1),
            uniforms,
            config_of(case),
        )
        shares = torch.bincount(ids, minlength=logp.shape[1]).double() / len(uniforms)
        found = shares[case.tensor("final_top_ids")[row].long()]
        expected = case.tensor("final_top_probs")[row]
        assert (found - expected).abs().max() <= 2 / side
        assert abs(found.sum() - expected.sum()) <= 2 / side


def test_equal_probabilities_keep_the_order_of_ids() -> None:
    ids, weights = nucleus(torch.full((1, 100), 0.01), CFG)
    assert ids[0].tolist() == list(range(25))
    assert (weights > 0).all()


def test_the_candidate_that_crosses_is_included() -> None:
    probabilities = torch.tensor([[0.1, 0.5, 0.35, 0.05]])
    ids, weights = nucleus(probabilities, CFG)
    assert ids[0, weights[0] > 0].tolist() == [1, 2]


def test_a_dominant_id_is_taken_alone_unless_recent() -> None:
    logp = torch.log(torch.tensor([[0.9, 0.06, 0.04]])).repeat(2, 1)
    recent = torch.tensor([[-1] * 10, [-1] * 9 + [0]])
    uniforms = torch.tensor([[0.999, 0.999], [0.5, 0.5]], dtype=torch.float64)
    assert repetition_aware(logp, recent, uniforms, CFG).tolist() == [0, 1]


def fresh(count: int, cfg: LanguageModelConfig, min_len: int = 2, max_len: int = 3) -> SamplerState:
    return SamplerState.create(
        cfg.sampling, list(range(count)), [min_len] * count, [max_len] * count, torch.device("cpu")
    )


def test_no_end_before_the_minimum_and_none_past_the_maximum() -> None:
    cfg = LanguageModelConfig(speech_token_size=8)
    logits = torch.zeros(1, cfg.speech_vocab_size)
    logits[0, cfg.end_of_speech] = 50.0
    state = fresh(1, cfg)
    ids = [int(sample_step(logits.clone(), state, cfg)) for _ in range(3)]
    assert cfg.end_of_speech not in ids[:2] and ids[2] == cfg.end_of_speech
    assert not state.active
    logits[0, 3] = 100.0
    state = fresh(1, cfg, min_len=0, max_len=2)
    sample_step(logits.clone(), state, cfg)
    assert bool(state.active)
    sample_step(logits.clone(), state, cfg)
    assert not state.active


@pytest.mark.parametrize("token", [9, 10])
def test_ids_without_a_meaning_do_not_cut_speech_off(token: int) -> None:
    cfg = LanguageModelConfig(speech_token_size=8)
    logits = torch.zeros(1, cfg.speech_vocab_size)
    logits[0, token], logits[0, 5] = 50.0, 20.0
    state = fresh(1, cfg, min_len=0, max_len=9)
    assert sample_step(logits, state, cfg).tolist() == [5]
    assert state.active.tolist() == [True]


@pytest.mark.parametrize("token", [8, 9, 10])
def test_every_stop_id_ends_a_row_in_exact_mode(token: int) -> None:
    cfg = LanguageModelConfig(speech_token_size=8)
    logits = torch.zeros(2, cfg.speech_vocab_size)
    logits[0, token], logits[1, 5] = 50.0, 50.0
    state = fresh(2, cfg, min_len=0, max_len=9)
    assert sample_step(logits, state, cfg, exact=True).tolist() == [token, 5]
    assert state.active.tolist() == [False, True]


def test_exact_may_differ_from_row_to_row() -> None:
    cfg = LanguageModelConfig(speech_token_size=8)
    logits = torch.zeros(2, cfg.speech_vocab_size)
    logits[:, 9], logits[:, 5] = 50.0, 20.0
    state = fresh(2, cfg, min_len=0, max_len=9)
    assert sample_step(logits, state, cfg, exact=torch.tensor([True, False])).tolist() == [9, 5]
    assert state.active.tolist() == [False, True]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_row_that_is_not_finite_ends_and_leaves_the_others(bad: float) -> None:
    cfg = LanguageModelConfig(speech_token_size=8)
    logits = torch.randn(3, cfg.speech_vocab_size)
    logits[:, cfg.end_of_speech :] = -50.0
    expected = sample_step(logits.clone(), fresh(3, cfg), cfg)
    logits[1, 4] = bad
    state = fresh(3, cfg)
    found = sample_step(logits, state, cfg)
    assert found.tolist() == [expected[0], NOT_FINITE, expected[2]]
    assert state.active.tolist() == [True, False, True]


def test_history_holds_the_last_ids() -> None:
    state = fresh(1, LanguageModelConfig())
    for token in range(12):
        state.remember(torch.tensor([token]))
    assert state.recent.tolist() == [list(range(2, 12))]
    assert int(state.steps) == 12


def test_uniforms_follow_the_published_generator(device: torch.device) -> None:
    """SplitMix64 in Python's unbounded integers gives the same bits as torch's wrapping ones."""
    mask = (1 << 64) - 1

    def mix(bits: int) -> int:
        bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9 & mask
        bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB & mask
        return bits ^ (bits >> 31)

    seeds, steps = [0, 1, 2**63 - 1, 12345], [0, 7, 1, 10**6]
    step = 0x9E3779B97F4A7C15
    expected = [
        [
            (mix((mix((seed + step) & mask) + (2 * at + which) * step) & mask) >> 11) / 2.0**53
            for which in (1, 2)
        ]
        for seed, at in zip(seeds, steps)
    ]
    found = step_uniforms(torch.tensor(seeds, device=device), torch.tensor(steps, device=device))
    assert found.tolist() == expected
    assert [stream_key(seed) for seed in seeds] == stream_keys(torch.tensor(seeds)).tolist()


def test_uniforms_are_uniform_and_unrelated() -> None:
    steps = torch.arange(20000)
    first, second = step_uniforms(torch.full_like(steps, 5), steps).T
    other = step_uniforms(torch.full_like(steps, 6), steps)[:, 0]
    counts = torch.histc(first.float(), 20, 0, 1)
    assert (counts - 1000).abs().max() < 5 * 1000**0.5
    for one, two in ((first, second), (first, other), (first[1:], first[:-1])):
        assert abs(torch.corrcoef(torch.stack((one, two)))[0, 1]) < 0.03


def test_derived_seeds_are_valid_and_differ() -> None:
    seeds = {derive_seed(seed, part) for seed in range(50) for part in range(50)}
    assert len(seeds) == 2500
    assert all(0 <= seed < 2**63 for seed in seeds)

"""The velocity network: recorded calls, causality of its masks, batching, bound steps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from inference.models.masks import visibility
from inference.models.velocity import VelocityNetwork, time_sinusoid
from tests.golden_data import Case, load_case, parametrize, relative_error
from tests.models.flow_support import full_size_flow, random_flow, tiny_flow


def check_recorded(network: VelocityNetwork, case: Case, bound: float) -> None:
    names = ("x", "mask", "mu", "t", "spks", "cond")
    inputs = {name: case.tensor(name) for name in names}
    wave = time_sinusoid(inputs["t"], 320)
    assert relative_error(wave, case.tensor("time_sinusoid")) <= 1e-6
    assert relative_error(network.time_mlp(wave), case.tensor("time_mlp")) <= bound
    for streaming in (False, True):
        expected = case.tensor(f"out_streaming{int(streaming)}")
        assert relative_error(network(**inputs, streaming=streaming), expected) <= bound
        if bool(inputs["mask"].all()):
            unmasked = network(**{**inputs, "mask": None}, streaming=streaming)
            assert relative_error(unmasked, expected) <= bound


@pytest.mark.golden
@parametrize("name", "flow_estimator")
@torch.inference_mode()
def test_recorded_velocity(name: str) -> None:
    case = load_case(name)
    if "full size" in case.meta["config"]["weights"]:
        pytest.skip("a full-size case, see test_full_size_velocity")
    check_recorded(tiny_flow().decoder.estimator, case, 1e-4)


@pytest.mark.golden
@pytest.mark.slow
@parametrize("name", "full_flow_estimator")
@torch.inference_mode()
def test_full_size_velocity(name: str) -> None:
    check_recorded(full_size_flow().decoder.estimator, load_case(name), 1e-4)


def inputs(batch: int, frames: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x, mu, spks, cond."""
    x, mu, cond = torch.randn(3, batch, 80, frames)
    return x, mu, torch.randn(batch, 80), cond


@pytest.mark.unit
@pytest.mark.parametrize("streaming", [False, True])
@torch.inference_mode()
def test_padded_batch_equals_single_runs(streaming: bool) -> None:
    network = random_flow().decoder.estimator
    x, mu, spks, cond = inputs(3, 130)
    lengths = [130, 1, 77]
    mask = (torch.arange(130) < torch.tensor(lengths)[:, None])[:, None].float()
    t = torch.rand(3)
    together = network(x, mask, mu, t, spks, cond, streaming)
    for row, n in enumerate(lengths):
        one = slice(row, row + 1)
        alone = network(x[one, :, :n], None, mu[one, :, :n], t[one], spks[one], cond[one, :, :n], streaming)
        assert relative_error(together[one, :, :n], alone) <= 1e-5
        assert not together[row, :, n:].any()


@pytest.mark.unit
@torch.inference_mode()
def test_bound_steps_equal_plain_calls() -> None:
    network = random_flow().decoder.estimator
    x, mu, spks, cond = inputs(2, 60)
    mask = torch.ones(2, 1, 60)
    mask[1, :, 40:] = 0
    times = torch.tensor([0.0, 0.3, 0.9])
    step = network.bind(mask, mu, spks, cond, times, streaming=True)
    for k, t in enumerate(times):
        plain = network(x, mask, mu, t.expand(2), spks, cond, True)
        torch.testing.assert_close(step(x, k), plain, rtol=1e-5, atol=1e-5)


@pytest.mark.unit
@torch.inference_mode()
def test_streaming_output_ignores_later_chunks() -> None:
    network = random_flow().decoder.estimator
    x, mu, spks, cond = inputs(1, 120)
    t = torch.tensor([0.4])
    before = network(x, None, mu, t, spks, cond, True)
    x[:, :, 100:] += 1
    mu[:, :, 100:] -= 1
    after = network(x, None, mu, t, spks, cond, True)
    assert torch.equal(before[:, :, :100], after[:, :, :100])
    assert not torch.equal(before[:, :, 100:], after[:, :, 100:])


@pytest.mark.unit
def test_masks_appear_only_where_they_change_something() -> None:
    cpu = torch.device("cpu")
    assert visibility(200, None, None).full_mask(cpu) is None
    assert visibility(50, None, 50).full_mask(cpu) is None
    padded = visibility(200, torch.tensor([200, 3]), None).full_mask(cpu)
    assert padded is not None and padded.shape == (2, 1, 1, 200)
    chunked = visibility(120, None, 50).full_mask(cpu)
    assert chunked is not None and chunked.shape == (1, 1, 120, 120)
    assert chunked[0, 0].sum(1).tolist() == [50] * 50 + [100] * 50 + [120] * 20


@pytest.mark.unit
def test_every_row_sees_something() -> None:
    both = visibility(9, torch.tensor([9, 0]), 4).full_mask(torch.device("cpu"))
    assert both is not None and both.any(-1).all()

"""The Euler solver: fixed noise, time grid, guidance, precision of its state."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from inference.models.flow import FlowModel
from inference.runtime.flow_solver import (
    MAX_FRAMES,
    NOISE_SHA256,
    FlowConditions,
    check_length,
    fixed_noise,
    solve,
    time_grid,
)
from inference.types import RequestError
from tests.golden_data import load_case, parametrize
from tests.models.flow_support import TINY

CPU = torch.device("cpu")


@pytest.mark.unit
def test_noise_is_the_published_one() -> None:
    noise = fixed_noise(CPU)
    assert noise.shape == (1, 80, MAX_FRAMES) and noise.dtype == torch.float32
    assert hashlib.sha256(noise.numpy().astype("<f4").tobytes()).hexdigest() == NOISE_SHA256


@pytest.mark.golden
@parametrize("name", "flow_noise")
def test_recorded_noise(name: str) -> None:
    case = load_case(name)
    assert case.meta["sha256_float32"] == NOISE_SHA256
    assert torch.equal(fixed_noise(CPU)[:, :, :800], case.tensor("first_800_frames"))
    sums = fixed_noise(CPU)[0].double().sum(1).numpy()
    np.testing.assert_allclose(sums, case.arrays["row_sums"], rtol=1e-12)


@pytest.mark.unit
def test_noise_leaves_the_global_generator_and_the_checkpoint_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    fixed_noise.cache_clear()
    fixed_noise(CPU)
    assert torch.equal(torch.rand(1), expected)
    assert not any(value.numel() >= MAX_FRAMES * 80 for value in FlowModel(TINY).state_dict().values())


@pytest.mark.unit
def test_time_grid_is_the_cosine_schedule() -> None:
    times, sizes = time_grid(10)
    expected = [1 - math.cos(k / 10 * math.pi / 2) for k in range(11)]
    np.testing.assert_allclose(times, expected[:10], atol=1e-6)
    np.testing.assert_allclose(np.cumsum(sizes), expected[1:], atol=1e-6)


class LinearField:
    """dx/dt = a(t) + b for the guided half, 0.5 for the free half; remembers what it was given."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.seen: list[Tensor] = []

    def bind(self, mask, mu, spks, cond, times, *, streaming):  # type: ignore[no-untyped-def]
        def step(x: Tensor, k: int) -> Tensor:
            self.seen.append(x)
            return (0.5 + mu * times[k]).expand_as(x).to(self.dtype)

        return step


@pytest.mark.unit
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_guidance_and_float32_state(dtype: torch.dtype) -> None:
    field = LinearField(dtype)
    mu = torch.ones(2, 80, 7, dtype=dtype)
    found = solve(field, FlowConditions(mu, torch.zeros(2, 80), torch.zeros_like(mu)), steps=10, cfg_rate=0.7)
    times, sizes = time_grid(10)
    drift = sum(size * (1.7 * (0.5 + t) - 0.7 * 0.5) for t, size in zip(times, sizes))
    expected = fixed_noise(CPU)[:, :, :7] + drift
    assert found.dtype == torch.float32
    torch.testing.assert_close(
        found, expected.expand(2, -1, -1), rtol=0, atol=1e-5 if dtype == torch.float32 else 2e-3
    )
    assert len(field.seen) == 10
    for x in field.seen:
        assert x.shape[0] == 4 and x.dtype == torch.float32 and torch.equal(x[:2], x[2:])


@pytest.mark.unit
def test_the_limit_is_300_seconds() -> None:
    check_length(MAX_FRAMES)
    with pytest.raises(RequestError) as caught:
        check_length(MAX_FRAMES + 1)
    assert caught.value.code == "too_long"

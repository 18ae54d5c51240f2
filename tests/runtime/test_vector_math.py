"""NumPy's elementwise functions on tensors: right, in memory like what they were given, and quiet at the ends."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F

from inference.runtime.vector_math import exponential, mish, sine

pytestmark = pytest.mark.unit


@torch.inference_mode()
def test_sines_of_any_size() -> None:
    x = torch.cat((torch.linspace(-20.0, 20.0, 4001), torch.linspace(-3e4, 3e4, 4001)))
    assert torch.all((sine(x).double() - x.double().sin()).abs() <= 2e-7)


@torch.inference_mode()
def test_layout_and_input_stay_as_they_are() -> None:
    x = torch.randn(2, 6, 1, 50).contiguous(memory_format=torch.channels_last)
    before = x.clone()
    for function in (sine, exponential):
        found = function(x)
        assert found.stride() == x.stride() and torch.equal(x, before)
    torch.testing.assert_close(sine(x), torch.sin(x))
    torch.testing.assert_close(exponential(x[:, ::2]), torch.exp(x[:, ::2]))


@torch.inference_mode()
def test_the_ends_of_the_exponential_say_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = exponential(torch.tensor([-200.0, 0.0, 200.0]))
    assert found.tolist() == [0.0, 1.0, float("inf")]


@torch.inference_mode()
def test_a_result_does_not_depend_on_the_place() -> None:
    x = torch.randn(1003)
    for function in (sine, exponential, mish):
        whole = function(x)
        for start in (1, 5, 990):
            assert torch.equal(function(x[start : start + 7].clone()), whole[start : start + 7])


@torch.inference_mode()
def test_mish_far_from_zero() -> None:
    x = torch.cat((torch.linspace(-200.0, 200.0, 4001), torch.linspace(-5.0, 5.0, 4001)))
    expected = F.mish(x.double())
    assert torch.all((mish(x).double() - expected).abs() <= 3e-7 * (1 + x.abs()))
    assert torch.equal(mish(x.double()), expected)

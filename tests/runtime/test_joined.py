"""Several parameters as one tensor: the same values, held once."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from inference.runtime.joined import joined

pytestmark = pytest.mark.unit


def _parameters() -> list[nn.Parameter]:
    return [nn.Parameter(torch.randn(rows, 3)) for rows in (2, 4, 1)]


@pytest.mark.parametrize("inference", [False, True])
def test_parameters_become_parts_of_one_tensor(inference: bool) -> None:
    parameters = _parameters()
    expected = torch.cat([parameter.detach() for parameter in parameters])
    with torch.inference_mode(inference):
        whole = joined(parameters)
    assert torch.equal(whole, expected)
    with torch.no_grad():
        parameters[1].fill_(5.0)
    assert torch.equal(whole[2:6], torch.full((4, 3), 5.0)) and torch.equal(whole[:2], expected[:2])


def test_who_asks_again_gets_the_same_memory() -> None:
    parameters = _parameters()
    first, second = joined(parameters), joined(parameters)
    assert first.data_ptr() == second.data_ptr() and first.shape == second.shape
    assert joined(parameters[:1]).data_ptr() == first.data_ptr()
    assert joined(parameters[::-1]).data_ptr() != first.data_ptr()  # another order is another tensor


def test_a_copy_of_the_parameters_is_on_its_own() -> None:
    parameters = _parameters()
    whole = joined(parameters)
    copies = copy.deepcopy(parameters)
    other = joined(copies)
    assert torch.equal(other, whole) and other.data_ptr() != whole.data_ptr()


def test_parameters_without_memory_are_never_taken_for_one() -> None:
    parameters = [nn.Parameter(torch.empty(2, 3, device="meta")) for _ in range(2)]
    assert joined(parameters).shape == (4, 3)

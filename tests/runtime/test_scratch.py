"""Memory that programs of many sizes use in turn."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from inference.runtime.captured import Programs
from inference.runtime.scratch import Scratch

pytestmark = pytest.mark.unit

CPU = torch.device("cpu")


@dataclass
class Buffers:
    x: Tensor
    own: Tensor


def test_smaller_sizes_are_the_front_of_the_largest_and_zeroed() -> None:
    scratch = Scratch(CPU)
    large = scratch.zeros("x", 4, 6).fill_(7.0)
    small = scratch.zeros("x", 2, 3)
    assert small.is_contiguous() and small.data_ptr() == large.data_ptr()
    assert small.abs().sum() == 0 and large.flatten()[6:].eq(7.0).all()


def test_names_and_types_have_memory_of_their_own() -> None:
    scratch = Scratch(CPU)
    ones = scratch.zeros("x", 3).fill_(1.0)
    scratch.zeros("y", 3).fill_(2.0)
    scratch.zeros("x", 3, dtype=torch.int64).fill_(3)
    assert ones.eq(1.0).all()


def test_a_larger_size_leaves_the_smaller_ones_where_they_are() -> None:
    scratch = Scratch(CPU)
    small = scratch.zeros("x", 2).fill_(1.0)
    large = scratch.zeros("x", 8).fill_(2.0)
    assert small.eq(1.0).all() and scratch.zeros("x", 8).data_ptr() == large.data_ptr()


def test_what_programs_share_is_counted_once_and_given_back() -> None:
    programs: Programs[Buffers] = Programs(CPU, 8, graphs=False)

    def make(size: int) -> Buffers:
        return Buffers(programs.scratch.zeros("x", size), torch.zeros(2))

    for size in (100, 10, 50):
        programs.get(size, lambda size=size: make(size), lambda buffers: None)  # type: ignore[misc]
    assert programs.bytes() == 4 * 100 + 3 * 4 * 2
    old = programs.get(100, lambda: make(100), lambda buffers: None).buffers.x
    programs.clear()
    assert programs.bytes() == 0
    assert programs.scratch.zeros("x", 100).data_ptr() != old.data_ptr()

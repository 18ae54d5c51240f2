"""Uniform random numbers from a counter: (seed, step, draw) → [0, 1), the same on every device and in any batch."""

from __future__ import annotations

import torch
from torch import Tensor

from inference.models.counter_noise import FIRST, SECOND, STEP, mix, shift_right

_DRAWS = 2  # uniforms per step (SPEC 3.1)
_WORD = (1 << 64) - 1


def step_uniforms(seeds: Tensor, steps: Tensor) -> Tensor:
    """(B, 2) float64 in [0, 1) for seeds (B,) and steps (B,), both int64."""
    return keyed_uniforms(stream_keys(seeds), steps)


def stream_keys(seeds: Tensor) -> Tensor:
    """What `keyed_uniforms` needs of seeds (B,): the half of the work that is the same in every step."""
    return mix(seeds + STEP)


def stream_key(seed: int) -> int:
    """`stream_keys` of one seed, as a number: tensors of one element take a hundred times as long."""
    bits = (seed + STEP) & _WORD
    bits = ((bits ^ (bits >> 30)) * FIRST) & _WORD
    bits = ((bits ^ (bits >> 27)) * SECOND) & _WORD
    bits ^= bits >> 31
    return bits - (1 << 64) if bits >> 63 else bits


def keyed_uniforms(keys: Tensor, steps: Tensor) -> Tensor:
    """`step_uniforms` for `stream_keys`."""
    counters = steps[:, None] * _DRAWS + torch.arange(1, _DRAWS + 1, device=keys.device)
    bits = mix(keys[:, None] + counters * STEP)
    return shift_right(bits, 11).double() * 2.0**-53


def derive_seed(seed: int, part: int) -> int:
    """A seed in [0, 2**63) for one part (say, a text segment) of a request."""
    numbers = torch.tensor([seed, part], dtype=torch.int64)
    return int(shift_right(mix(mix(numbers[0] + STEP) + (numbers[1] + 1) * SECOND), 1))

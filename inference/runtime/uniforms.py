"""Uniform random numbers from a counter: (seed, step, draw) → [0, 1), the same on every device and in any batch."""

from __future__ import annotations

import torch
from torch import Tensor

_STEP = 0x9E3779B97F4A7C15 - (
    1 << 64
)  # SplitMix64's constants, as signed numbers: torch's int64 wraps around
_FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
_SECOND = 0x94D049BB133111EB - (1 << 64)
_DRAWS = 2  # uniforms per step (SPEC 3.1)


def step_uniforms(seeds: Tensor, steps: Tensor) -> Tensor:
    """(B, 2) float64 in [0, 1) for seeds (B,) and steps (B,), both int64."""
    counters = steps[:, None] * _DRAWS + torch.arange(1, _DRAWS + 1, device=seeds.device)
    bits = _mix(_mix(seeds[:, None] + _STEP) + counters * _STEP)
    return _shift(bits, 11).double() * 2.0**-53


def derive_seed(seed: int, part: int) -> int:
    """A seed in [0, 2**63) for one part (say, a text segment) of a request."""
    numbers = torch.tensor([seed, part], dtype=torch.int64)
    return int(_shift(_mix(_mix(numbers[0] + _STEP) + (numbers[1] + 1) * _SECOND), 1))


def _mix(bits: Tensor) -> Tensor:
    bits = (bits ^ _shift(bits, 30)) * _FIRST
    bits = (bits ^ _shift(bits, 27)) * _SECOND
    return bits ^ _shift(bits, 31)


def _shift(bits: Tensor, places: int) -> Tensor:
    """Logical shift to the right; torch's own keeps the sign."""
    return (bits >> places) & ((1 << (64 - places)) - 1)

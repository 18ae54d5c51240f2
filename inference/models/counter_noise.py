"""Random numbers that depend on a seed and a position only: no state, no neighbours, the same on every device."""

from __future__ import annotations

import torch
from torch import Tensor

# SplitMix64 (Steele, Lea, Flood 2014), as signed 64-bit numbers because torch multiplies only those everywhere.
STEP = 0x9E3779B97F4A7C15 - (1 << 64)
FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
SECOND = 0x94D049BB133111EB - (1 << 64)
_FIELD = 0xFFFF
_MEAN = 2.0 * _FIELD
_DEVIATION = ((65536.0**2 - 1.0) / 3.0) ** 0.5


def counter_normal(seeds: Tensor, starts: Tensor, count: int) -> Tensor:
    """(B, count) float32, nearly standard normal: values `starts[b]`, `starts[b] + 1`, … of the stream `seeds[b]`.

    seeds, starts: (B,) int64. Each value is the sum of four 16-bit uniforms of one 64-bit hash, hence integer
    arithmetic until the last step: CPU and CUDA give the same bits. |value| stays below 3.47.
    """
    positions = starts[:, None] + torch.arange(count, device=seeds.device)
    bits = mix(mix(seeds[:, None] * STEP) + positions * STEP)
    total = (bits & _FIELD) + ((bits >> 16) & _FIELD) + ((bits >> 32) & _FIELD) + ((bits >> 48) & _FIELD)
    return (total.float() - _MEAN) * (1.0 / _DEVIATION)


def mix(bits: Tensor) -> Tensor:
    """SplitMix64's finaliser, element by element on int64."""
    bits = (bits ^ shift_right(bits, 30)) * FIRST
    bits = (bits ^ shift_right(bits, 27)) * SECOND
    return bits ^ shift_right(bits, 31)


def shift_right(bits: Tensor, places: int) -> Tensor:
    """Logical shift to the right; torch's own keeps the sign."""
    return (bits >> places) & ((1 << (64 - places)) - 1)

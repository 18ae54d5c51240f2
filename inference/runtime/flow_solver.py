"""The flow's Euler solver with classifier-free guidance (SPEC 5.2) and its fixed noise (SPEC 5.5).

State, times, step sizes and the guidance combination are float32 whatever the network's dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

from inference.types import RequestError

MAX_FRAMES = 15000  # 300 s, prompt included
NOISE_SHA256 = "584a26e6eaad944407a96c5999aaa5cd0a6a359309a841eade68bf805c072322"
_NOISE_SEED = 0

VelocityStep = Callable[[Tensor, int], Tensor]


class VelocityBackend(Protocol):
    """Anything that evaluates the velocity network: the module itself, a compiled one, TensorRT."""

    def bind(
        self, mask: Tensor | None, mu: Tensor, spks: Tensor, cond: Tensor, times: Tensor, *, streaming: bool
    ) -> VelocityStep:
        """Fix the conditions of one solve; `step(x, k)` then gives the velocity (any float dtype) at `times[k]`."""
        ...


@dataclass(frozen=True)
class FlowConditions:
    """What the mel is made from. mu, cond (B, 80, T); speaker (B, 80); mask (B, 1, T) or None when unpadded."""

    mu: Tensor
    speaker: Tensor
    cond: Tensor
    mask: Tensor | None = None
    streaming: bool = False

    def guidance_pair(self) -> FlowConditions:
        """Batch of 2B: first everything as given, then everything zeroed (the unconditional half)."""
        return FlowConditions(
            torch.cat((self.mu, torch.zeros_like(self.mu))),
            torch.cat((self.speaker, torch.zeros_like(self.speaker))),
            torch.cat((self.cond, torch.zeros_like(self.cond))),
            None if self.mask is None else torch.cat((self.mask, self.mask)),
            self.streaming,
        )


@lru_cache(maxsize=8)
def fixed_noise(device: torch.device, bins: int = 80) -> Tensor:
    """(1, bins, 15000) float32: the noise every request starts from, never part of a checkpoint."""
    with torch.inference_mode(False):
        generator = torch.Generator().manual_seed(_NOISE_SEED)
        return torch.randn([1, bins, MAX_FRAMES], generator=generator, dtype=torch.float32).to(device)


@lru_cache(maxsize=8)
def time_grid(steps: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Times and step sizes of the cosine schedule, accumulated in float32 as the original does."""
    with torch.inference_mode(False):
        schedule = 1 - torch.cos(torch.linspace(0, 1, steps + 1, dtype=torch.float32) * 0.5 * torch.pi)
        times, sizes = [], []
        t, size = schedule[0], schedule[1] - schedule[0]
        for k in range(steps):
            times.append(float(t))
            sizes.append(float(size))
            t = t + size
            if k + 2 <= steps:
                size = schedule[k + 2] - t
        return tuple(times), tuple(sizes)


def check_length(frames: int) -> None:
    """Raises `RequestError("too_long")` when a mel would not fit the fixed noise."""
    if frames > MAX_FRAMES:
        raise RequestError(
            "too_long",
            f"The speech would be {frames / 50:.0f} s long with its reference; at most {MAX_FRAMES // 50} s "
            "can be made at once. Split the text into shorter pieces.",
            frames=frames,
            limit=MAX_FRAMES,
        )


def solve(
    backend: VelocityBackend,
    conditions: FlowConditions,
    *,
    steps: int,
    cfg_rate: float,
    noise: Tensor | None = None,
) -> Tensor:
    """Integrate from noise to mel in `steps` Euler steps: returns (B, 80, T) float32, prompt included.

    `noise` (1 or B, 80, T) replaces the fixed noise. Padded frames of the result are arbitrary.
    Raises `RequestError("too_long")`.
    """
    batch, bins, frames = conditions.mu.shape
    if noise is None:
        check_length(frames)
        noise = fixed_noise(conditions.mu.device, bins)[:, :, :frames]
    times, sizes = time_grid(steps)
    pair = conditions.guidance_pair()
    grid = torch.tensor(times, device=conditions.mu.device)
    step = backend.bind(pair.mask, pair.mu, pair.speaker, pair.cond, grid, streaming=pair.streaming)
    x = noise.float().expand(batch, -1, -1).clone()
    for k, size in enumerate(sizes):
        guided, free = step(torch.cat((x, x)), k).float().chunk(2)
        x = x + size * ((1.0 + cfg_rate) * guided - cfg_rate * free)
    return x

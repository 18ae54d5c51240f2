"""Losses of the vocoder: spectra at several resolutions, and the two sides of the adversarial game."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

# Bursts of consonants (11 ms), formants (27 ms), harmonics (67 ms); the discriminators see three other sizes.
STFT_SIZES = (256, 640, 1600)


@lru_cache(maxsize=16)
def _window(size: int, device: torch.device) -> Tensor:
    return torch.hann_window(size, device=device)


def magnitudes(wave: Tensor, size: int) -> Tensor:
    """(B, n) → STFT magnitudes (B, bins, frames) with a hop of a quarter window, centred, reflected at the edges."""
    padded = F.pad(wave, (size // 2, size // 2), mode="reflect")
    # As `torch.stft`, but the gradient of overlapping frames is gathered instead of added atomically.
    frames = padded.unfold(1, size, size // 4) * _window(size, wave.device)
    power = torch.view_as_real(torch.fft.rfft(frames)).square().sum(-1)
    return power.clamp_min(1e-9).sqrt().transpose(1, 2)


def spectral_loss(made: Tensor, real: Tensor) -> Tensor:
    """Spectral convergence plus log-magnitude distance, averaged over resolutions (Yamamoto et al. 2020)."""
    total = made.new_zeros(())
    for size in STFT_SIZES:
        found, wanted = magnitudes(made, size), magnitudes(real, size)
        total = total + torch.linalg.vector_norm(wanted - found) / torch.linalg.vector_norm(wanted)
        total = total + F.l1_loss(found.log(), wanted.log())
    return total / len(STFT_SIZES)


def discriminator_loss(real: Sequence[Tensor], made: Sequence[Tensor]) -> Tensor:
    """Least squares: real to 1, made to 0 (Mao et al. 2017)."""
    parts = [(1 - r.float()).square().mean() + m.float().square().mean() for r, m in zip(real, made)]
    return torch.stack(parts).sum()


def generator_loss(made: Sequence[Tensor]) -> Tensor:
    """Least squares: made to 1."""
    return torch.stack([(1 - m.float()).square().mean() for m in made]).sum()


def feature_loss(real: Sequence[Sequence[Tensor]], made: Sequence[Sequence[Tensor]]) -> Tensor:
    """Mean distance between the discriminators' inner features (Kong et al. 2020)."""
    pairs = [(r, m) for reals, mades in zip(real, made) for r, m in zip(reals, mades)]
    # The differences stay in the features' own precision: copies in float32 would double the traffic.
    return torch.stack([(m - r.detach()).abs().mean(dtype=torch.float32) for r, m in pairs]).mean()

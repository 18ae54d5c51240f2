"""Losses of the vocoder: spectra at several resolutions, and the two sides of the adversarial game."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

STFT_SIZES = (512, 1024, 2048)


@lru_cache(maxsize=16)
def _window(size: int, device: torch.device) -> Tensor:
    return torch.hann_window(size, device=device)


def magnitudes(wave: Tensor, size: int) -> Tensor:
    """(B, n) → STFT magnitudes (B, bins, frames) with a hop of a quarter window."""
    spectrum = torch.stft(
        wave, size, size // 4, window=_window(size, wave.device), center=True, return_complex=True
    )
    return torch.view_as_real(spectrum).square().sum(-1).clamp_min(1e-9).sqrt()


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
    distances = [F.l1_loss(m.float(), r.float().detach()) for r, m in pairs]
    return torch.stack(distances).mean()

"""What happens to speech on its way to a microphone, done to whole batches on the device.

Equaliser, band limits and rooms are one multiplication of the spectrum; noise and level come after it. Everything is
drawn per item, and a share of the items stays as it was.
"""

from __future__ import annotations

import torch
from torch import Tensor

_EQ_HZ = (0.0, 100.0, 300.0, 700.0, 1500.0, 3000.0, 5000.0, 7000.0, 8000.0)
_ROOM_SAMPLES = 6400  # 0.4 s at 16 kHz
_RATE = 16000


def _uniform(batch: int, low: float, high: float, device: torch.device) -> Tensor:
    return torch.rand(batch, 1, device=device) * (high - low) + low


def _chance(batch: int, probability: float, device: torch.device) -> Tensor:
    return torch.rand(batch, 1, device=device) < probability


def _equaliser(batch: int, hertz: Tensor) -> Tensor:
    """(B, F) amplitude factors: a random walk of 2.5 dB a step over nine frequencies, drawn straight between them."""
    points = torch.randn(batch, len(_EQ_HZ), device=hertz.device).mul(2.5).cumsum(1)
    points = points - points.mean(1, keepdim=True)
    knots = torch.tensor(_EQ_HZ, device=hertz.device)
    right = torch.bucketize(hertz, knots).clamp(1, len(_EQ_HZ) - 1)
    share = ((hertz - knots[right - 1]) / (knots[right] - knots[right - 1])).clamp(0.0, 1.0)
    return torch.pow(10.0, (points[:, right - 1] * (1 - share) + points[:, right] * share) / 20.0)


def _band_limits(batch: int, hertz: Tensor) -> Tensor:
    """(B, F): in a third of the items a steep low-pass (telephone at the least), in a fifth a high-pass."""
    device = hertz.device
    top = torch.where(_chance(batch, 0.33, device), _uniform(batch, 3400.0, 7600.0, device), 1e6)
    bottom = torch.where(_chance(batch, 0.2, device), _uniform(batch, 60.0, 300.0, device), 1e-3)
    low_pass = 1.0 / (1.0 + (hertz[None] / top).pow(24))
    high_pass = 1.0 / (1.0 + (bottom / hertz.clamp_min(1.0)[None]).pow(6))
    return low_pass * high_pass


def _rooms(batch: int, size: int, device: torch.device, probability: float) -> Tensor:
    """(B, F) complex: a direct path and a tail of decaying noise 8 to 25 dB below it, in a share of the items."""
    seconds = torch.arange(_ROOM_SAMPLES, device=device)[None] / _RATE
    decay = torch.exp(-6.9 * seconds / _uniform(batch, 0.1, 0.5, device))
    tail = torch.randn(batch, _ROOM_SAMPLES, device=device) * decay
    energy = tail.square().sum(1, keepdim=True).clamp_min(1e-9).sqrt()
    level = torch.pow(10.0, -_uniform(batch, 8.0, 25.0, device) / 20.0) * _chance(batch, probability, device)
    response = tail / energy * level
    response[:, 0] += 1.0
    spectrum: Tensor = torch.fft.rfft(response, n=size)
    return spectrum


def _noise(batch: int, size: int, hertz: Tensor) -> Tensor:
    """(B, size) of unit level: white, or falling with frequency (rooms, fans) in six of ten items."""
    spectrum = torch.fft.rfft(torch.randn(batch, size, device=hertz.device))
    pink = (hertz + 60.0).rsqrt()[None]
    shaped = torch.fft.irfft(
        torch.where(_chance(batch, 0.6, hertz.device), pink, torch.ones_like(pink)) * spectrum, n=size
    )
    return torch.div(shaped, shaped.square().mean(1, keepdim=True).clamp_min(1e-12).sqrt())


def augment(
    wave: Tensor, lengths: Tensor, clean_share: float = 0.15, noise_db: tuple[float, float] = (12.0, 38.0)
) -> Tensor:
    """wave: (B, n) at 16 kHz, lengths: (B,) samples; returns the same shape, silent past each length.

    `clean_share` of the items stay untouched; noise (in three of four) lies `noise_db` under the speech.
    """
    batch, samples = wave.shape
    device = wave.device
    size = -(-(samples + _ROOM_SAMPLES) // 2048) * 2048
    hertz = torch.linspace(0.0, _RATE / 2, size // 2 + 1, device=device)
    curve = torch.where(_chance(batch, 0.6, device), _equaliser(batch, hertz), torch.ones_like(hertz)[None])
    spectrum = (
        torch.fft.rfft(wave, n=size)
        * (curve * _band_limits(batch, hertz))
        * _rooms(batch, size, device, 0.25)
    )
    heard = torch.fft.irfft(spectrum, n=size)[:, :samples]
    inside = torch.arange(samples, device=device)[None] < lengths[:, None]
    level = (heard.square() * inside).sum(1, keepdim=True).div(lengths[:, None].clamp_min(1)).sqrt()
    quiet = torch.pow(10.0, -_uniform(batch, *noise_db, device) / 20.0) * _chance(batch, 0.75, device)
    heard = heard + _noise(batch, size, hertz)[:, :samples] * level * quiet
    heard = heard * torch.pow(10.0, _uniform(batch, -12.0, 6.0, device) / 20.0)
    peak = heard.abs().amax(1, keepdim=True).clamp_min(1.0)
    return torch.where(_chance(batch, clean_share, device), wave, heard / peak) * inside


def warp_bins(mel: Tensor, factors: Tensor) -> Tensor:
    """Move a log-mel (B, C, N) along its bins, as another vocal tract and pitch would: time stays as it is.

    factors: (B,), 1 = as it was, 1.1 = everything a tenth higher (in bins). Bins beyond the top repeat the last one.
    """
    count = mel.shape[1]
    places = (torch.arange(count, device=mel.device)[None] / factors[:, None]).clamp(0, count - 1)
    lower = places.floor().long().clamp(0, count - 2)
    share = (places - lower)[:, :, None]
    index = lower[:, :, None].expand(-1, -1, mel.shape[2])
    return mel.gather(1, index) * (1 - share) + mel.gather(1, index + 1) * share

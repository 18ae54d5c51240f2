"""From waveforms to what the models read: resampling and spectral features (SPEC 2.1 to 2.4).

Everything here is float32 on the device of its input, works on batches and is differentiable. Filters,
windows and resampling kernels are computed once per device and kept. Where the recorded values show that a
constant was computed in float32, so it is here: near silence the last bit of a window moves a log-mel by
1e-3.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from inference.frontend.audio import TOKENIZER_RATE
from inference.types import RequestError

MEL_RATE = 24000  # Hz, for the flow model's mel

_CPU = torch.device("cpu")
_LOWPASS_WIDTH = 6  # zero crossings of the sinc on each side
_ROLLOFF = 0.99  # cut-off as a share of the lower Nyquist frequency
_MAX_KERNEL_ELEMENTS = 1 << 21  # rate pairs with a larger polyphase kernel are resampled by gathering
_GATHER_ELEMENTS = 1 << 21  # taps evaluated at a time when gathering


# ---------------------------------------------------------------------------------------- resampling
def sinc_resample(wave: Tensor, from_hz: int, to_hz: int) -> Tensor:
    """Band-limited resampling with a Hann-windowed sinc (SPEC 2.1).

    wave: (..., n) float; returns (..., ceil(n * to_hz / from_hz)) of the same dtype. Equal to torchaudio's
    `Resample` with its default settings. Raises ValueError for rates below 1 Hz.
    """
    if from_hz < 1 or to_hz < 1:
        raise ValueError(f"sample rates must be positive, not {from_hz} and {to_hz}")
    divisor = math.gcd(from_hz, to_hz)
    old, new = from_hz // divisor, to_hz // divisor
    if old == new or wave.shape[-1] == 0:
        return wave
    flat = wave.reshape(-1, wave.shape[-1])
    if (old + 2 * _sinc_width(old, new)) * new <= _MAX_KERNEL_ELEMENTS:
        result = _resample_by_convolution(flat, old, new)
    else:
        result = _resample_by_gathering(flat, old, new)
    return result.reshape(*wave.shape[:-1], result.shape[-1])


def _sinc_width(old: int, new: int) -> int:
    """Samples of the old rate that the windowed sinc reaches on each side."""
    return math.ceil(_LOWPASS_WIDTH * old / (min(old, new) * _ROLLOFF))


def _windowed_sinc(seconds: Tensor, old: int, new: int) -> Tensor:
    """Filter value at a distance from the output sample, in units in which the old rate is `old`."""
    cutoff = min(old, new) * _ROLLOFF
    crossings = (seconds * cutoff).clamp(-_LOWPASS_WIDTH, _LOWPASS_WIDTH)
    window = torch.cos(crossings * (math.pi / (2 * _LOWPASS_WIDTH))).square()
    return torch.sinc(crossings) * window * (cutoff / old)


@lru_cache(maxsize=32)
def _polyphase_kernel(old: int, new: int, device: torch.device) -> Tensor:
    """(new, 1, old + 2 * width) float32: one filter for each of the `new` output phases."""
    with torch.inference_mode(False):
        width = _sinc_width(old, new)
        taps = torch.arange(-width, width + old, dtype=torch.float64) / old
        phases = (torch.arange(new) / new).double()  # rounded to float32 first, as in the recorded values
        kernel = _windowed_sinc(taps[None, :] - phases[:, None], old, new)
        return kernel[:, None, :].to(device, torch.float32)


def _resample_by_convolution(wave: Tensor, old: int, new: int) -> Tensor:
    width = _sinc_width(old, new)
    length = math.ceil(wave.shape[-1] * new / old)
    padded = F.pad(wave[:, None, :], (width, width + old))
    phases = F.conv1d(padded, _polyphase_kernel(old, new, wave.device).to(wave.dtype), stride=old)
    return phases.transpose(1, 2).reshape(wave.shape[0], -1)[:, :length]


def _resample_by_gathering(wave: Tensor, old: int, new: int) -> Tensor:
    """The same filter for odd rate pairs (44101 to 16000 Hz): their table of phases would take gigabytes."""
    width = _sinc_width(old, new)
    length = math.ceil(wave.shape[-1] * new / old)
    padded = F.pad(wave, (width, width + 1))
    taps = torch.arange(-width, width + 2, device=wave.device)
    rows = max(1, _GATHER_ELEMENTS // (taps.numel() * wave.shape[0]))
    pieces = []
    for start in range(0, length, rows):
        outputs = torch.arange(start, min(start + rows, length), device=wave.device)
        block, phase = outputs // new, outputs % new
        nearest = phase * old // new  # within the block
        # Divided by a tensor: by a number CUDA multiplies with its inverse, which rounds differently.
        share = (phase / torch.full_like(phase, new)).double()
        distance = (nearest[:, None] + taps).double() / old - share[:, None]
        source = padded[:, (block * old + nearest)[:, None] + taps + width]
        pieces.append(torch.einsum("bok,ok->bo", source, _windowed_sinc(distance, old, new).to(wave.dtype)))
    return torch.cat(pieces, dim=-1)


# --------------------------------------------------------------------------------------- mel filters
def _hz_to_slaney_mel(hz: Tensor) -> Tensor:
    """Linear up to 1 kHz (3 mel per 200 Hz), then 27 mel per factor 6.4."""
    logarithmic = 15.0 + torch.log(hz.clamp_min(1000.0) / 1000.0) * (27.0 / math.log(6.4))
    return torch.where(hz < 1000.0, hz * 0.015, logarithmic)


def _slaney_mel_to_hz(mel: Tensor) -> Tensor:
    logarithmic = 1000.0 * torch.exp((mel.clamp_min(15.0) - 15.0) * (math.log(6.4) / 27.0))
    return torch.where(mel < 15.0, mel / 0.015, logarithmic)


def _triangles(points: Tensor, edges: Tensor) -> Tensor:
    """(filters, points): triangles between neighbouring edges, height 1."""
    left, centre, right = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising = (points - left) / (centre - left)
    falling = (right - points) / (right - centre)
    return torch.minimum(rising, falling).clamp_min(0.0)


@lru_cache(maxsize=16)
def slaney_filterbank(
    rate: int, n_fft: int, filters: int, high_hz: float, device: torch.device = _CPU
) -> Tensor:
    """(filters, n_fft // 2 + 1) float32: triangles of equal area on Slaney's mel scale up to `high_hz`."""
    with torch.inference_mode(False):
        limits = _hz_to_slaney_mel(torch.tensor([0.0, high_hz], dtype=torch.float64))
        edges = _slaney_mel_to_hz(
            torch.linspace(float(limits[0]), float(limits[1]), filters + 2, dtype=torch.float64)
        )
        bins = torch.arange(n_fft // 2 + 1, dtype=torch.float64) * (rate / n_fft)
        equal_area = 2.0 / (edges[2:] - edges[:-2])
        return (_triangles(bins, edges) * equal_area[:, None]).to(device, torch.float32)


@lru_cache(maxsize=16)
def _hann(size: int, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.hann_window(size, dtype=torch.float32).to(device)


# ------------------------------------------------------------------------------------------ features
def whisper_log_mel(wave: Tensor) -> Tensor:
    """Log-mel for the speech tokenizer (SPEC 2.2).

    wave: (B, n) at 16 kHz, n > 200; returns (B, 128, n // 160). The floor lies 8 decades under each item's
    own maximum. Raises RequestError("audio_too_short") where one frame does not fit.
    """
    _require_samples(wave, 201, TOKENIZER_RATE)
    spectrum = torch.stft(
        wave, 400, 160, window=_hann(400, wave.device), center=True, pad_mode="reflect", return_complex=True
    )
    power = torch.view_as_real(spectrum[..., :-1]).square().sum(-1)
    mel = slaney_filterbank(TOKENIZER_RATE, 400, 128, 8000.0, wave.device) @ power
    decades = mel.clamp_min(1e-10).log10()
    floor = decades.amax(dim=(1, 2), keepdim=True) - 8.0
    return (torch.maximum(decades, floor) + 4.0) / 4.0


def log_mel_24k(wave: Tensor) -> Tensor:
    """Natural-log mel for the flow model (SPEC 2.4).

    wave: (B, n) at 24 kHz, n > 720; returns (B, 80, n // 480). Raises RequestError("audio_too_short").
    """
    _require_samples(wave, 721, MEL_RATE)
    padded = F.pad(wave, (720, 720), mode="reflect")
    spectrum = torch.stft(
        padded, 1920, 480, window=_hann(1920, wave.device), center=False, return_complex=True
    )
    magnitude = (torch.view_as_real(spectrum).square().sum(-1) + 1e-9).sqrt()
    mel = slaney_filterbank(MEL_RATE, 1920, 80, 8000.0, wave.device) @ magnitude
    return mel.clamp_min(1e-5).log()


def kaldi_fbank(wave: Tensor, subtract_mean: bool = True) -> Tensor:
    """Kaldi's log filter bank for the speaker encoder (SPEC 2.3).

    wave: (n,) or (B, n) at 16 kHz in [-1, 1], n >= 400; returns (N, 80) or (B, N, 80) with N = 1 + (n - 400)
    // 160, by default less the mean over time of each bin. Raises RequestError("audio_too_short").
    """
    _require_samples(wave, 400, TOKENIZER_RATE)
    frames = wave.unfold(-1, 400, 160)
    frames = frames - frames.mean(dim=-1, keepdim=True)
    before = torch.cat([frames[..., :1], frames[..., :-1]], dim=-1)
    shaped = (frames - 0.97 * before) * _povey_window(wave.device)
    power = torch.fft.rfft(shaped, n=512).abs().square()
    energies = power @ _kaldi_filterbank(wave.device).T
    features: Tensor = energies.clamp_min(torch.finfo(torch.float32).eps).log()
    return features - features.mean(dim=-2, keepdim=True) if subtract_mean else features


@lru_cache(maxsize=8)
def _povey_window(device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.hann_window(400, periodic=False, dtype=torch.float32).pow(0.85).to(device)


@lru_cache(maxsize=8)
def _kaldi_filterbank(device: torch.device) -> Tensor:
    """(80, 257) float32: triangles on mel = 1127 ln(1 + f / 700) from 20 Hz to 8 kHz, without the Nyquist bin."""
    with torch.inference_mode(False):
        low, high = (1127.0 * math.log(1.0 + hz / 700.0) for hz in (20.0, 8000.0))
        edges = low + torch.arange(82, dtype=torch.float32) * ((high - low) / 81)
        bins = torch.arange(256, dtype=torch.float32) * (TOKENIZER_RATE / 512)
        return F.pad(_triangles(1127.0 * (1.0 + bins / 700.0).log(), edges), (0, 1)).to(device)


def _require_samples(wave: Tensor, samples: int, rate: int) -> None:
    if wave.shape[-1] < samples:
        raise RequestError(
            "audio_too_short",
            f"The audio is {wave.shape[-1] / rate:.3f} s long; at least {samples / rate:.3f} s are needed.",
            seconds=wave.shape[-1] / rate,
        )

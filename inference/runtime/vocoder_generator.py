"""The convolutions that the packed vocoder runs: in half precision or compiled, and how far they are from float32's."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from inference.models.vocoder import Snake, Vocoder, snake
from inference.runtime.fused import Fused
from inference.runtime.precision import relative_error


def make_generator(vocoder: Vocoder, dtype: torch.dtype, compiled: bool) -> Vocoder:
    """The convolutions to use: a copy where it differs from `vocoder` itself."""
    if dtype == torch.float32 and not compiled:
        return vocoder
    generator = half_generator(vocoder, dtype)
    if compiled:
        compile_activations(generator)
    return generator


def half_generator(vocoder: Vocoder, dtype: torch.dtype) -> Vocoder:
    """A copy whose convolutions are in `dtype`; F0, source, Snake's slopes and the last layer stay float32."""
    generator = copy.deepcopy(vocoder).to(dtype)
    for part in (generator.f0_predictor, generator.m_source, generator.fourier, generator.conv_post):
        part.float()
    for module in generator.modules():
        if isinstance(module, Snake):
            module.float()
    return generator


def compile_activations(generator: Vocoder) -> None:
    """Fuse each Snake activation into one kernel."""
    fused = Fused(snake, dynamic=True)
    for module in generator.modules():
        if isinstance(module, Snake):
            module.compute = fused


def generator_error(vocoder: Vocoder, generator: Vocoder) -> float:
    """How far `generator`'s spectrum is from float32's, relative 2-norm, for a fixed voiced mel and one source.

    Of what the last convolution gives (log magnitudes, and what a sine turns into phases), since that is rounding
    alone: sound is 4 to 5 times further off where magnitudes are large and phases wild, as with random weights.
    """
    mel, excitation = voiced_probe(vocoder)
    dtype = generator.conv_pre.weight.dtype
    with torch.inference_mode():
        found = generator.convolve(mel.to(dtype), excitation.to(dtype), *_unmasked(vocoder))
        return relative_error(found, exact_spectrum(vocoder, mel, excitation))


def voiced_probe(vocoder: Vocoder, frames: int = 64) -> tuple[Tensor, Tensor]:
    """A fixed voiced mel (1, bins, frames) and the spectrum of its source."""
    device = vocoder.conv_pre.weight.device
    count = frames * vocoder.cfg.mel_bins
    mel = torch.linspace(-9.0, 0.0, count, device=device).view(1, frames, -1).transpose(1, 2)
    with torch.inference_mode():
        f0 = torch.full((1, frames), 150.0, device=device)
        source, _ = vocoder.source(f0, vocoder.from_start(mel))
        return mel, vocoder.fourier.transform(source[:, 0])


def exact_spectrum(vocoder: Vocoder, mel: Tensor, excitation: Tensor) -> Tensor:
    """`Vocoder.convolve` of items without padding in true float32."""
    with torch.inference_mode(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        return vocoder.convolve(mel, excitation, *_unmasked(vocoder))


def _unmasked(vocoder: Vocoder) -> tuple[list[Tensor | None], Callable[[Tensor], Tensor]]:
    return [None] * (len(vocoder.cfg.upsample_rates) + 1), lambda x: F.pad(x, (1, 0), mode="reflect")

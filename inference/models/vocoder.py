"""HiFT vocoder: mel (80 bins, 50 frames a second) to 24 kHz sound (SPEC 6). Everything is float32.

Parameter names are those of `hift.pt` once weight norm is folded (see `weight_norm`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inference.models.config import VocoderConfig
from inference.models.f0 import F0Predictor
from inference.models.masks import valid_positions
from inference.models.source import Excitation, HarmonicSource
from inference.models.spectral import ShortFourier
from inference.models.weight_norm import fold_weight_norm
from inference.types import EngineError

__all__ = ["ResBlock", "Snake", "SpectrumBackend", "Vocoder", "fold_weight_norm"]

_FINAL_SLOPE = 0.01  # torch's default, unlike the other activations (SPEC 6.3)
_MAX_MAGNITUDE = 100.0


class SpectrumBackend(Protocol):
    """Computes `Vocoder.convolve` of items without padding: mel (B, 80, T), source spectrum (B, 18, 120*T + 1), both
    float32 → (B, 18, 120*T + 1)."""

    def __call__(self, mel: Tensor, excitation: Tensor) -> Tensor: ...


def _masked(x: Tensor, mask: Tensor | None) -> Tensor:
    # Chosen, not multiplied: what is not finite must not reach a neighbour as 0 * NaN.
    return x if mask is None else torch.where(mask, x, 0.0)


def snake(x: Tensor, alpha: Tensor, mask: Tensor | None) -> Tensor:
    """x + sin²(αx) / α, 0 where masked. x (B, C, T), alpha (C,), mask (B, 1, T) bool or None → like x.

    With float32 α a half-precision x is only rounded at the end.
    """
    x = _masked(x, mask)
    alpha = alpha[:, None]
    return (x + torch.sin(x * alpha).square() / (alpha + 1e-9)).to(x.dtype)


class Snake(nn.Module):
    """`snake` with one learnt α a channel. `compute` may be replaced by a compiled version."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(channels))
        self.compute: Callable[[Tensor, Tensor, Tensor | None], Tensor] = snake

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, C, T) → (B, C, T)."""
        return self.compute(x, self.alpha, mask)


class ResBlock(nn.Module):
    """Pairs of Snake-activated convolutions, the first of each pair dilated."""

    def __init__(self, channels: int, kernel: int, dilations: tuple[int, ...]) -> None:
        super().__init__()
        self.convs1 = nn.ModuleList(
            nn.Conv1d(channels, channels, kernel, dilation=d, padding=(kernel - 1) * d // 2)
            for d in dilations
        )
        self.convs2 = nn.ModuleList(
            nn.Conv1d(channels, channels, kernel, padding=(kernel - 1) // 2) for _ in dilations
        )
        self.activations1 = nn.ModuleList(Snake(channels) for _ in dilations)
        self.activations2 = nn.ModuleList(Snake(channels) for _ in dilations)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """x (B, C, T), mask (B, 1, T) bool or None → (B, C, T). Snake keeps 0 at 0, so masking before it is enough."""
        layers = zip(self.convs1, self.convs2, self.activations1, self.activations2)
        for dilated, plain, first, second in layers:
            y = dilated(first(x, mask))
            x = plain(second(y, mask)) + x
        return x


class Vocoder(nn.Module):
    """Mel to sound. `forward` for whole use; `f0`, `source`, `decode` one by one for streams and training."""

    def __init__(self, cfg: VocoderConfig) -> None:
        super().__init__()
        self.cfg = cfg
        # Used by `decode` of unpadded float32 items; of the weights as they are when it is set (see `backends`).
        self.backend: SpectrumBackend | None = None
        self.kernels = True  # packed batches on CUDA may run on Triton's kernels (see `vocoder_choice`)
        self.f0_predictor = F0Predictor(cfg.mel_bins, cfg.f0_channels)
        self.m_source = HarmonicSource(cfg)
        self.fourier = ShortFourier(cfg.istft_n_fft, cfg.istft_hop)
        self.conv_pre = nn.Conv1d(cfg.mel_bins, cfg.base_channels, 7, padding=3)
        self.ups, self.source_downs = nn.ModuleList(), nn.ModuleList()
        self.source_resblocks, self.resblocks = nn.ModuleList(), nn.ModuleList()
        for stage in range(len(cfg.upsample_rates)):
            self._add_stage(stage)
        channels = cfg.base_channels >> len(cfg.upsample_rates)
        self.conv_post = nn.Conv1d(channels, 2 * self.fourier.bins, 7, padding=3)

    def _add_stage(self, stage: int) -> None:
        cfg = self.cfg
        rate, kernel = cfg.upsample_rates[stage], cfg.upsample_kernel_sizes[stage]
        channels = cfg.base_channels >> (stage + 1)
        self.ups.append(
            nn.ConvTranspose1d(2 * channels, channels, kernel, rate, padding=(kernel - rate) // 2)
        )
        left = 1
        for later in cfg.upsample_rates[stage + 1 :]:
            left *= later
        width = 2 * self.fourier.bins
        if left == 1:
            self.source_downs.append(nn.Conv1d(width, channels, 1))
        else:
            self.source_downs.append(nn.Conv1d(width, channels, 2 * left, left, padding=left // 2))
        self.source_resblocks.append(
            ResBlock(
                channels, cfg.source_resblock_kernel_sizes[stage], cfg.source_resblock_dilation_sizes[stage]
            )
        )
        for size, dilations in zip(cfg.resblock_kernel_sizes, cfg.resblock_dilation_sizes):
            self.resblocks.append(ResBlock(channels, size, dilations))

    # ------------------------------------------------------------------------------------------------ whole
    def forward(
        self,
        mel: Tensor,
        lengths: Tensor | None = None,
        *,
        seeds: Tensor | None = None,
        noise: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """mel (B, 80, T) → sound (B, 480*T) in ±0.99 and its source (B, 1, 480*T).

        lengths (B,) frames, or None when no item is padded (faster): a padded item gets what it gets alone, and zeros
        after its end. seeds (B,) int64 choose each item's noise (default 0). noise (B, 480*T, 9) standard normal
        replaces it and makes the source as the original does. Raises `EngineError("empty_mel")`.
        """
        mel = mel.float()
        f0 = self.f0(mel, lengths)
        if noise is not None:
            source = self.m_source.exact(f0, noise.float())
        else:
            source, _ = self.source(f0, self.from_start(mel, seeds))
        if lengths is not None:
            source = source * valid_positions(lengths * self.cfg.hop, source.shape[2])[:, None]
        return self.decode(mel, source, lengths), source

    def from_start(self, mel: Tensor, seeds: Tensor | None = None) -> Excitation:
        """The excitation of items that begin at their frame 0 and end with their last."""
        zeros = torch.zeros(mel.shape[0], dtype=torch.int64, device=mel.device)
        return Excitation(zeros if seeds is None else seeds, zeros)

    # ------------------------------------------------------------------------------------------------ parts
    def f0(self, mel: Tensor, lengths: Tensor | None = None) -> Tensor:
        """mel (B, 80, T) → F0 (B, T) in Hz, 0 past each length. Raises `EngineError("empty_mel")`."""
        if mel.shape[2] == 0:
            raise EngineError("empty_mel", "The vocoder was given a mel spectrogram without frames.")
        found: Tensor = self.f0_predictor(mel, self._frame_mask(lengths, mel.shape[2]))
        return found

    def source(self, f0: Tensor, excitation: Excitation) -> tuple[Tensor, Tensor]:
        """f0 (B, T) → source (B, 1, 480*T) and the phases (B, T, 9) at frame centres, in cycles."""
        with torch.autocast(f0.device.type, enabled=False):
            found: tuple[Tensor, Tensor] = self.m_source(f0.float(), excitation)
        return found

    def decode(self, mel: Tensor, source: Tensor, lengths: Tensor | None = None) -> Tensor:
        """mel (B, 80, T), source (B, 1, 480*T), lengths (B,) frames or None → sound (B, 480*T)."""
        with torch.autocast(mel.device.type, enabled=False):
            spectrum = self.spectrum(mel.float(), source.float(), lengths)
            return self.to_sound(spectrum, lengths)

    def spectrum(self, mel: Tensor, source: Tensor, lengths: Tensor | None = None) -> Tensor:
        """The convolutions of `decode`, up to (B, 18, 120*T + 1). Training may run them under autocast."""
        samples = None if lengths is None else lengths * self.cfg.hop
        with torch.autocast(mel.device.type, enabled=False):
            excitation = self.fourier.transform(source[:, 0].float(), samples)
        if self.backend is not None and lengths is None and not torch.is_grad_enabled():
            return self.backend(mel, excitation)
        masks: list[Tensor | None] = [self._frame_mask(lengths, mel.shape[2])]
        scale = 1
        for rate in self.cfg.upsample_rates[:-1]:
            scale *= rate
            masks.append(None if lengths is None else self._frame_mask(lengths * scale, mel.shape[2] * scale))
        masks.append(self._fourier_mask(lengths, excitation.shape[2]))
        return self.convolve(mel, excitation, masks, lambda x: F.pad(x, (1, 0), mode="reflect"))

    def convolve(
        self,
        mel: Tensor,
        excitation: Tensor,
        masks: Sequence[Tensor | None],
        lengthen: Callable[[Tensor], Tensor],
    ) -> Tensor:
        """mel (B, 80, T), source spectrum (B, 18, 120*T + 1) → (B, 18, 120*T + 1) float32.

        masks: bool, True inside an item, for the mel and behind each stage's upsampling (None: all is inside).
        `lengthen` puts the mirrored sample before each item in the last stage: (B, C, 120*T) → (B, C, 120*T + 1).
        """
        excitation = _masked(excitation, masks[-1])
        x = self.conv_pre(_masked(mel, masks[0]))
        last = len(self.ups) - 1
        for stage, up in enumerate(self.ups):
            x = up(F.leaky_relu(_masked(x, masks[stage]), self.cfg.lrelu_slope))
            if stage == last:
                x = lengthen(x)
            x = self._stage(x, excitation, stage, masks[stage + 1])
        with torch.autocast(mel.device.type, enabled=False):  # log magnitudes need more than half precision
            found: Tensor = self.conv_post(F.leaky_relu(_masked(x.float(), masks[-1]), _FINAL_SLOPE))
        return found

    def to_sound(self, spectrum: Tensor, lengths: Tensor | None = None) -> Tensor:
        """(B, 18, 120*T + 1): log magnitudes, then what a sine turns into phases → sound (B, 480*T)."""
        wave = self.invert(spectrum, self._fourier_mask(lengths, spectrum.shape[2]))
        if lengths is None:
            return wave
        return wave * valid_positions(lengths * self.cfg.hop, wave.shape[1])

    def invert(self, spectrum: Tensor, mask: Tensor | None = None) -> Tensor:
        """`to_sound` with a mask of the spectrum's frames (B, 1, 120*T + 1) bool; arbitrary outside the items."""
        with torch.autocast(spectrum.device.type, enabled=False):
            magnitude, phase = spectrum.float().chunk(2, dim=1)
            magnitude, phase = magnitude.exp().clamp_max(_MAX_MAGNITUDE), torch.sin(phase)
            full = torch.cat((magnitude * torch.cos(phase), magnitude * torch.sin(phase)), dim=1)
            return self.fourier.invert(full, mask).clamp(-self.cfg.audio_limit, self.cfg.audio_limit)

    def _stage(self, x: Tensor, excitation: Tensor, stage: int, mask: Tensor | None) -> Tensor:
        """Add the source's part, then the mean of the stage's parallel blocks."""
        x = x + self.source_resblocks[stage](self.source_downs[stage](excitation), mask)
        count = len(self.cfg.resblock_kernel_sizes)
        blocks = self.resblocks[stage * count : (stage + 1) * count]
        total: Tensor = blocks[0](x, mask)
        for block in blocks[1:]:
            total = total + block(x, mask)
        return total / count

    def _frame_mask(self, lengths: Tensor | None, size: int) -> Tensor | None:
        return None if lengths is None else valid_positions(lengths, size)[:, None]

    def _fourier_mask(self, lengths: Tensor | None, size: int) -> Tensor | None:
        if lengths is None:
            return None
        return self._frame_mask(lengths * (self.cfg.hop // self.cfg.istft_hop) + 1, size)

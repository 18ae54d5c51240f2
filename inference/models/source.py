"""Harmonic excitation of the vocoder: from F0 to a sum of sines and noise (SPEC 6.2). float32 throughout."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inference.models.config import VocoderConfig
from inference.models.counter_noise import counter_normal


@dataclass(frozen=True)
class Excitation:
    """What surrounds a stretch of speech whose source is computed on its own.

    seeds (B,) int64 and first_frame (B,) int64 place the stretch in its request's noise. `anchor` (frame, cycles
    (B, harmonics)) fixes the phases at the centre of one frame; None starts at frame 0. `open_end` says that speech
    goes on after the last frame, so that the phases run on instead of resting there.
    """

    seeds: Tensor
    first_frame: Tensor
    anchor: tuple[int, Tensor] | None = None
    open_end: bool = False


class HarmonicSource(nn.Module):
    """Nine sines, voiced or not, with noise, mixed down to one signal. Key: `l_linear`."""

    def __init__(self, cfg: VocoderConfig) -> None:
        super().__init__()
        self.l_linear = nn.Linear(cfg.nb_harmonics + 1, 1)
        self._hop = cfg.hop
        self._rate = cfg.sample_rate
        self._amplitude = cfg.nsf_alpha
        self._sigma = cfg.nsf_sigma
        self._threshold = cfg.nsf_voiced_threshold

    def forward(self, f0: Tensor, excitation: Excitation) -> tuple[Tensor, Tensor]:
        """f0 (B, T) Hz, 0 past an item's end → source (B, 1, hop*T) and phases (B, T, harmonics).

        The phases, in cycles at frame centres, feed the next stretch's `anchor`. They are summed in float64 and
        taken modulo 1, so that the tenth minute is as clean as the first second.
        """
        cycles, slope = self._cycles(f0, excitation)
        # Independent noise on each harmonic only ever reaches the mix as one normal value: draw that one.
        noise = counter_normal(excitation.seeds, excitation.first_frame * self._hop, f0.shape[1] * self._hop)
        return self.render(f0, cycles, slope[:, :-1], slope[:, 1:], noise), cycles

    def render(self, f0: Tensor, cycles: Tensor, before: Tensor, after: Tensor, noise: Tensor) -> Tensor:
        """f0 (B, T), phases at frame centres (B, T, harmonics), noise (B, hop*T) → source (B, 1, hop*T).

        `before`, `after` (B, T, harmonics): cycles between a frame's centre and its neighbours' centres.
        """
        phase = self._spread(cycles, before, after)
        sines = torch.sin(phase * (2.0 * math.pi)) * self._amplitude
        voiced = self._per_sample(f0 > self._threshold)
        mixed = self.l_linear(sines * voiced[..., None]).squeeze(-1)
        mixed = mixed + self._noise_level(voiced) * self.l_linear.weight.norm() * noise
        return torch.tanh(mixed)[:, None]

    def exact(self, f0: Tensor, noise: Tensor) -> Tensor:
        """f0 (B, T), noise (B, hop*T, harmonics) standard normal → source (B, 1, hop*T), as the original computes it.

        Phases are summed in float32 in frame order, which is what the recorded values need.
        """
        return torch.tanh(self.l_linear(self.exact_sines(f0, noise))).transpose(1, 2)

    def exact_sines(self, f0: Tensor, noise: Tensor) -> Tensor:
        """(B, hop*T, harmonics): the sines with their noise, before they are mixed."""
        summed = torch.cumsum(self.frame_turns(f0), dim=1) * (2.0 * math.pi)
        phase = F.interpolate(
            summed.transpose(1, 2) * self._hop,
            scale_factor=float(self._hop),
            mode="linear",
            align_corners=False,
        )
        voiced = self._per_sample(f0 > self._threshold)[..., None]
        sines = torch.sin(phase.transpose(1, 2)) * self._amplitude
        return sines * voiced + self._noise_level(voiced) * noise

    def frame_turns(self, f0: Tensor) -> Tensor:
        """(B, T, harmonics): cycles each harmonic makes in one sample, modulo 1."""
        harmonics = torch.arange(1, self.l_linear.in_features + 1, device=f0.device, dtype=f0.dtype)
        return torch.remainder(f0[:, :, None] * harmonics / self._rate, 1.0)

    def _cycles(self, f0: Tensor, excitation: Excitation) -> tuple[Tensor, Tensor]:
        """Phases modulo 1 at frame centres, and cycles from each centre to the one before (T + 1 of them)."""
        steps = self.frame_turns(f0) * self._hop
        total = steps.double().cumsum(dim=1)
        if excitation.anchor is not None:
            frame, cycles = excitation.anchor
            total = total - total[:, frame : frame + 1] + cycles.double()[:, None]
        held = torch.zeros_like(steps[:, :1])
        after = steps[:, -1:] if excitation.open_end else held
        slope = torch.cat((held if excitation.anchor is None else steps[:, :1], steps[:, 1:], after), dim=1)
        return torch.remainder(total, 1.0).to(f0.dtype), slope

    def _spread(self, cycles: Tensor, before: Tensor, after: Tensor) -> Tensor:
        """Straight lines between frame centres: (B, T, H) each → (B, hop*T, H) cycles."""
        half = self._hop // 2
        time = (torch.arange(self._hop, device=cycles.device, dtype=cycles.dtype) + 0.5) / self._hop - 0.5
        first = cycles[:, :, None] + before[:, :, None] * time[:half, None]
        second = cycles[:, :, None] + after[:, :, None] * time[half:, None]
        return torch.cat((first, second), dim=2).flatten(1, 2)

    def _per_sample(self, frames: Tensor) -> Tensor:
        return frames.float().repeat_interleave(self._hop, dim=1)

    def _noise_level(self, voiced: Tensor) -> Tensor:
        return voiced * self._sigma + (1.0 - voiced) * (self._amplitude / 3.0)

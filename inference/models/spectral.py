"""The vocoder's small Fourier transforms as matrix products: float32, exportable, masked per item (SPEC 6.3)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ShortFourier(nn.Module):
    """STFT and inverse STFT of `n_fft` samples with a periodic Hann window, centred, reflected at the edges.

    Holds no parameters. `hop` must divide `n_fft`.
    """

    analysis: Tensor
    synthesis: Tensor
    energy: Tensor

    def __init__(self, n_fft: int, hop: int) -> None:
        super().__init__()
        if n_fft % hop:
            raise ValueError(f"hop {hop} does not divide n_fft {n_fft}")
        self.n_fft, self.hop, self.bins = n_fft, hop, n_fft // 2 + 1
        cpu = torch.device("cpu")  # real values even when the module is built on the meta device
        window = torch.hann_window(n_fft, dtype=torch.float64, device=cpu)
        turns = torch.outer(torch.arange(n_fft, device=cpu), torch.arange(self.bins, device=cpu))
        angle = turns.double() * (2.0 * math.pi / n_fft)
        twice = torch.full((self.bins,), 2.0, dtype=torch.float64, device=cpu)
        twice[0] = twice[-1] = 1.0  # all other bins stand for their mirror image too
        forward = torch.cat((torch.cos(angle), -torch.sin(angle)), dim=1) * window[:, None]
        backward = torch.cat((torch.cos(angle) * twice, -torch.sin(angle) * twice), dim=1) / n_fft
        for name, value in (
            ("analysis", forward),
            ("synthesis", (backward * window[:, None]).T.contiguous()),
            ("energy", window.square()),
        ):
            self.register_buffer(name, value.float(), persistent=False)

    def transform(self, signal: Tensor, lengths: Tensor | None = None) -> Tensor:
        """signal (B, n), lengths (B,) samples or None → (B, 2 * bins, n / hop + 1): real parts, then imaginary ones.

        The right edge is reflected at each item's own end. Frames past it are not meaningful.
        """
        edge = self.n_fft // 2
        if lengths is None:
            padded = F.pad(signal[:, None], (edge, edge), mode="reflect")[:, 0]
        else:
            places = torch.arange(-edge, signal.shape[1] + edge, device=signal.device).abs()[None]
            last = (lengths - 1)[:, None]
            mirrored = torch.where(places > last, 2 * last - places, places)
            padded = signal.gather(1, mirrored.clamp(0, signal.shape[1] - 1))
        return (padded.unfold(1, self.n_fft, self.hop) @ self.analysis).transpose(1, 2)

    def invert(self, spectrum: Tensor, frame_mask: Tensor | None = None) -> Tensor:
        """spectrum (B, 2 * bins, frames), frame_mask (B, 1, frames) bool or None → (B, (frames - 1) * hop) samples."""
        windowed = spectrum.transpose(1, 2) @ self.synthesis
        if frame_mask is None:
            energy = self.energy.expand(1, spectrum.shape[2], -1)
        else:
            keep = frame_mask.transpose(1, 2)
            windowed, energy = torch.where(keep, windowed, 0.0), self.energy * keep
        return self._overlap(windowed) / self._overlap(energy).clamp_min(1e-11)

    def _overlap(self, frames: Tensor) -> Tensor:
        """Add up overlapping frames (B, count, n_fft) and cut half a window at both ends."""
        parts = self.n_fft // self.hop
        slices = frames.unflatten(2, (parts, self.hop))
        count = frames.shape[1]
        total = sum(F.pad(slices[:, :, k], (0, 0, k, parts - 1 - k)) for k in range(parts))
        edge = self.n_fft // 2
        return torch.as_tensor(total).flatten(1)[:, edge : edge + (count - 1) * self.hop]

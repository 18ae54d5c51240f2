"""What the vocoder is trained on: random crops of sound with their pitch, and mels as a flow model hands them over."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from training.audio_store import F0_HOP, AudioStore

COARSE_FRAMES, COARSE_BINS = 5, 8  # extent of one step of the coarse errors of a mel


class Crops:
    """Batches of crops of `frames` mel frames from all shards of a folder, drawn and gathered on the device.

    Engines are drawn with the square root of their number of utterances, so that rare ones are heard too. Nothing
    here waits for the device.
    """

    def __init__(self, folder: Path, device: torch.device, batch: int, frames: int, seed: int) -> None:
        self.store = AudioStore(folder, device)
        self._device, self._batch, self._frames = device, batch, frames
        self._random = torch.Generator(device).manual_seed(seed)
        self._cumulative = torch.zeros(0, dtype=torch.float64, device=device)
        self._table = torch.zeros(0, 3, dtype=torch.int64, device=device)
        self.refresh()
        if not len(self._table):
            raise SystemExit(f"no shard-*.npz with long enough utterances to train on in {folder}")

    def refresh(self) -> None:
        """Take in shards that have arrived meanwhile."""
        if not self.store.scan(limit=12):
            return
        entries = [self.store.utterances[i] for i in self.store.of_split("train")]
        entries = [entry for entry in entries if entry.samples >= self._frames * F0_HOP]
        if not entries:
            return
        counts = Counter(entry.engine for entry in entries)
        weights = np.cumsum([counts[entry.engine] ** -0.5 for entry in entries])
        table = [
            (entry.start, entry.f0_start, entry.samples // F0_HOP - self._frames + 1) for entry in entries
        ]
        self._cumulative = torch.from_numpy(weights / weights[-1]).to(self._device)
        self._table = torch.tensor(table, dtype=torch.int64, device=self._device)

    def draw(self) -> tuple[Tensor, Tensor]:
        """Sound (B, 480*frames) at random levels, and pitch (B, frames) in Hz, 0 where unvoiced."""
        frame, f0_place = self._places()
        samples = torch.arange(self._frames * F0_HOP, device=self._device)
        wave = self.store.audio[frame[:, None] + samples].float() / 32768.0
        steps = torch.arange(self._frames, device=self._device)
        normal = torch.randn(len(wave), 1, device=self._device, generator=self._random)
        gain = torch.exp(0.35 * normal).clamp_max(3.0)
        gain = torch.minimum(gain, 0.95 / wave.abs().amax(1, keepdim=True).clamp_min(1e-3))
        return wave * gain, self.store.f0[f0_place[:, None] + steps].float()

    def _places(self) -> tuple[Tensor, Tensor]:
        """Where crops start: (B,) in the flat audio and (B,) in the flat F0."""
        share = torch.rand(2, self._batch, device=self._device, generator=self._random, dtype=torch.float64)
        picks = torch.searchsorted(self._cumulative, share[0]).clamp_max(len(self._table) - 1)
        start, f0_start, choices = self._table[picks].unbind(1)
        frame = torch.minimum((share[1] * choices).long(), choices - 1)
        return start + frame * F0_HOP, f0_start + frame


def _smoothed(x: Tensor) -> Tensor:
    """(B, C, T): mean of three neighbours along the last dimension."""
    return F.avg_pool1d(F.pad(x, (1, 1), mode="replicate"), 3, stride=1)


def _blurred(x: Tensor) -> Tensor:
    """(B, C, T): triangle of five neighbours."""
    return _smoothed(_smoothed(x))


def _coarse(mel: Tensor, random: torch.Generator | None) -> Tensor:
    """Normal noise of the mel's shape that changes slowly over time and bins: errors of the envelope."""
    bins, frames = -(-mel.shape[1] // COARSE_BINS) + 1, -(-mel.shape[2] // COARSE_FRAMES) + 1
    grid = torch.randn(len(mel), 1, bins, frames, device=mel.device, generator=random)
    return F.interpolate(grid, mel.shape[1:], mode="bilinear", align_corners=True)[:, 0]


def disturbed(mel: Tensor, random: torch.Generator | None = None) -> Tensor:
    """A log-mel (B, 80, T) as a flow model might hand it over; about a fifth of the items stay as they are.

    A third is blurred over time, over bins or both, as an average of likely mels is; three in ten get a wrong
    envelope; half get noise in every cell.
    """
    share = torch.rand(7, len(mel), 1, 1, device=mel.device, generator=random)
    over_time = torch.lerp(mel, _blurred(mel), 0.8 * share[0] * (share[2] < 0.25))
    over_bins = _smoothed(over_time.transpose(1, 2)).transpose(1, 2)
    changed = torch.lerp(over_time, over_bins, 0.7 * share[1] * ((share[2] > 0.15) & (share[2] < 0.35)))
    changed = changed + 0.15 * share[3] * (share[4] < 0.3) * _coarse(mel, random)
    noise = torch.randn(mel.shape, device=mel.device, generator=random)
    return changed + 0.12 * share[5] * (share[6] < 0.5) * noise

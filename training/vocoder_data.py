"""What the vocoder is trained on: random crops of sound with their pitch, and mels as a flow model hands them over."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from training.audio_store import F0_HOP, AudioStore, BalancedSampler


class Crops:
    """Batches of crops of `frames` mel frames from all shards of a folder, gathered on the device."""

    def __init__(self, folder: Path, device: torch.device, batch: int, frames: int, seed: int) -> None:
        self.store = AudioStore(folder, device)
        self._device, self._batch, self._frames, self._seed = device, batch, frames, seed
        self._rng = np.random.default_rng(seed)
        self._scans = 0
        self.refresh()
        if not self.store.utterances:
            raise SystemExit(f"no shard-*.npz in {folder}")

    def refresh(self) -> None:
        """Take in shards that have arrived meanwhile."""
        if self.store.scan(limit=12):
            longest = self._frames * F0_HOP
            train = [i for i in self.store.of_split("train") if self.store.utterances[i].samples >= longest]
            self._sampler = BalancedSampler(self.store, train, self._seed + self._scans)
            self._scans += 1

    def draw(self) -> tuple[Tensor, Tensor]:
        """Sound (B, 480*frames) at random levels, and pitch (B, frames) in Hz, 0 where unvoiced."""
        starts, pitch_starts = [], []
        for index in self._sampler.draw(self._batch, spread=1):
            entry = self.store.utterances[index]
            frame = int(self._rng.integers(0, entry.samples // F0_HOP - self._frames + 1))
            starts.append(entry.start + frame * F0_HOP)
            pitch_starts.append(entry.f0_start + frame)
        lengths = np.full(len(starts), self._frames * F0_HOP, dtype=np.int64)
        wave = self.store.gather(np.array(starts, dtype=np.int64), lengths)
        steps = torch.arange(self._frames, device=self._device)
        places = torch.tensor(pitch_starts, device=self._device)[:, None] + steps
        gain = torch.exp(0.35 * torch.randn(len(wave), 1, device=self._device)).clamp_max(3.0)
        gain = torch.minimum(gain, 0.95 / wave.abs().amax(1, keepdim=True).clamp_min(1e-3))
        return wave * gain, self.store.f0[places].float()


def _smoothed(x: Tensor) -> Tensor:
    """(B, C, T): mean of three neighbours along the last dimension."""
    return F.avg_pool1d(F.pad(x, (1, 1), mode="replicate"), 3, stride=1)


def disturbed(mel: Tensor) -> Tensor:
    """A log-mel (B, 80, T) as a flow model might hand it over: most items noisy, a third smoothed over time or bins."""
    share = torch.rand(5, len(mel), 1, 1, device=mel.device)
    over_bins = _smoothed(mel.transpose(1, 2)).transpose(1, 2)
    smooth = torch.where(share[0] < 0.5, _smoothed(mel), over_bins)
    mel = torch.lerp(mel, smooth, 0.7 * share[1] * (share[2] < 0.35))
    return mel + 0.12 * share[3] * (share[4] < 0.7) * torch.randn_like(mel)

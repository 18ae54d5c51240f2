"""Training audio as flat tensors on the device: shards are appended as the generator writes them."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

RATE = 24000  # Hz
F0_HOP = 480  # samples between values of F0


@dataclass(frozen=True)
class Utterance:
    """What is known about one utterance; `start` and `samples` lie in the flat audio, `f0_start` in the flat F0."""

    start: int
    samples: int
    f0_start: int
    text: str
    language: str
    engine: str
    speaker: str
    split: str
    phones: str


class AudioStore:
    """All shards of a folder. `scan` may be called again at any time."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        self.folder = folder
        self.device = device
        self.audio = torch.zeros(0, dtype=torch.int16, device=device)
        self.f0 = torch.zeros(0, dtype=torch.float16, device=device)
        self.utterances: list[Utterance] = []
        self._seen: set[str] = set()

    def scan(self, limit: int = 0) -> int:
        """Append shards not yet read, at most `limit` of them (0 = all); returns the number of new utterances."""
        before = len(self.utterances)
        fresh = [path for path in sorted(self.folder.glob("shard-*.npz")) if path.name not in self._seen]
        if fresh:
            self.read(*fresh[: limit or None])
        return len(self.utterances) - before

    def read(self, *paths: Path) -> None:
        """Append these shards."""
        pieces, tracks = [self.audio], [self.f0]
        samples, frames = self.audio.numel(), self.f0.numel()
        for path in paths:
            self._seen.add(path.name)
            with np.load(path) as shard:
                audio, f0 = shard["audio"], shard["f0"]
                meta = json.loads(str(shard["meta"]))
                self._append(meta, shard["audio_offsets"], shard["f0_offsets"], samples, frames)
            pieces.append(torch.from_numpy(audio).to(self.device))
            tracks.append(torch.from_numpy(f0).to(self.device))
            samples, frames = samples + len(audio), frames + len(f0)
        self.audio, self.f0 = torch.cat(pieces), torch.cat(tracks)

    def _append(
        self,
        meta: list[dict[str, str]],
        audio_offsets: npt.NDArray[np.int64],
        f0_offsets: npt.NDArray[np.int64],
        samples: int,
        frames: int,
    ) -> None:
        for i, entry in enumerate(meta):
            self.utterances.append(
                Utterance(
                    start=samples + int(audio_offsets[i]),
                    samples=int(audio_offsets[i + 1] - audio_offsets[i]),
                    f0_start=frames + int(f0_offsets[i]),
                    text=entry["text"],
                    language=entry["lang"],
                    engine=entry["engine"],
                    speaker=entry["speaker"],
                    split=entry["split"],
                    phones=entry.get("phones", ""),
                )
            )

    def of_split(self, split: str) -> list[int]:
        """Indices of a split's utterances."""
        return [i for i, entry in enumerate(self.utterances) if entry.split == split]

    def hours(self) -> float:
        return self.audio.numel() / RATE / 3600.0

    def gather(self, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> Tensor:
        """(B, longest) float32 in [-1, 1): stretches of the flat audio, zero past each length or outside of it."""
        begin = torch.from_numpy(starts).to(self.device)[:, None]
        count = torch.from_numpy(lengths).to(self.device)[:, None]
        offsets = torch.arange(int(lengths.max()), device=self.device)[None, :]
        places = begin + offsets
        valid = (offsets < count) & (places >= 0) & (places < self.audio.numel())
        return self.audio[places.clamp(0, self.audio.numel() - 1)].float() * (valid / 32768.0)


class BalancedSampler:
    """Draws batches of similar length in which rare engines appear more often than their share.

    Weights go with the square root of an engine's count: one with few speakers must be heard, not only counted.
    """

    def __init__(self, store: AudioStore, indices: list[int], seed: int) -> None:
        self._generator = np.random.default_rng(seed)
        self._indices = np.array(indices, dtype=np.int64)
        self._samples = np.array([store.utterances[i].samples for i in indices], dtype=np.int64)
        engines = [store.utterances[i].engine for i in indices]
        counts = Counter(engines)
        weights = np.array([counts[engine] ** -0.5 for engine in engines])
        self._cumulative = np.cumsum(weights / weights.sum())

    def draw(self, size: int, spread: int = 4) -> list[int]:
        """`size` utterances: of `spread` times as many drawn, a run of neighbours by length."""
        picks = np.searchsorted(self._cumulative, self._generator.random(size * spread)).clip(
            0, len(self._indices) - 1
        )
        ordered = picks[np.argsort(self._samples[picks], kind="stable")]
        block = int(self._generator.integers(0, spread))
        return [int(self._indices[i]) for i in ordered[block * size : (block + 1) * size]]

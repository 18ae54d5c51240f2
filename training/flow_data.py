"""The flow trainer's data: tokens, mels and speaker vectors as flat tensors on the device.

Mels are computed once, when a shard arrives; a training step only gathers. A batch has one of few fixed
sizes, so that compiled code is reused.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from inference.frontend.features import log_mel_24k

SAMPLES_PER_TOKEN = 960  # at 24 kHz
SHORTEST = 12  # tokens; shorter utterances are left out
_MEL_GROUP = 32  # utterances whose mels are computed together
_EDGE = 960  # samples mirrored behind an utterance's end, more than the transform looks at

Ints = npt.NDArray[np.int64]


class FlowBatch(NamedTuple):
    """The first `prompt` tokens of an item (two frames each) are given, the rest is learnt."""

    tokens: Tensor  # (B, S) int64
    mel: Tensor  # (B, 80, 2S) float32
    lengths: Tensor  # (B,) tokens
    prompt: Tensor  # (B,) tokens
    speaker: Tensor  # (B, 192) float32


@dataclass(frozen=True)
class PromptMix:
    """Shares of the items with a prompt from another utterance of the speaker, and from their own start."""

    joined: float = 0.55
    own: float = 0.25


def mirrored_mels(audio: Tensor, offsets: Ints, order: Ints) -> list[Tensor]:
    """Log-mels (frames, 80) float16 of the utterances `order` of one shard, each as if transformed alone.

    audio (n,) int16. Behind its end every utterance is continued by its mirror image, as the transform does.
    """
    starts, counts = offsets[order], offsets[order + 1] - offsets[order]
    begin = torch.from_numpy(starts).to(audio.device)[:, None]
    last = torch.from_numpy(counts - 1).to(audio.device)[:, None]
    place = torch.arange(int(counts.max()) + _EDGE, device=audio.device)[None]
    place = torch.where(place > last, (2 * last - place).clamp_min(0), place)
    mels = log_mel_24k(audio[begin + place].float() / 32768.0).transpose(1, 2).half()
    return [mels[row, : int(count) // 480] for row, count in enumerate(counts)]


class FlowCorpus:
    """Every shard of a folder that has its features. `scan` may be called again at any time."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        self.folder = folder
        self.device = device
        self.mel = torch.zeros(0, 2, 80, dtype=torch.float16, device=device)  # by token
        self.tokens = torch.zeros(0, dtype=torch.int32, device=device)
        self.vectors = torch.zeros(0, 192, dtype=torch.float16, device=device)
        self.starts: Ints = np.zeros(0, np.int64)  # in tokens
        self.counts: Ints = np.zeros(0, np.int64)
        self.speakers: list[str] = []
        self.engines: list[str] = []
        self.splits: list[str] = []
        self._seen: set[str] = set()

    def __len__(self) -> int:
        return len(self.counts)

    def hours(self) -> float:
        return self.tokens.numel() / 25 / 3600

    def scan(self, limit: int = 0) -> int:
        """Append shards not yet read, at most `limit` (0 = all); returns the number of new utterances."""
        before, read = len(self), 0
        mels, tokens, vectors = [self.mel], [self.tokens], [self.vectors]
        for path in sorted(self.folder.glob("features-*.npz")):
            shard = self.folder / path.name.replace("features-", "shard-", 1)
            if path.name in self._seen or not shard.exists():
                continue
            if limit and read == limit:
                break
            self._seen.add(path.name)
            read += 1
            mel, token, vector = self._read(shard, path)
            mels.append(mel)
            tokens.append(token)
            vectors.append(vector)
        if read:
            self.mel, self.tokens, self.vectors = torch.cat(mels), torch.cat(tokens), torch.cat(vectors)
        return len(self) - before

    def _read(self, shard_path: Path, features_path: Path) -> tuple[Tensor, Tensor, Tensor]:
        with np.load(shard_path) as shard, np.load(features_path) as features:
            audio = torch.from_numpy(shard["audio"]).to(self.device)
            offsets: Ints = shard["audio_offsets"].astype(np.int64)
            meta = json.loads(str(shard["meta"]))
            tokens, token_offsets = features["tokens"], features["token_offsets"].astype(np.int64)
            vectors = features["speaker_vectors"]
        counts = np.minimum(np.diff(token_offsets), np.diff(offsets) // SAMPLES_PER_TOKEN)
        kept = np.flatnonzero(counts >= SHORTEST)
        mels = self._mels(audio, offsets, kept)
        pieces = [tokens[token_offsets[i] : token_offsets[i] + counts[i]] for i in kept]
        base = int(self.counts.sum())
        counts = counts[kept]
        self.starts = np.concatenate((self.starts, base + np.cumsum(counts) - counts))
        self.counts = np.concatenate((self.counts, counts))
        for i in kept:
            self.speakers.append(meta[i]["speaker"])
            self.engines.append(meta[i]["engine"])
            self.splits.append(meta[i]["split"])
        flat = np.concatenate(pieces) if pieces else np.zeros(0)
        mel = [mels[int(i)][: 2 * n].reshape(-1, 2, 80) for i, n in zip(kept, counts)]
        return (
            torch.cat(mel) if mel else self.mel[:0],
            torch.from_numpy(flat.astype(np.int32)).to(self.device),
            torch.from_numpy(vectors[kept].astype(np.float16)).to(self.device),
        )

    @staticmethod
    def _mels(audio: Tensor, offsets: Ints, kept: Ints) -> dict[int, Tensor]:
        found: dict[int, Tensor] = {}
        by_length = kept[np.argsort(np.diff(offsets)[kept], kind="stable")]
        for first in range(0, len(by_length), _MEL_GROUP):
            order = by_length[first : first + _MEL_GROUP]
            found.update(zip(order.tolist(), mirrored_mels(audio, offsets, order)))
        return found

    def used_ids(self) -> Tensor:
        """Token ids that occur, sorted, on the CPU."""
        output: Tensor = self.tokens.unique().cpu()
        return output

    def mean_mel(self) -> Tensor:
        """(80,) float32 mean over all frames."""
        mean: Tensor = self.mel.mean(dim=(0, 1), dtype=torch.float32)
        return mean


class FlowSampler:
    """Draws batches of one split; engines count with the square root of their number of utterances."""

    def __init__(self, corpus: FlowCorpus, split: str, seed: int, mix: PromptMix = PromptMix()) -> None:
        self._corpus = corpus
        self._mix = mix
        self._generator = np.random.default_rng(seed)
        self._chosen = np.array([i for i, name in enumerate(corpus.splits) if name == split], np.int64)
        number = Counter(corpus.engines[i] for i in self._chosen)
        weights = np.array([number[corpus.engines[i]] ** -0.5 for i in self._chosen])
        self._cumulative = np.cumsum(weights / max(weights.sum(), 1e-9))
        self._group_by_speaker()

    def __len__(self) -> int:
        return len(self._chosen)

    def _group_by_speaker(self) -> None:
        names = [self._corpus.speakers[i] for i in self._chosen]
        index = {name: k for k, name in enumerate(sorted(set(names)))}
        self._speaker = np.array([index[name] for name in names], np.int64)
        self._by_speaker = np.argsort(self._speaker, kind="stable")
        self._group_size = np.bincount(self._speaker, minlength=len(index))
        self._group_start = np.cumsum(self._group_size) - self._group_size

    def _partners(self, picks: Ints) -> Ints:
        """For each position in `_chosen` another of the same speaker (itself if the speaker has no other)."""
        group = self._speaker[picks]
        member = self._generator.integers(0, self._group_size[group])
        found = self._by_speaker[self._group_start[group] + member]
        same = found == picks
        following = (member + 1) % self._group_size[group]
        return np.where(same, self._by_speaker[self._group_start[group] + following], found)

    def draw(self, batch: int, size: int) -> FlowBatch:
        """`batch` items of at most `size` tokens, prompt included."""
        draw = self._generator.random
        picks = np.searchsorted(self._cumulative, draw(batch)).clip(0, len(self._chosen) - 1)
        partners, voices = self._partners(picks), self._partners(picks)
        target, other = self._chosen[picks], self._chosen[partners]
        length, other_length = self._corpus.counts[target], self._corpus.counts[other]
        kind = draw(batch)
        joined = (kind < self._mix.joined) & (other != target)
        wanted = np.maximum((0.2 + 0.4 * draw(batch)) * size, size - length).astype(np.int64)
        head = np.where(joined, np.minimum(np.minimum(wanted, other_length), size - SHORTEST), 0)
        body = np.minimum(length, size - head)
        own = ~joined & (kind < self._mix.joined + self._mix.own)
        beginning = ((0.05 + 0.35 * draw(batch)) * body).astype(np.int64)
        prompt = np.where(joined, head, np.where(own, beginning, 0))
        head_start = self._corpus.starts[other] + (draw(batch) * (other_length - head + 1)).astype(np.int64)
        # Half of the targets begin where their utterance begins, as all do at inference.
        skipped = (draw(batch) * (length - body + 1) * (draw(batch) < 0.5)).astype(np.int64)
        body_start = self._corpus.starts[target] + skipped
        voice = np.where(draw(batch) < 0.5, target, self._chosen[voices])
        return self._gather(np.stack((head, body, prompt, head_start, body_start, voice)), size)

    def _gather(self, plan: Ints, size: int) -> FlowBatch:
        device = self._corpus.device
        host = torch.from_numpy(plan)
        if device.type == "cuda":
            host = host.pin_memory()
        head, body, prompt, head_start, body_start, voice = host.to(device, non_blocking=True).unbind()
        place = torch.arange(size, device=device)[None]
        inside = place < head[:, None]
        source = torch.where(inside, head_start[:, None] + place, (body_start - head)[:, None] + place)
        lengths = head + body
        source = torch.where(place < lengths[:, None], source, 0)
        mel = self._corpus.mel[source].flatten(1, 2).float().transpose(1, 2)
        return FlowBatch(
            self._corpus.tokens[source].long(), mel, lengths, prompt, self._corpus.vectors[voice].float()
        )

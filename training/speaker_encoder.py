"""Trains the speaker encoder: like resemblyzer's network in what it hears, and able to tell the training voices apart.

    python -m training.speaker_encoder --data DATA --out OUT --minutes 2.4 --device cuda

The teacher hears the clean utterance, the student a stretch of 1 to 6 s of it with noise, equaliser, band limits and
rooms. Reading a batch at another rate makes another speaker of each (pitch and formants move together).
"""

from __future__ import annotations

import argparse
import copy
import json
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inference.frontend.features import kaldi_fbank, sinc_resample
from training.audio_store import AudioStore, BalancedSampler
from training.augment import augment
from training.exact_features import fbanks, waves_16k
from training.export_onnx import export_speaker
from training.speaker_model import SPEAKER_SIZE, SpeakerNetwork, save_speaker
from training.speaker_teacher import DEFAULT_FILE, TEACHER_SIZE, SpeakerTeacher
from training.wall_clock import WallClock

PEAK_RATE = 2e-3
SPEAKER_CAPACITY = 8192
RATES = (20400, 22800, 24000, 24000, 24000, 25200, 27600)
MARGIN = 0.15
SCALE = 30.0
TEACHER_WEIGHT = 4.0
GEOMETRY_WEIGHT = 4.0
EMA_DECAY = 0.995


class SpeakerLosses(nn.Module):
    """Projection to the teacher's space and one direction per training speaker."""

    def __init__(self) -> None:
        super().__init__()
        self.to_teacher = nn.Linear(SPEAKER_SIZE, TEACHER_SIZE)
        self.speakers = nn.Parameter(torch.randn(SPEAKER_CAPACITY, SPEAKER_SIZE) * 0.1)
        self.numbers: dict[str, int] = {}

    def label(self, name: str) -> int:
        """A speaker's number, given out in order of appearance; -100 (ignored) once the table is full."""
        if name not in self.numbers and len(self.numbers) < SPEAKER_CAPACITY:
            self.numbers[name] = len(self.numbers)
        return self.numbers.get(name, -100)

    def forward(self, vectors: Tensor, labels: Tensor, teacher: Tensor) -> dict[str, Tensor]:
        """vectors: (B, 192); labels: (B,); teacher: (B, 256) of length 1."""
        directions = F.normalize(vectors, dim=1)
        known = max(1, len(self.numbers))
        cosine = directions @ F.normalize(self.speakers[:known], dim=1).T
        rows = torch.arange(len(labels), device=labels.device)
        margin = torch.zeros_like(cosine).index_put(
            (rows, labels.clamp_min(0)), torch.tensor(MARGIN, device=labels.device)
        )
        likeness = directions @ directions.T
        teacher_likeness = teacher @ teacher.T
        return {
            "classes": F.cross_entropy(SCALE * (cosine - margin), labels, ignore_index=-100),
            "teacher": 1.0 - (F.normalize(self.to_teacher(directions), dim=1) * teacher).sum(1).mean(),
            "geometry": (likeness - (teacher_likeness * 2.0 - 1.0)).square().mean(),
        }


def crops(wave: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """One length of 1 to 6 s for the batch, a random place in each item; shorter items repeat from their start."""
    size = int(np.random.uniform(1.0, 6.0) * 16000)
    room = (lengths - size).clamp_min(0)
    begin = (torch.rand(len(lengths), device=wave.device) * room).long()
    places = (begin[:, None] + torch.arange(size, device=wave.device)) % lengths[:, None]
    return wave.gather(1, places), torch.full_like(lengths, size)


class Trainer:
    """Student, its averaged copy, losses and teacher."""

    def __init__(self, args: argparse.Namespace) -> None:
        torch.manual_seed(args.seed)
        np.random.seed(args.seed)
        self.device = torch.device(args.device)
        self.args = args
        self.teacher = SpeakerTeacher.load(args.teacher).to(self.device)
        self.network = SpeakerNetwork().to(self.device)
        self.average = copy.deepcopy(self.network).eval()
        self.losses = SpeakerLosses().to(self.device)
        self.optimiser = torch.optim.AdamW(
            [*self.network.parameters(), *self.losses.parameters()], lr=PEAK_RATE, weight_decay=0.01
        )

    def step(self, store: AudioStore, batch: list[int], rate: float) -> dict[str, Tensor]:
        """One update; returns the losses, still on the device."""
        for group in self.optimiser.param_groups:
            group["lr"] = PEAK_RATE * rate
        pretended = int(np.random.choice(RATES))
        entries = [store.utterances[i] for i in batch]
        samples = np.array([entry.samples for entry in entries], dtype=np.int64)
        starts = np.array([entry.start for entry in entries], dtype=np.int64)
        names = [f"{entry.engine}/{entry.speaker}/{pretended}" for entry in entries]
        labels = torch.tensor([self.losses.label(name) for name in names], device=self.device)
        with torch.no_grad():
            wave = sinc_resample(store.gather(starts, samples), pretended, 16000)
            lengths = torch.from_numpy(samples * 16000 // pretended).to(self.device)
            teacher = self.teacher.embed(wave, lengths)
            cut, cut_lengths = crops(wave, lengths)
            features = kaldi_fbank(augment(cut, cut_lengths))
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.device.type == "cuda"):
            vectors = self.network(features)
        losses: dict[str, Tensor] = self.losses(vectors.float(), labels, teacher)
        total = losses["classes"] + TEACHER_WEIGHT * losses["teacher"] + GEOMETRY_WEIGHT * losses["geometry"]
        self.optimiser.zero_grad(set_to_none=True)
        total.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 5.0)
        self.optimiser.step()
        self._follow()
        return {name: value.detach() for name, value in losses.items()}

    @torch.no_grad()
    def _follow(self) -> None:
        """Move the averaged copy towards the student; statistics of the norms are copied."""
        for slow, fast in zip(self.average.parameters(), self.network.parameters()):
            slow.lerp_(fast, 1.0 - EMA_DECAY)
        for average, current in zip(self.average.buffers(), self.network.buffers()):
            average.copy_(current)


def train(args: argparse.Namespace) -> None:
    """The whole run, ending with the averaged weights and the ONNX file on disk."""
    trainer = Trainer(args)
    store = AudioStore(args.data, trainer.device)
    store.scan()
    sampler = BalancedSampler(store, store.of_split("train"), args.seed)
    clock = WallClock(args.minutes, args.limit_steps)
    sums: dict[str, Tensor] = {}
    step = counted = 0
    last_line = last_save = last_scan = 0.0
    print(f"{len(store.utterances)} utterances, {store.hours():.2f} h", flush=True)
    while not clock.done(step):
        for name, value in trainer.step(store, sampler.draw(args.batch), clock.rate(step)).items():
            sums[name] = sums.get(name, torch.zeros_like(value)) + value
        step += 1
        counted += 1
        now = clock.elapsed()
        if now - last_line > 10.0:
            shown = " ".join(f"{name} {float(value) / counted:.4f}" for name, value in sums.items())
            speakers = len(trainer.losses.numbers)
            print(
                f"step {step} {now:.0f}s {counted / (now - last_line):.2f} it/s {speakers} speakers {shown}",
                flush=True,
            )
            sums, counted, last_line = {}, 0, now
        if now - last_scan > 15.0:
            last_scan = now
            if store.scan():
                sampler = BalancedSampler(store, store.of_split("train"), args.seed + step)
        if now - last_save > 60.0:
            save_speaker(args.out / "speaker.pt", trainer.average)
            last_save = now
    network = trainer.average.cpu()
    export_speaker(network, args.out / "campplus.onnx")  # rounds the weights to what the file holds
    save_speaker(args.out / "speaker.pt", network)
    result = {"steps": step, **report(network.to(trainer.device), store)}
    (args.out / "speaker.json").write_text(json.dumps(result, indent=1))
    print(json.dumps(result), flush=True)


@torch.no_grad()
def report(network: SpeakerNetwork, store: AudioStore, most: int = 12) -> dict[str, float]:
    """Equal-error rate in per cent over pairs of unseen utterances, and mean cosine of same and different speakers."""
    counts: dict[str, int] = {}
    chosen = []
    for i, entry in enumerate(store.utterances):
        name = f"{entry.engine}/{entry.speaker}"
        if entry.split != "train" and counts.get(name, 0) < most:
            counts[name] = counts.get(name, 0) + 1
            chosen.append(i)
    chosen = chosen[:1500]
    if len(chosen) < 4:
        return {}
    vectors, names = [], []
    for i in chosen:
        wave, lengths = waves_16k(store, [i])
        vectors.append(network(fbanks(wave, lengths)[0]))
        names.append(f"{store.utterances[i].engine}/{store.utterances[i].speaker}")
    directions = F.normalize(torch.cat(vectors), dim=1)
    likeness = (directions @ directions.T).cpu().numpy()
    upper = np.triu_indices(len(names), 1)
    owners = np.array(names)
    same = (owners[:, None] == owners[None, :])[upper]
    scores = likeness[upper]
    thresholds = np.linspace(-1.0, 1.0, 401)
    missed = np.array([(scores[same] < t).mean() for t in thresholds]) if same.any() else np.ones(401)
    taken = np.array([(scores[~same] >= t).mean() for t in thresholds]) if (~same).any() else np.ones(401)
    best = int(np.abs(missed - taken).argmin())
    return {
        "equal_error_rate": round(float(50.0 * (missed[best] + taken[best])), 2),
        "cosine_same": round(float(scores[same].mean()), 3) if same.any() else 0.0,
        "cosine_different": round(float(scores[~same].mean()), 3) if (~same).any() else 0.0,
        "unseen_utterances": float(len(chosen)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--teacher", type=Path, default=DEFAULT_FILE)
    parser.add_argument("--minutes", type=float, default=2.4)
    parser.add_argument("--batch", type=int, default=96)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit-steps", type=int, default=0)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    train(args)


if __name__ == "__main__":
    main()

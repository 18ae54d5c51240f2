"""Trains the speech tokenizer's head on a frozen Whisper front.

    python -m training.speech_tokenizer --data DATA --out OUT --minutes 3.6 --device cuda

Two differently treated views of each utterance are encoded together. Both must tell the phones (CTC) and the pitch
movement through the rounded digits, and both must give the same digits. The first 300 steps are not rounded: rounding
from the start collapses to a single code.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from training.audio_store import AudioStore, BalancedSampler
from training.export_onnx import export_tokenizer
from training.phones import PhoneTable
from training.tokenizer_model import (
    PHONE_CAPACITY,
    PhoneDecoder,
    SpeechTokenizerNetwork,
    TokenizerHead,
    round_through,
)
from training.tokenizer_report import report, save_tokenizer
from training.tokenizer_views import Views, pitch_targets, view_pair
from training.wall_clock import WallClock
from training.weight_quantization import round_weights
from training.whisper_front import DEFAULT_FILE, WhisperFront

CONTINUOUS_STEPS = 300
PEAK_RATE = 1.5e-3
PITCH_WEIGHT = 0.3
AGREEMENT_WEIGHT = 2.0
SECONDS_A_BATCH_ITEM = 12.0  # longer utterances are not drawn


def pick(values: Tensor, views: Views) -> Tensor:
    """(2B, T', C) of the views to (2B, T, C): from each utterance's first token on."""
    index = (views.first[:, None] + torch.arange(views.steps, device=values.device)[None]).clamp(
        0, values.shape[1] - 1
    )
    return values.gather(1, index[..., None].expand(-1, -1, values.shape[2]))


def phone_loss(logits: Tensor, targets: list[list[int]], views: Views) -> Tensor:
    """CTC over two slots a token, a mean over phones; cut views do not count."""
    longest = max(1, max(len(target) for target in targets))
    padded = torch.zeros(len(targets), longest, dtype=torch.long)
    for i, target in enumerate(targets):
        padded[i, : len(target)] = torch.tensor(target, dtype=torch.long)
    counts = torch.tensor([len(target) for target in targets])
    losses = F.ctc_loss(
        logits.float().reshape(len(targets), -1, PHONE_CAPACITY).log_softmax(-1).transpose(0, 1),
        padded.to(logits.device),
        torch.tensor(views.token_counts) * 2,
        counts,
        reduction="none",
        zero_infinity=True,
    )
    whole = views.whole.to(losses.dtype)
    return (losses * whole).sum() / (counts.to(losses.device) * whole).sum().clamp_min(1.0)


def pitch_loss(predicted: Tensor, targets: tuple[Tensor, Tensor, Tensor], views: Views) -> Tensor:
    """Relative log-F0 where there is voice, and whether there is."""
    pitch, voiced, inside = (part.repeat(2, 1, 1) for part in targets)
    valid = inside * views.valid[..., None]
    voice = F.binary_cross_entropy_with_logits(predicted[..., 2:].float(), voiced, reduction="none")
    height = F.smooth_l1_loss(predicted[..., :2].float(), pitch, reduction="none", beta=0.5) * voiced
    return ((voice * 0.5 + height) * valid).sum() / valid.sum().clamp_min(1.0)


def agreement_loss(values: Tensor, views: Views) -> Tensor:
    """Mean squared difference of the two views' digits before rounding, where both have a token."""
    first, second = values.chunk(2)
    valid_first, valid_second = views.valid.chunk(2)
    both = (valid_first * valid_second)[..., None]
    return ((first - second).square() * both).sum() / (both.sum() * values.shape[-1]).clamp_min(1.0)


class Trainer:
    """Head and decoder with their optimiser; the front stays as it is."""

    def __init__(self, args: argparse.Namespace) -> None:
        torch.manual_seed(args.seed)
        np.random.seed(args.seed)
        self.device = torch.device(args.device)
        self.args = args
        self.front = WhisperFront.load(args.front).to(self.device)
        self.head = TokenizerHead().to(self.device)
        self.decoder = PhoneDecoder().to(self.device)
        self.phones = PhoneTable(PHONE_CAPACITY)
        parameters = [*self.head.parameters(), *self.decoder.parameters()]
        self.optimiser = torch.optim.AdamW(
            parameters, lr=PEAK_RATE, weight_decay=0.02, betas=(0.9, 0.98), fused=self.device.type == "cuda"
        )
        self.parameters = parameters

    def losses(self, store: AudioStore, batch: list[int], rounded: bool) -> dict[str, Tensor]:
        """One pass over two views of the batch."""
        views = view_pair(store, batch, self.front.bin_map)
        mixed = self.device.type == "cuda"
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=mixed):
            with torch.no_grad():
                features = self.front.encode(views.mel80, views.frames).float()
            digits = self.head(features, views.halves, views.mask)
            phones, pitch = self.decoder(round_through(digits) if rounded else digits, views.mask)
        targets = [self.phones.encode(store.utterances[i].phones) for i in batch] * 2
        return {
            "phones": phone_loss(pick(phones, views), targets, views),
            "pitch": pitch_loss(pick(pitch, views), pitch_targets(store, batch, views), views),
            "agreement": agreement_loss(pick(digits, views), views),
        }

    def step(
        self, store: AudioStore, batch: list[int], rounded: bool, rate: float, agreement: float
    ) -> dict[str, Tensor]:
        """One update; returns the losses, still on the device."""
        for group in self.optimiser.param_groups:
            group["lr"] = PEAK_RATE * rate
        losses = self.losses(store, batch, rounded)
        total = losses["phones"] + PITCH_WEIGHT * losses["pitch"] + agreement * losses["agreement"]
        self.optimiser.zero_grad(set_to_none=True)
        total.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimiser.step()
        return {name: value.detach() for name, value in losses.items()}

    def save(self) -> None:
        save_tokenizer(self.args.out / "tokenizer.pt", self.head, self.decoder, self.phones)


def usable(store: AudioStore) -> list[int]:
    """Training utterances with phones that are short enough for a batch."""
    return [
        i
        for i in store.of_split("train")
        if store.utterances[i].phones and store.utterances[i].samples <= SECONDS_A_BATCH_ITEM * 24000
    ]


def train(args: argparse.Namespace) -> Trainer:
    """The whole run, ending with rounded weights on disk."""
    trainer = Trainer(args)
    store = AudioStore(args.data, trainer.device)
    store.scan()
    sampler = BalancedSampler(store, usable(store), args.seed)
    clock = WallClock(args.minutes, args.limit_steps)
    sums: dict[str, Tensor] = {}
    step = counted = 0
    last_line = last_save = last_scan = 0.0
    continuous = min(CONTINUOUS_STEPS, args.limit_steps // 4) if args.limit_steps else CONTINUOUS_STEPS
    print(f"{len(store.utterances)} utterances, {store.hours():.2f} h", flush=True)
    while not clock.done(step):
        rounded = step >= continuous or clock.fraction(step) > 0.2
        trainer.head.batch_norm.frozen = clock.fraction(step) > 0.9
        agreement = args.agreement * min(1.0, max(0.0, clock.fraction(step) - 0.1) * 4)
        losses = trainer.step(store, sampler.draw(args.batch), rounded, clock.rate(step), agreement)
        for name, value in losses.items():
            sums[name] = sums.get(name, torch.zeros_like(value)) + value
        step += 1
        counted += 1
        now = clock.elapsed()
        if now - last_line > 10.0:
            shown = " ".join(f"{name} {float(value) / counted:.4f}" for name, value in sums.items())
            print(
                f"step {step} {now:.0f}s {counted / (now - last_line):.2f} it/s rounded={rounded} {shown}",
                flush=True,
            )
            sums, counted, last_line = {}, 0, now
        if now - last_scan > 15.0:
            last_scan = now
            if store.scan():
                sampler = BalancedSampler(store, usable(store), args.seed + step)
        if now - last_save > 60.0:
            trainer.save()
            last_save = now
    round_weights(trainer.head)
    trainer.save()
    finish(trainer, store, step)
    return trainer


def finish(trainer: Trainer, store: AudioStore, steps: int) -> None:
    """Report on unseen speech and write the ONNX file."""
    args = trainer.args
    network = SpeechTokenizerNetwork(trainer.front, trainer.head.eval())
    result = report(network, trainer.decoder, trainer.phones, store, args.report_utterances)
    result["steps"] = steps
    (args.out / "tokenizer.json").write_text(json.dumps(result, indent=1, ensure_ascii=False))
    print(json.dumps(result, ensure_ascii=False), flush=True)
    export_tokenizer(network.cpu(), args.out / "speech_tokenizer_v2.onnx")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--front", type=Path, default=DEFAULT_FILE)
    parser.add_argument("--minutes", type=float, default=3.6)
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--agreement", type=float, default=AGREEMENT_WEIGHT)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit-steps", type=int, default=0)
    parser.add_argument("--report-utterances", type=int, default=200, help="at most so many an engine")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    train(args)


if __name__ == "__main__":
    main()

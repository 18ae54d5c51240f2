"""Trains the nano vocoder: spectra first, then against small discriminators.

    python -m training.vocoder --data DATA --out OUT --minutes 20 [--device cuda] [--resume]

OUT gets `hift.pt` (averaged weights, plain folded keys), written again about every minute, and `checkpoint.pt`.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from inference.frontend.features import log_mel_24k
from inference.models.config import VocoderConfig
from inference.models.source import Excitation
from inference.models.vocoder import Snake, Vocoder
from training.audio_store import F0_HOP
from training.discriminators import Discriminators
from training.flow_state import Average, write
from training.losses import discriminator_loss, feature_loss, generator_loss, spectral_loss
from training.nano import NANO
from training.vocoder_data import Crops, disturbed
from training.wall_clock import WallClock

GAN_START = 0.25  # share of the run after which the discriminators join
OWN_PITCH_START = 0.15  # … after which the source follows the predicted pitch
GAN_RAMP = 0.03  # … over which their say grows from nothing to all
MEL_WEIGHT, SPECTRAL_WEIGHT, PITCH_WEIGHT, FEATURE_WEIGHT, GAN_WEIGHT = 15.0, 2.5, 0.5, 16.0, 1.0
EDGE = 4  # mel frames at either end that only serve as context
LOG_SECONDS, SAVE_SECONDS, SCAN_SECONDS = 10.0, 60.0, 30.0
PITCH_SCALE = 100.0  # Hz
FIRST_LOG_MAGNITUDE = -2.0


@dataclass(frozen=True)
class Options:
    """The command line."""

    data: Path
    out: Path
    minutes: float
    device: str = "cuda"
    seed: int = 0
    rate: float = 5e-4
    batch: int = 32
    frames: int = 40
    limit_steps: int = 0
    resume: bool = False
    compile: bool = False


def fuse_activations(generator: Vocoder) -> None:
    """Compile the Snake activations: eager, they launch more kernels than all convolutions together."""
    for module in generator.modules():
        if isinstance(module, Snake):
            module.compile(dynamic=True)


class VocoderTrainer:
    """Generator, discriminators, optimisers, average and data of one run."""

    def __init__(self, options: Options, cfg: VocoderConfig) -> None:
        self.options = options
        self.device = torch.device(options.device)
        torch.manual_seed(options.seed)
        self.generator = Vocoder(cfg).to(self.device).train()
        with torch.no_grad():  # begin quietly: samples at the clamp would teach nothing
            self.generator.conv_post.get_parameter("bias")[: cfg.istft_n_fft // 2 + 1] = FIRST_LOG_MAGNITUDE
        if options.compile:
            fuse_activations(self.generator)
        self.judges = Discriminators().to(self.device).train()
        fused = self.device.type == "cuda"
        self.optimiser = torch.optim.AdamW(
            self.generator.parameters(), options.rate, betas=(0.8, 0.99), weight_decay=0.0, fused=fused
        )
        self.judge_optimiser = torch.optim.AdamW(
            self.judges.parameters(), options.rate, betas=(0.8, 0.99), weight_decay=0.0, fused=fused
        )
        self.average = Average(self.generator)
        self.step = 0
        self.crops = Crops(options.data, self.device, options.batch, options.frames, options.seed)

    def one_step(self, fraction: float, rate: float) -> dict[str, Tensor]:
        """One update of the generator, and of the discriminators once they have joined."""
        wave, pitch = self.crops.draw()
        mel = log_mel_24k(wave)
        made, pitch_loss = self.speak(mel, pitch, fraction)
        inner = slice(EDGE * F0_HOP, -EDGE * F0_HOP)
        losses = {
            "mel": F.l1_loss(log_mel_24k(made)[..., EDGE:-EDGE], mel[..., EDGE:-EDGE]),
            "spectra": spectral_loss(made[:, inner], wave[:, inner]),
            "pitch": pitch_loss,
        }
        total = (
            MEL_WEIGHT * losses["mel"] + SPECTRAL_WEIGHT * losses["spectra"] + PITCH_WEIGHT * losses["pitch"]
        )
        if fraction >= GAN_START:
            losses["judges"] = self._teach_judges(wave[:, inner], made[:, inner].detach(), rate)
            losses["fooling"], losses["features"] = self._judge(wave[:, inner], made[:, inner])
            ramp = min(1.0, (fraction - GAN_START) / GAN_RAMP)
            total = total + ramp * (GAN_WEIGHT * losses["fooling"] + FEATURE_WEIGHT * losses["features"])
        self._update(self.optimiser, self.generator, total, rate)
        self.step += 1
        self.average.update(self.step)
        return losses

    def speak(self, mel: Tensor, pitch: Tensor, fraction: float) -> tuple[Tensor, Tensor]:
        """Sound (B, n) made from a (mostly slightly disturbed) mel, and the loss of the pitch predictor."""
        mel = disturbed(mel)
        predicted = self.generator.f0(mel)
        pitch_loss = F.smooth_l1_loss(predicted / PITCH_SCALE, pitch / PITCH_SCALE, beta=0.1)
        driving = predicted.detach() if fraction >= OWN_PITCH_START and self.step % 2 else pitch
        zeros = torch.zeros(len(mel), dtype=torch.int64, device=self.device)
        seeds = torch.randint(0, 2**31, (len(mel),), device=self.device)
        source, _ = self.generator.source(driving, Excitation(seeds, zeros))
        with self._autocast():
            spectrum = self.generator.spectrum(mel, source)
        return self.generator.to_sound(spectrum), pitch_loss

    def _teach_judges(self, real: Tensor, made: Tensor, rate: float) -> Tensor:
        with self._autocast():
            scores, _ = self.judges(torch.cat((real, made)))
        halves = [score.chunk(2) for score in scores]
        loss = discriminator_loss([half[0] for half in halves], [half[1] for half in halves])
        self._update(self.judge_optimiser, self.judges, loss, rate)
        return loss

    def _judge(self, real: Tensor, made: Tensor) -> tuple[Tensor, Tensor]:
        self.judges.requires_grad_(False)  # this time only the generator learns
        with self._autocast():
            _, wanted = self.judges(real)
            scores, features = self.judges(made)
        self.judges.requires_grad_(True)
        return generator_loss(scores), feature_loss(wanted, features)

    def _update(
        self, optimiser: torch.optim.Optimizer, module: torch.nn.Module, loss: Tensor, rate: float
    ) -> None:
        for group in optimiser.param_groups:
            group["lr"] = self.options.rate * rate
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 10.0, foreach=True)
        # A step with a broken gradient is one of size zero, decided on the device.
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter.grad.nan_to_num_(0.0, 0.0, 0.0)
        optimiser.step()

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda")

    def save(self) -> None:
        out = self.options.out
        out.mkdir(parents=True, exist_ok=True)
        state = {
            "generator": self.generator.state_dict(),
            "judges": self.judges.state_dict(),
            "average": self.average.state(),
            "optimiser": self.optimiser.state_dict(),
            "judge_optimiser": self.judge_optimiser.state_dict(),
            "step": self.step,
        }
        write(state, out / "checkpoint.pt")
        averaged = {key: value.detach().float().cpu().clone() for key, value in self.average.state().items()}
        write(averaged, out / "hift.pt")

    def load(self) -> bool:
        """Go on from `checkpoint.pt`; False when there is none."""
        path = self.options.out / "checkpoint.pt"
        if not path.exists():
            return False
        found: dict[str, Any] = torch.load(path, map_location=self.device, weights_only=True)
        self.generator.load_state_dict(found["generator"])
        self.judges.load_state_dict(found["judges"])
        self.average.load(found["average"])
        self.optimiser.load_state_dict(found["optimiser"])
        self.judge_optimiser.load_state_dict(found["judge_optimiser"])
        self.step = found["step"]
        return True


def train(options: Options, cfg: VocoderConfig = NANO.vocoder) -> VocoderTrainer:
    """Train until the time (or `limit_steps`) is over; logs to standard output, saves in `options.out`."""
    if options.device.startswith("cuda"):
        # TF32 in the matrix products would put a noise floor of -60 dB under every inverse STFT.
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.benchmark = True
    warmup = min(200, max(1, options.limit_steps // 10)) if options.limit_steps else 200
    clock = WallClock(options.minutes, options.limit_steps, warmup)
    trainer = VocoderTrainer(options, cfg)
    if options.resume and trainer.load():
        print(f"going on from step {trainer.step}", flush=True)
    first = trainer.step
    logged = saved = scanned = clock.elapsed()
    logged_step = first
    while not clock.done(trainer.step - first):
        done = trainer.step - first
        losses = trainer.one_step(clock.fraction(done), clock.rate(done))
        now = clock.elapsed()
        if now - logged >= LOG_SECONDS or clock.done(trainer.step - first):
            shown = {name: round(float(value.detach()), 4) for name, value in losses.items()}
            speed = round((trainer.step - logged_step) / max(now - logged, 1e-3), 2)
            line = {"seconds": round(now), "step": trainer.step, "steps_per_second": speed, **shown}
            print(json.dumps(line), flush=True)
            logged, logged_step = now, trainer.step
        if now - scanned >= SCAN_SECONDS:
            trainer.crops.refresh()
            scanned = now
        if now - saved >= SAVE_SECONDS:
            trainer.save()
            saved = now
    trainer.save()
    return trainer


def parse(arguments: list[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, default=Options.rate)
    parser.add_argument("--batch", type=int, default=Options.batch)
    parser.add_argument("--frames", type=int, default=Options.frames)
    parser.add_argument("--limit-steps", type=int, default=0)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--compile", action="store_true", help="fuse the activations (needs a compiler)")
    return Options(**vars(parser.parse_args(arguments)))


if __name__ == "__main__":
    train(parse())

"""Trains the nano vocoder: spectra first, then against small discriminators.

    python -m training.vocoder --data DATA --out OUT --minutes 20 [--init hift.pt] [--device cuda] [--resume]

OUT gets `hift.pt` (averaged weights, plain folded keys), written again about every minute, and `checkpoint.pt`.
With `--init` the generator starts from such a file and the discriminators, new, join almost at once. On CUDA a step
runs as one graph and the activations are compiled; when either fails, a line says so and training goes on without.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from inference.models.config import VocoderConfig
from inference.models.vocoder import Vocoder, fold_weight_norm
from inference.tensor_files import compare, expected_shapes, read_tensors
from training.discriminators import Discriminators, faster_layout
from training.flow_state import Average, write
from training.nano import NANO
from training.snake import fuse
from training.step_graph import Capture, StepGraph
from training.vocoder_data import Crops
from training.vocoder_step import EDGE, FROM_SCRATCH, FROM_WEIGHTS, VocoderStep
from training.wall_clock import WallClock

RATE, WARM_RATE = 5e-4, 3e-4  # from scratch, from a file
LOG_SECONDS, SAVE_SECONDS, SCAN_SECONDS = 10.0, 60.0, 30.0
FIRST_LOG_MAGNITUDE = -2.0


@dataclass(frozen=True)
class Options:
    """The command line."""

    data: Path
    out: Path
    minutes: float
    device: str = "cuda"
    seed: int = 0
    rate: float | None = None
    batch: int = 16
    frames: int = 40
    limit_steps: int = 0
    resume: bool = False
    init: Path | None = None
    graph: bool = True
    compile: bool = True


class VocoderTrainer:
    """Generator, discriminators, optimisers, average and data of one run."""

    def __init__(self, options: Options, cfg: VocoderConfig, capture: Capture | None = None) -> None:
        self.options = options
        self.device = torch.device(options.device)
        self.schedule = FROM_WEIGHTS if options.init else FROM_SCRATCH
        self.rate = options.rate or (WARM_RATE if options.init else RATE)
        torch.manual_seed(options.seed)
        self.generator = Vocoder(cfg)
        if options.init:
            start_from(self.generator, options.init)
        else:
            with torch.no_grad():  # begin quietly: samples at the clamp would teach nothing
                bias = self.generator.conv_post.get_parameter("bias")
                bias[: cfg.istft_n_fft // 2 + 1] = FIRST_LOG_MAGNITUDE
        self.generator.to(self.device).train()
        self.judges = Discriminators().to(self.device).train()
        self.average = Average(self.generator)
        self.step = 0
        self.crops = Crops(options.data, self.device, options.batch, options.frames, options.seed)
        self.work = VocoderStep(self.generator, self.judges, self.device, options.batch, options.frames)
        self.run = StepGraph(self.work, self.device, options.graph, self._after_broken_recording, capture)
        if self.device.type == "cuda":
            self._tune()

    def one_step(self, fraction: float, rate: float) -> dict[str, Tensor]:
        """One update of the generator, and of the discriminators once they learn.

        The losses returned are overwritten by later steps.
        """
        say, own_share = self.schedule.say(fraction), self.schedule.own_share(fraction)
        self.work.prepare(*self.crops.draw(), self.rate * rate, say, own_share)
        losses = self.run(self.schedule.phase(fraction))
        self.step += 1
        self.average.update(self.step)
        return losses

    def _tune(self) -> None:
        """Choose what is fast on this card; neither choice changes results."""
        heard = self.work.wave[:, 2 * EDGE * self.generator.cfg.hop :]
        channels_last = faster_layout(self.judges, torch.cat((heard, heard)))
        self.judges.keep_channels_last(channels_last)
        compiled = self.options.compile and fuse(self.generator, self.device)
        print(json.dumps({"channels_last": channels_last, "compiled": compiled}), flush=True)

    def _after_broken_recording(self) -> None:
        self.work.make_new_random(self.options.seed + self.step)

    def save(self) -> None:
        out = self.options.out
        out.mkdir(parents=True, exist_ok=True)
        state = {
            "generator": self.generator.state_dict(),
            "judges": self.judges.state_dict(),
            "average": self.average.state(),
            "optimiser": self.work.speaker.state(),
            "judge_optimiser": self.work.judging.state(),
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
        self.work.speaker.load(found["optimiser"])
        self.work.judging.load(found["judge_optimiser"])
        self.step = found["step"]
        return True


def start_from(generator: Vocoder, path: Path) -> None:
    """Give a generator the weights of a `hift.pt`. Raises `CheckpointError` as `read_tensors` and `compare`."""
    state = fold_weight_norm(read_tensors(path))
    problems = compare(path.name, expected_shapes(generator), state)
    if problems:
        raise problems[0]
    generator.load_state_dict(state)


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
            shown = {name: round(float(value), 4) for name, value in losses.items()}
            speed = round((trainer.step - logged_step) / max(now - logged, 1e-3), 2)
            line = {"seconds": round(now), "step": trainer.step, "steps_per_second": speed, **shown}
            line["replayed"] = trainer.run.replaying
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
    parser.add_argument("--rate", type=float, help=f"peak; {RATE}, with --init {WARM_RATE}")
    parser.add_argument("--batch", type=int, default=Options.batch)
    parser.add_argument("--frames", type=int, default=Options.frames)
    parser.add_argument("--limit-steps", type=int, default=0)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--init", type=Path, help="a hift.pt to start the generator from")
    parser.add_argument("--graph", action=argparse.BooleanOptionalAction, default=True, help="CUDA graphs")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True, help="on CUDA only")
    return Options(**vars(parser.parse_args(arguments)))


if __name__ == "__main__":
    train(parse())

"""Trains the nano flow model on one device until its time is over.

    python -m training.flow --data DATA --out OUT --minutes 12 [--device cuda] [--init flow.pt] [--resume]

OUT gets `flow.pt` (averaged weights, the layout of the public file), written again about every minute, and
`checkpoint.pt` for `--resume`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from inference.models.config import FlowConfig
from inference.models.flow import FlowModel
from inference.models.velocity import ResnetBlock, TransformerBlock
from training.captured_steps import CapturedSteps, CudaRecorder, use_own_stream
from training.flow_data import FlowBatch, FlowCorpus, FlowSampler
from training.flow_objective import FlowTraining, flow_loss
from training.flow_state import Average, finalise, start_from, write
from training.nano import NANO
from training.wall_clock import WallClock

BUCKETS = (100, 150, 200, 250)  # tokens an item has room for, prompt included
LOG_SECONDS = 10.0
SAVE_SECONDS = 60.0
SCAN_SECONDS = 20.0
_WARMUP_STEPS = 200


@dataclass(frozen=True)
class Options:
    """The command line."""

    data: Path
    out: Path
    minutes: float
    device: str = "cuda"
    seed: int = 0
    rate: float = 1.2e-3
    batch_tokens: int = 12800
    buckets: tuple[int, ...] = BUCKETS
    limit_steps: int = 0
    resume: bool = False
    compile: bool = False
    init: Path | None = None
    graph: bool = True


def compile_blocks(model: FlowModel) -> None:
    """Fuse what the velocity network's blocks do; all blocks of a kind share a few compiled variants."""
    for module in model.decoder.estimator.modules():
        if isinstance(module, (ResnetBlock, TransformerBlock)):
            module.compile(dynamic=True)


class FlowTrainer:
    """Model, optimiser, average and data of one run."""

    def __init__(self, options: Options, cfg: FlowConfig) -> None:
        self.options = options
        self.device = torch.device(options.device)
        torch.manual_seed(options.seed)
        self.model = FlowModel(cfg).to(self.device).train()
        self.how = FlowTraining()
        self.corpus = FlowCorpus(options.data, self.device)
        self.step = 0
        self.corpus.scan()
        if not self.corpus.counts.size:
            raise SystemExit(f"no features-*.npz with its shard in {options.data}")
        if options.init:
            start_from(self.model, options.init)
        else:
            self._start_from_the_mean()
        cuda = self.device.type == "cuda"
        self.rate = torch.tensor(
            options.rate, device=self.device
        )  # a tensor, so that captured steps follow it
        self.optimiser = torch.optim.AdamW(
            self.model.parameters(),
            self.rate,
            betas=(0.9, 0.98),
            weight_decay=0.01,
            fused=True,
            capturable=cuda,
        )
        self.update = CapturedSteps(self._update, CudaRecorder() if cuda and options.graph else None)
        self.average = Average(self.model)
        if options.compile:
            compile_blocks(self.model)
        self._renew_samplers()
        self.dev = self._dev_batch()

    @torch.no_grad()
    def _start_from_the_mean(self) -> None:
        """Log-mels lie around -5: begin there instead of learning it."""
        mean = self.corpus.mean_mel()
        self.model.encoder_proj.bias.copy_(mean)
        bias = self.model.decoder.estimator.final_proj.bias
        if bias is not None:
            bias.copy_(mean)

    def _renew_samplers(self) -> None:
        self.sampler = FlowSampler(self.corpus, "train", self.options.seed + self.step)
        if not len(self.sampler):
            raise SystemExit(f"no utterance of the split 'train' in {self.options.data}")

    def _dev_batch(self) -> FlowBatch | None:
        sampler = FlowSampler(self.corpus, "dev", 1)
        return sampler.draw(16, self.options.buckets[-1]) if len(sampler) else None

    def one_step(self, rate: float) -> Tensor:
        """One update; returns the flow-matching loss without waiting for it."""
        options = self.options
        size = options.buckets[int(torch.randint(0, len(options.buckets), ()))]
        batch = self.sampler.draw(max(2, options.batch_tokens // size), size)
        self.rate.fill_(options.rate * rate)
        matching = self.update((size, self.step % 2 == 1), tuple(batch))
        self.step += 1
        self.average.update(self.step)
        return matching

    def _update(self, key: Hashable, inputs: tuple[Tensor, ...]) -> Tensor:
        """Loss, gradients and step for one batch; `key` is (size, streaming)."""
        _, streaming = cast("tuple[int, bool]", key)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            loss, matching = flow_loss(self.model, FlowBatch(*inputs), streaming=streaming, how=self.how)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0, foreach=True)
        self.optimiser.step()
        return matching

    @torch.no_grad()
    def dev_loss(self) -> float:
        """Flow-matching loss of the averaged weights on the same held-out batch and noise every time."""
        if self.dev is None:
            return float("nan")
        plain = FlowTraining(guidance_dropout=0, token_noise=0, vector_noise=0, timbre=0)
        live = [parameter.detach().clone() for parameter in self.model.parameters()]
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            torch.manual_seed(5)
            self._put(self.average.weights)
            matching = flow_loss(self.model, self.dev, streaming=False, how=plain)[1]
            self._put(live)
        return float(matching)

    @torch.no_grad()
    def _put(self, weights: list[Tensor]) -> None:
        torch._foreach_copy_([parameter.data for parameter in self.model.parameters()], weights)

    def refresh_data(self) -> None:
        """Take in shards that have arrived meanwhile."""
        if self.corpus.scan(limit=8):
            self._renew_samplers()
            self.dev = self.dev or self._dev_batch()

    def save(self) -> None:
        out = self.options.out
        out.mkdir(parents=True, exist_ok=True)
        checkpoint = {
            "model": self.model.state_dict(),
            "average": self.average.state(),
            "optimiser": self.optimiser.state_dict(),
            "step": self.step,
        }
        write(checkpoint, out / "checkpoint.pt")
        write(finalise(self.average.state(), self.corpus.used_ids().tolist()), out / "flow.pt")

    def load(self) -> bool:
        """Go on from `checkpoint.pt`; False when there is none."""
        path = self.options.out / "checkpoint.pt"
        if not path.exists():
            return False
        found: dict[str, Any] = torch.load(path, map_location=self.device, weights_only=True)
        self.model.load_state_dict(found["model"])
        self.average.load(found["average"])
        self.optimiser.load_state_dict(found["optimiser"])
        for group in self.optimiser.param_groups:
            group["lr"] = self.rate
        self.update.forget()
        self.step = found["step"]
        return True


def train(options: Options, cfg: FlowConfig = NANO.flow) -> FlowTrainer:
    """Train until the time (or `limit_steps`) is over; logs to standard output, saves in `options.out`."""
    if options.device.startswith("cuda"):
        torch.set_float32_matmul_precision("high")
    use_own_stream(torch.device(options.device))
    warmup = min(_WARMUP_STEPS, max(1, options.limit_steps // 10)) if options.limit_steps else _WARMUP_STEPS
    clock = WallClock(options.minutes, options.limit_steps, warmup)
    trainer = FlowTrainer(options, cfg)
    if options.resume and trainer.load():
        print(f"going on from step {trainer.step}", flush=True)
    first = trainer.step
    logged, saved, scanned, logged_step = clock.elapsed(), clock.elapsed(), clock.elapsed(), first
    mean = torch.zeros((), device=trainer.device)
    while not clock.done(trainer.step - first):
        mean += trainer.one_step(clock.rate(trainer.step - first))
        now = clock.elapsed()
        if now - logged >= LOG_SECONDS:
            steps = trainer.step - logged_step
            report(trainer, float(mean) / steps, steps / (now - logged), now)
            if not bool(torch.isfinite(mean)):
                recover(trainer)
            mean.zero_()
            logged, logged_step = clock.elapsed(), trainer.step
        if now - scanned >= SCAN_SECONDS:
            trainer.refresh_data()
            scanned = clock.elapsed()
        if now - saved >= SAVE_SECONDS and bool(torch.isfinite(mean)):
            trainer.save()
            print(json.dumps({"step": trainer.step, "dev": round(trainer.dev_loss(), 4)}), flush=True)
            saved = clock.elapsed()
    trainer.save()
    print(json.dumps({"step": trainer.step, "dev": round(trainer.dev_loss(), 4), "done": True}), flush=True)
    return trainer


def report(trainer: FlowTrainer, loss: float, speed: float, seconds: float) -> None:
    """One line of progress."""
    line = {
        "seconds": round(seconds),
        "step": trainer.step,
        "loss": round(loss, 4),
        "steps_per_second": round(speed, 2),
        "rate": round(float(trainer.rate), 6),
        "graphs": trainer.update.recorded,
        "hours": round(trainer.corpus.hours(), 2),
    }
    print(json.dumps(line), flush=True)


def recover(trainer: FlowTrainer) -> None:
    """After a loss that is not a number: back to the last saved state."""
    print("the loss is not finite; going back to the last checkpoint", flush=True)
    step = trainer.step
    if not trainer.load():
        raise SystemExit("no checkpoint to go back to")
    trainer.step = step


def parse(arguments: list[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, default=Options.rate, help="peak learning rate")
    parser.add_argument("--batch-tokens", type=int, default=Options.batch_tokens)
    parser.add_argument("--limit-steps", type=int, default=0)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--compile", action="store_true", help="compile the velocity network's blocks")
    parser.add_argument("--init", type=Path, help="weights to begin with")
    parser.add_argument("--graph", action=argparse.BooleanOptionalAction, default=True, help="CUDA graphs")
    return Options(**vars(parser.parse_args(arguments)))


def main() -> None:
    train(parse())


if __name__ == "__main__":
    main()

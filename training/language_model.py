"""Trains the nano language model on one device until its time is over.

    python -m training.language_model --data DATA --tokenizer FOLDER --out OUT --minutes 12 [--resume] [--init llm.pt]

OUT gets `llm.pt` (averaged weights, the layout of the public file), written again about every minute, and
`checkpoint.pt` for `--resume`.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inference.models.config import LanguageModelConfig
from inference.models.language_model import LanguageModel
from training.flow_state import Average, start_from, write
from training.language_model_data import Corpus, Ids
from training.language_model_feed import SCAN_SECONDS, Feed, Source
from training.language_model_samples import Batch, Mix, SampleMaker
from training.nano import NANO
from training.wall_clock import WallClock

LOG_SECONDS = 10.0
SAVE_SECONDS = 60.0
SMOOTHING = 0.05
_WARMUP_STEPS = 300
_NEVER = -30.0  # bias of ids that training never saw
_DEV_SEQUENCES = 256


@dataclass(frozen=True)
class Options:
    """The command line."""

    data: tuple[Path, ...]
    tokenizer: Path
    out: Path
    minutes: float
    device: str = "cuda"
    seed: int = 0
    rate: float = 1.5e-3
    batch_tokens: int = 24576
    workers: int = 0
    limit_steps: int = 0
    resume: bool = False
    init: Path | None = None
    dropout: float = 0.1


class SlowingAverage(Average):
    """Longer memory once the learning rate has fallen."""

    def advance(self, step: int, fraction: float) -> None:
        decay = min(0.9995 if fraction > 0.5 else 0.999, (1 + step) / (10 + step))
        torch._foreach_lerp_(self.weights, self._live, 1 - decay)


@torch.no_grad()
def initialise(model: LanguageModel) -> None:
    """Normal 0.02; what adds to the residual stream is smaller the more layers there are."""
    residual = 0.02 / (2 * model.cfg.num_layers) ** 0.5
    for name, module in model.named_modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=residual if name.endswith(("o_proj", "down_proj")) else 0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


def drop_branches(model: LanguageModel, share: float) -> None:
    """Dropout on what attention and feed-forward add to the residual stream; the model itself knows none."""

    def drop(module: nn.Module, _: object, output: Tensor) -> Tensor:
        return F.dropout(output, share, module.training)

    for layer in model.decoder.layers:
        for branch in (layer.get_submodule("self_attn"), layer.get_submodule("mlp")):
            branch.register_forward_hook(drop)


def joint_table(model: LanguageModel) -> Tensor:
    """Service, text and speech embeddings, one below the other, as the samples number them."""
    text = model.get_parameter("llm.model.model.embed_tokens.weight")
    return torch.cat((model.llm_embedding.weight, text, model.speech_embedding.weight))


def hidden_rows(model: LanguageModel, batch: Batch) -> tuple[Tensor, Tensor]:
    """Hidden states (N, hidden) at the places with a target, and the targets (N,), on the model's device."""
    inputs, rows, labels = (_to_device(part, model.device) for part in batch)
    positions = torch.arange(inputs.shape[1], device=model.device)[None]
    hidden = model(F.embedding(inputs, joint_table(model)), positions)
    return hidden.flatten(0, 1).index_select(0, rows), labels


def _to_device(part: Ids, device: torch.device) -> Tensor:
    host = torch.from_numpy(part).long()
    if device.type == "cuda":
        host = host.pin_memory()
    return host.to(device, non_blocking=True)


def finalise(state: dict[str, Tensor], known: Tensor) -> dict[str, Tensor]:
    """The state to ship, float32 on the CPU: speech ids outside `known` have zero rows, never predicted."""
    shipped = {key: value.detach().float().cpu().clone() for key, value in state.items()}
    unseen = torch.ones(len(shipped["llm_decoder.bias"]), dtype=torch.bool)
    unseen[known.cpu()] = False
    for key in ("speech_embedding.weight", "llm_decoder.weight"):
        shipped[key][unseen] = 0
    shipped["llm_decoder.bias"][unseen] = _NEVER
    return shipped


class LanguageModelTrainer:
    """Model, optimiser, average and data of one run."""

    def __init__(self, options: Options, cfg: LanguageModelConfig) -> None:
        self.options, self.cfg = options, cfg
        self.device = torch.device(options.device)
        torch.manual_seed(options.seed)
        self.corpus = Corpus(options.data, options.tokenizer)
        self.corpus.scan()
        if not self.corpus.lines["train"]:
            raise SystemExit(f"no features-*.npz with utterances to train on in {options.data}")
        self.model = LanguageModel(cfg)
        initialise(self.model)
        if options.init:
            start_from(self.model, options.init)
        if options.dropout:
            drop_branches(self.model, options.dropout)
        self.model.to(self.device).train()
        self.optimiser = self._optimiser()
        self.average = SlowingAverage(self.model)
        self.step = 0
        self._learn_ids()

    def _optimiser(self) -> torch.optim.AdamW:
        matrices = [p for p in self.model.parameters() if p.ndim == 2]
        others = [p for p in self.model.parameters() if p.ndim != 2]
        groups = [{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
        # The fused kernel can leave out an update by a flag on the device, without the host waiting for it.
        return torch.optim.AdamW(groups, lr=self.options.rate, betas=(0.9, 0.95), fused=True)

    def _learn_ids(self) -> None:
        """Only ids that occur, end and fill are predicted; `place` maps ids to their columns."""
        ends = [self.cfg.end_of_speech, self.cfg.fill_token]
        known = torch.tensor([*self.corpus.used.tolist(), *ends], device=self.device)
        self.known = known
        self.place = torch.full((self.cfg.speech_vocab_size,), -1, device=self.device)
        self.place[known] = torch.arange(len(known), device=self.device)

    def scores(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits (N, known ids) float32 and the columns (N,) of their targets, -1 = an id not known yet."""
        hidden, labels = hidden_rows(self.model, batch)
        head = self.model.llm_decoder
        weight, bias = (part.index_select(0, self.known) for part in (head.weight, head.bias))
        return F.linear(hidden, weight, bias).float(), self.place[labels]

    def one_step(self, batch: Batch, rate: float, fraction: float) -> Tensor:
        """One update; returns the loss without waiting for it (0 where it was not finite and left out)."""
        for group in self.optimiser.param_groups:
            group["lr"] = self.options.rate * rate
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            logits, labels = self.scores(batch)
        loss = F.cross_entropy(logits, labels, ignore_index=-1, label_smoothing=SMOOTHING)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0, foreach=True)
        bad = ~(torch.isfinite(norm) & torch.isfinite(loss.detach()))
        self.optimiser.found_inf = bad.float()  # type: ignore[attr-defined]
        self.optimiser.step()
        self.step += 1
        self.average.advance(self.step, fraction)
        return torch.where(bad, 0.0, loss.detach())

    @torch.no_grad()
    def dev_scores(self) -> dict[str, float]:
        """Loss (no smoothing) and token accuracy of the averaged weights on held-out utterances."""
        lines = self.corpus.lines["dev"][:_DEV_SEQUENCES]
        maker = SampleMaker(lines, self.corpus.silent, self.corpus.used, self.cfg, 1, Mix(noise=0.0))
        if not len(maker):
            return {}
        live = [parameter.detach().clone() for parameter in self.model.parameters()]
        self._put(self.average.weights)
        self.model.eval()
        loss, right, count = (torch.zeros((), device=self.device) for _ in range(3))
        for batch in maker.batches(min(self.options.batch_tokens, 8192), pool=4):
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
                logits, labels = self.scores(batch)
            loss += F.cross_entropy(logits, labels, ignore_index=-1, reduction="sum")
            right += (logits.argmax(-1) == labels).sum()
            count += (labels >= 0).sum()
        self._put(live)
        self.model.train()
        return {"dev_loss": round(float(loss / count), 4), "dev_accuracy": round(float(right / count), 4)}

    @torch.no_grad()
    def _put(self, weights: list[Tensor]) -> None:
        torch._foreach_copy_([parameter.data for parameter in self.model.parameters()], weights)

    def refresh_data(self) -> None:
        """Take in shards that have arrived meanwhile."""
        if self.corpus.scan():
            self._learn_ids()

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
        write(finalise(self.average.state(), self.known), out / "llm.pt")

    def load(self) -> bool:
        """Go on from `checkpoint.pt`; False when there is none."""
        path = self.options.out / "checkpoint.pt"
        if not path.exists():
            return False
        found: dict[str, Any] = torch.load(path, map_location=self.device, weights_only=True)
        self.model.load_state_dict(found["model"])
        self.average.load(found["average"])
        self.optimiser.load_state_dict(found["optimiser"])
        self.step = found["step"]
        return True


def train(options: Options, cfg: LanguageModelConfig = NANO.language_model) -> LanguageModelTrainer:
    """Train until the time (or `limit_steps`) is over; logs to standard output, saves in `options.out`."""
    if options.device.startswith("cuda"):
        torch.set_float32_matmul_precision("high")
    warmup = min(_WARMUP_STEPS, max(1, options.limit_steps // 10)) if options.limit_steps else _WARMUP_STEPS
    clock = WallClock(options.minutes, options.limit_steps, warmup)
    trainer = LanguageModelTrainer(options, cfg)
    if options.resume and trainer.load():
        print(f"going on from step {trainer.step}", flush=True)
    source = Source(options.data, options.tokenizer, cfg, options.batch_tokens, options.seed + trainer.step)
    feed = Feed(source, options.workers)
    try:
        _loop(trainer, feed, clock)
    finally:
        feed.close()
    trainer.save()
    print(json.dumps({"step": trainer.step, **trainer.dev_scores(), "done": True}), flush=True)
    return trainer


def _loop(trainer: LanguageModelTrainer, feed: Feed, clock: WallClock) -> None:
    first = logged_step = trainer.step
    logged = saved = scanned = clock.elapsed()
    total = torch.zeros((), device=trainer.device)
    while not clock.done(trainer.step - first):
        done = trainer.step - first
        total += trainer.one_step(feed.next(), clock.rate(done), clock.fraction(done))
        now = clock.elapsed()
        if now - logged >= LOG_SECONDS:
            steps = trainer.step - logged_step
            report(trainer, float(total) / steps, steps / (now - logged), now)
            total.zero_()
            logged, logged_step = clock.elapsed(), trainer.step
        if now - scanned >= SCAN_SECONDS:
            trainer.refresh_data()
            scanned = clock.elapsed()
        if now - saved >= SAVE_SECONDS:
            trainer.save()
            print(json.dumps({"step": trainer.step, **trainer.dev_scores()}), flush=True)
            saved = clock.elapsed()


def report(trainer: LanguageModelTrainer, loss: float, speed: float, seconds: float) -> None:
    """One line of progress."""
    line = {
        "seconds": round(seconds),
        "step": trainer.step,
        "loss": round(loss, 4),
        "steps_per_second": round(speed, 2),
        "rate": round(trainer.optimiser.param_groups[0]["lr"], 6),
        "hours": round(trainer.corpus.hours(), 2),
        "ids": len(trainer.known),
    }
    print(json.dumps(line), flush=True)


def parse(arguments: list[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, nargs="+", required=True)
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder with vocab.json and merges.txt")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, default=Options.rate, help="peak learning rate")
    parser.add_argument("--batch-tokens", type=int, default=Options.batch_tokens, help="positions in a batch")
    parser.add_argument("--workers", type=int, default=2, help="processes that make batches; 0 = none")
    parser.add_argument("--limit-steps", type=int, default=0)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--init", type=Path, help="weights to begin with")
    parser.add_argument("--dropout", type=float, default=Options.dropout)
    values = vars(parser.parse_args(arguments))
    return Options(**{**values, "data": tuple(values["data"])})


def main() -> None:
    train(parse())


if __name__ == "__main__":
    main()

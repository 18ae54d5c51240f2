"""What a step of the language-model lane costs: `python -m benchmarks.language_model_lane`.

Random weights of the public sizes (or of nano's, or tiny), speech that never ends by itself. Prints milliseconds of
each decode step by rows and cached positions, uncaptured and captured: plain, with attention by the fused kernel or by
matrix products, and by our own kernels where these run; of taking prompts in; and what users get from the whole lane,
plain and by kernels: tokens a second, time to the first token, what the host does a step besides waiting. `--json FILE`
keeps the numbers.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.machine import describe
from inference.models.config import LanguageModelConfig
from inference.models.language_model import LanguageModel
from inference.runtime.bucket_runner import DECODE, PREFILL, BucketRunner
from inference.runtime.feed import SpeechPrompt
from inference.runtime.lane_graphs import Shape, bucket
from inference.runtime.language_model_lane import LanguageModelLane, SpeechJob, make_runner
from inference.runtime.slot_runner import Reading, SlotRunner
from inference.runtime.slot_table import SlotRows
from inference.settings import LaneSettings

SIZES = {
    "full": LanguageModelConfig(),
    "nano": LanguageModelConfig(
        vocab_size=4096, hidden_size=256, intermediate_size=768, num_layers=6, num_heads=4, num_kv_heads=2
    ),
    "tiny": LanguageModelConfig(
        vocab_size=256, hidden_size=64, intermediate_size=128, num_layers=2, num_heads=4, num_kv_heads=2
    ),
}
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
# Of the issue: 25 text tokens, a reference of 4 s, 10 s of speech.
TEXT_TOKENS, REFERENCE_TOKENS, SPEECH_TOKENS = 25, 100, 250


def random_model(cfg: LanguageModelConfig, device: torch.device, dtype: torch.dtype) -> LanguageModel:
    """Weights of a natural scale, and no way to end."""
    torch.manual_seed(0)
    with torch.device(device):
        model = LanguageModel(cfg).to(dtype)
    model.llm_decoder.bias.data[cfg.end_of_speech :] = -1e4
    return model.eval().requires_grad_(False)


class Bench:
    """Times work on one device."""

    def __init__(self, device: torch.device, repeats: int) -> None:
        self.device, self.repeats = device, repeats

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def milliseconds(self, work: Callable[[], None]) -> float:
        """Mean of `repeats` calls that follow each other without a wait."""
        work()
        self.wait()
        started = time.perf_counter()
        for _ in range(self.repeats):
            work()
        self.wait()
        return (time.perf_counter() - started) / self.repeats * 1e3


@torch.inference_mode()
def step_table(
    bench: Bench, runner: BucketRunner, kind: str, shapes: Sequence[Shape], name: str
) -> list[dict[str, Any]]:
    """One row a shape: milliseconds uncaptured and captured, seconds to capture."""
    rows = []
    with runner.on_stream():
        for shape in shapes:
            body = runner.body(kind, shape)
            row: dict[str, Any] = {"step": kind, "attention": name, "rows": shape.rows, "size": shape.size}
            row["eager_ms"] = bench.milliseconds(body)
            started = time.perf_counter()
            if runner.graphs.capture(kind, shape, body):
                row["capture_s"] = time.perf_counter() - started
                row["graph_ms"] = bench.milliseconds(lambda at=shape: runner.graphs.replay(kind, at))  # type: ignore[misc]
            rows.append(row)
            print_row(row)
    return rows


def lane_table(
    bench: Bench,
    model: LanguageModel,
    settings: LaneSettings,
    users: Sequence[int],
    speech: int,
    runner: SlotRunner,
) -> list[dict[str, Any]]:
    """What a crowd that comes at once gets from a whole lane."""
    name = "kernels" if own_kernels(runner) else "plain"
    lane = LanguageModelLane(model, settings, runner)
    started = time.perf_counter()
    lane.warm_up()
    bench.wait()
    print(f"{name}: warm-up {time.perf_counter() - started:.1f} s, memory {lane.memory_bytes() / 1e6:.0f} MB")
    rows = []
    for count in (users[0], *users):  # the first time is not kept
        rows.append({"step": "lane", "name": name, **crowd(bench, lane, model.cfg, count, speech)})
        while lane.idle():
            pass
    for row in rows[1:]:
        print_row(row)
    return rows[1:]


def own_kernels(runner: SlotRunner) -> bool:
    return type(runner).__name__ == "KernelRunner"  # importing it needs Triton


def crowd(
    bench: Bench, lane: LanguageModelLane, cfg: LanguageModelConfig, users: int, speech: int
) -> dict[str, Any]:
    """`users` jobs, each until it has `speech` tokens."""
    heard = dict.fromkeys(range(users), 0)
    firsts: list[float] = []
    waits = Waits()
    started = time.perf_counter()
    lane.admit([SpeechJob(key, prompt(cfg, key)) for key in heard])
    steps = 0
    with waits:
        while lane.busy:
            steps += 1
            for event in lane.step():
                if not heard[event.key]:
                    firsts.append(time.perf_counter() - started)
                heard[event.key] += len(event.tokens)
                if heard[event.key] >= speech:
                    lane.cancel(event.key)
    bench.wait()
    seconds = time.perf_counter() - started
    return {
        "users": users,
        "tokens_per_s": sum(heard.values()) / seconds,
        "step_ms": seconds / steps * 1e3,
        "host_ms": (seconds - waits.seconds) / steps * 1e3,
        "first_token_ms": float(np.median(firsts)) * 1e3,
        "last_first_token_ms": max(firsts) * 1e3,
    }


class Waits:
    """Adds up how long readings wait for the device."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._plain = Reading.ids

    def __enter__(self) -> None:
        def timed(reading: Reading) -> list[int]:
            started = time.perf_counter()
            ids = self._plain(reading)
            self.seconds += time.perf_counter() - started
            return ids

        Reading.ids = timed  # type: ignore[assignment, method-assign]

    def __exit__(self, *_: object) -> None:
        Reading.ids = self._plain  # type: ignore[method-assign]


def prompt(cfg: LanguageModelConfig, seed: int) -> SpeechPrompt:
    """Random ids in the numbers of a usual request."""
    stream = np.random.default_rng(seed)
    text, speech = cfg.vocab_size, cfg.speech_token_size

    def ids(below: int, count: int) -> np.ndarray:
        return stream.integers(0, below, count).astype(np.int32)

    return SpeechPrompt(ids(text, TEXT_TOKENS), ids(text, TEXT_TOKENS), ids(speech, REFERENCE_TOKENS), seed)


def print_row(row: dict[str, Any]) -> None:
    print(
        "  ".join(
            f"{key} {value:.3f}" if isinstance(value, float) else f"{key} {value}"
            for key, value in row.items()
        )
    )


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.language_model_lane", description=__doc__.split("\n")[0]
    )
    add = parser.add_argument
    add("--size", choices=sorted(SIZES), default="full")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--precision", choices=sorted(DTYPES), help="fp16 on CUDA, else fp32")
    add("--slots", type=int, default=64)
    add("--context", type=int, default=1024)
    add("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    add("--prefixes", type=int, nargs="+", default=[256, 512, 1024])
    add("--prefill", type=int, default=4096, help="prompt symbols taken in at once")
    add("--no-plain", action="store_true", help="only our own kernels, where they run")
    add("--prompts", type=int, nargs="+", default=[1, 4, 8], help="prompts taken in at once")
    add("--users", type=int, nargs="+", default=[1, 4, 16, 64])
    add("--speech", type=int, default=SPEECH_TOKENS, help="speech tokens of each user")
    add("--repeats", type=int, default=30)
    add("--no-steps", action="store_true", help="only the whole lane")
    add("--json", type=Path)
    return parser.parse_args(arguments)


def plain_steps(bench: Bench, model: LanguageModel, given: argparse.Namespace) -> list[dict[str, Any]]:
    """Steps of torch's own operations."""
    rows: list[dict[str, Any]] = []
    if given.no_plain:
        return rows
    decodes = [
        Shape(r, p) for p in given.prefixes for r in given.rows if r <= given.slots and p <= given.context
    ]
    on_cuda = model.device.type == "cuda"
    for product in (False, True):
        runner = BucketRunner(
            model,
            given.slots,
            given.context,
            given.prefill,
            graphs=on_cuda,
            product=product,
        )
        rows += step_table(bench, runner, DECODE, decodes, "products" if product else "kernel")
        if not product:
            prompts = [Shape(count, size) for count in given.prompts for size in (128, 256, 512)]
            rows += step_table(bench, runner, PREFILL, prompts, "causal")
    return rows


@torch.inference_mode()
def kernel_steps(bench: Bench, model: LanguageModel, given: argparse.Namespace) -> list[dict[str, Any]]:
    """The same by our own kernels, over rows of so many positions; prompts as packed batches."""
    settings = LaneSettings(
        slots=given.slots, context=given.context, prefill_tokens=given.prefill, graphs=True
    )
    runner = make_runner(model, settings)
    if not own_kernels(runner) or not isinstance(runner, BucketRunner):
        return []
    rows = []
    for positions in given.prefixes:
        for count in given.rows:
            if count > given.slots or positions > given.context:
                continue
            table = SlotRows(runner.table)
            table.data.zero_()
            table.sampler().max_len[:count] = 1 << 40
            table.sampler().active[:count] = 1
            # A step that is timed moves on by a position each time; the rows stay close to what they are named for.
            table.lengths[:count] = positions - 3 * given.repeats
            shape = Shape(count, bucket(positions, runner.prefixes))
            found = step_table(bench, runner, DECODE, [shape], "own")
            rows += [{**row, "size": positions} for row in found]
    runner.table.zero_()
    batches = runner.prompt_shapes()
    return rows + step_table(bench, runner, PREFILL, batches, "packed")


def main(arguments: Sequence[str] | None = None) -> None:
    given = parse(arguments)
    device = torch.device(given.device)
    on_cuda = device.type == "cuda"
    dtype = DTYPES[given.precision or ("fp16" if on_cuda else "fp32")]
    model = random_model(SIZES[given.size], device, dtype)
    bench = Bench(device, given.repeats)
    print(given.size, dtype, describe(given.device))
    rows: list[dict[str, Any]] = []
    if not given.no_steps:
        rows += plain_steps(bench, model, given)
        rows += kernel_steps(bench, model, given)
    settings = LaneSettings(
        slots=given.slots,
        context=given.context,
        prefill_tokens=given.prefill,
        graphs=on_cuda,
    )
    users = [count for count in given.users if count <= given.slots]
    runner = make_runner(model, settings)
    if own_kernels(runner) and not given.no_plain:
        plain = BucketRunner(model, given.slots, given.context, given.prefill)
        rows += lane_table(bench, model, settings, users, given.speech, plain)
        del plain
    rows += lane_table(bench, model, settings, users, given.speech, runner)
    if given.json:
        facts = {"size": given.size, "dtype": str(dtype), **describe(given.device)}
        given.json.write_text(json.dumps({"machine": facts, "rows": rows}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()

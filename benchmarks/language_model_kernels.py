"""How the language model's kernels are cut best: `python -m benchmarks.language_model_kernels` (CUDA only, a minute).

Each kernel runs once a layer in a captured graph, over the weights of all layers in turn, so that nothing is read from
the cache that would not be in a real step. Prints microseconds a launch for each way to cut it, the fastest marked, the
products' error against float64, and of whole steps: kernels, milliseconds, whether rows change with their company.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.language_model_lane import DTYPES, SIZES, print_row, random_model
from benchmarks.machine import describe
from inference.runtime.bucket_runner import DECODE, BucketRunner
from inference.runtime.lane_graphs import Shape
from inference.runtime.lm_attention import SPAN, RowAttentionKernel
from inference.runtime.lm_products import Strip, product
from inference.runtime.lm_runner import KernelRunner
from inference.runtime.lm_sampler import draw_ids
from inference.runtime.lm_step import Strips
from inference.runtime.precision import relative_error
from inference.runtime.slot_table import ACTIVE, LENGTH, MOST

# outs, ins, parts, warps, stages
TRIED: dict[str, list[Strip]] = {
    "qkv": [Strip(16, 128, 1, 4, 4), Strip(16, 128, 1, 4, 7), Strip(16, 128, 1, 2, 7)],
    "out": [Strip(16, 64, 2, 4, 7), Strip(32, 64, 2, 4, 7), Strip(16, 128, 1, 4, 7)],
    "gate_up": [
        Strip(16, 128, 1, 4, 4), Strip(16, 128, 1, 4, 7), Strip(16, 64, 1, 4, 8), Strip(32, 128, 1, 4, 4),
        Strip(32, 64, 1, 4, 6), Strip(32, 128, 1, 8, 4),
    ],
    "down": [
        Strip(16, 64, 4, 4, 6), Strip(32, 64, 4, 4, 6), Strip(16, 128, 2, 4, 5), Strip(32, 128, 2, 4, 5),
        Strip(32, 64, 4, 4, 9),
    ],
    "head": [Strip(32, 128, 1, 4, 4), Strip(64, 128, 1, 4, 4)],
}  # fmt: skip


def wide(outs: int, warps: int, stages: int) -> Strip:
    """For many rows."""
    return Strip(outs, 64, 1, warps, stages, rows=128, shared=200 * 1024)


PROMPTS: dict[int, list[Strip]] = {  # symbols: cuts for a batch of prompts
    192: [Strip(32, 64, 1, 4, 6), Strip(64, 64, 1, 4, 4), Strip(32, 128, 1, 4, 4), Strip(16, 128, 1, 4, 5)],
    768: [Strip(64, 64, 1, 4, 4), wide(64, 4, 4), wide(64, 8, 4), wide(128, 8, 4)],
    4096: [wide(64, 8, 4), wide(64, 4, 4), wide(128, 8, 4), wide(128, 8, 3), wide(256, 8, 3)],
}
# span, block, warps, stages
ATTENTION = [
    (512, 64, 4, 3), (512, 64, 4, 6), (512, 32, 4, 8), (512, 128, 4, 3), (256, 64, 4, 4), (256, 128, 4, 2),
    (128, 64, 4, 2), (128, 128, 4, 2), (128, 128, 8, 2),
]  # fmt: skip
SPOKEN = 300  # positions of a usual row


class Clock:
    """Times work as a captured graph."""

    def __init__(self, device: torch.device, repeats: int) -> None:
        self.stream = torch.cuda.Stream(device)
        self.repeats = repeats

    def milliseconds(self, work: Callable[[], None]) -> float:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self.stream):
            work()
            self.stream.synchronize()
            graph.capture_begin()
            work()
            graph.capture_end()
            graph.replay()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(self.repeats):
                graph.replay()
            end.record()
            end.synchronize()
        return float(start.elapsed_time(end)) / self.repeats


def weights_of(runner: KernelRunner, name: str) -> list[tuple[Tensor, Tensor | None]]:
    """Weight and bias of each layer's product of that name; several times the head's."""
    fused = runner.step.fused
    if name == "head":
        return [(fused.head.weight.clone(), fused.head.bias) for _ in range(12)]
    return [(getattr(layer, name).weight, getattr(layer, name).bias) for layer in fused.layers]


def product_table(runner: KernelRunner, clock: Clock, rows: int) -> list[dict[str, Any]]:
    """Every way to cut each product, for so many rows."""
    table = []
    for name, tried in TRIED.items():
        layers = weights_of(runner, name)
        gated = name == "gate_up"
        weight, bias = layers[0]
        inputs = torch.randn(rows, weight.shape[1], dtype=runner.step.fused.dtype, device=weight.device)
        expected = reference(inputs, weight, bias, gated)
        found = []
        for strip in tried:
            shape = (strip.parts, rows, len(weight) // (2 if gated else 1))
            kind = torch.float32 if strip.parts > 1 or name == "head" else inputs.dtype
            result = torch.empty(shape, dtype=kind, device=weight.device)

            def work(strip: Strip = strip, result: Tensor = result) -> None:
                for some_weight, some_bias in layers:  # noqa: B023
                    product(inputs, some_weight, some_bias, result, strip, gated)  # noqa: B023

            try:
                spent = clock.milliseconds(work) / len(layers) * 1e3
            except Exception as error:  # too much shared memory, say
                print(name, strip, repr(error)[:150])
                continue
            product(inputs, weight, bias, result, strip, gated)
            row = {"step": name, "rows": rows, **asdict(strip), "us": spent}
            row["error"] = relative_error(result.sum(0).double(), expected)
            found.append(row)
        best = min(found, key=lambda row: float(row["us"]))
        for row in found:
            row["best"] = row is best
            print_row(row)
        read = weight.nbytes / best["us"] / 1e6
        print(f"{name} {rows}: best {best['us']:.2f} us, {read:.2f} TB/s")
        table += found
    return table


def prompt_table(runner: KernelRunner, clock: Clock) -> list[dict[str, Any]]:
    """Products of batches of prompts, beside cuBLAS (with the gate as torch does it)."""
    table = []
    for symbols, tried in PROMPTS.items():
        for name in ("qkv", "out", "gate_up", "down"):
            layers = weights_of(runner, name)
            gated = name == "gate_up"
            weight = layers[0][0]
            inputs = torch.randn(symbols, weight.shape[1], dtype=weight.dtype, device=weight.device)
            outs = len(weight) // (2 if gated else 1)
            result = torch.empty(symbols, outs, dtype=weight.dtype, device=weight.device)

            def plain() -> None:
                for some_weight, some_bias in layers:  # noqa: B023
                    both = torch.nn.functional.linear(inputs, some_weight, some_bias)  # noqa: B023
                    if gated:  # noqa: B023
                        gate, up = both.chunk(2, dim=-1)
                        torch.mul(torch.nn.functional.silu(gate), up)

            flops = 2 * symbols * weight.numel() / 1e6
            ways: list[tuple[str, Callable[[], None]]] = [("cublas", plain)]
            for strip in tried:
                if gated and strip.outs > 128:
                    continue

                def work(strip: Strip = strip) -> None:
                    for some_weight, some_bias in layers:  # noqa: B023
                        product(inputs, some_weight, some_bias, result, strip, gated)  # noqa: B023

                ways.append((str(astuple(strip)[:6]), work))
            for way, run in ways:
                try:
                    spent = clock.milliseconds(run) / len(layers) * 1e3
                except Exception as error:
                    print(name, way, repr(error)[:150])
                    continue
                row = {"step": "prompt", "product": name, "symbols": symbols, "way": way, "us": spent}
                table.append({**row, "tflops": flops / spent})
                print_row(table[-1])
    return table


def reference(inputs: Tensor, weight: Tensor, bias: Tensor | None, gated: bool) -> Tensor:
    both = torch.nn.functional.linear(
        inputs.double(), weight.double(), None if bias is None else bias.double()
    )
    if not gated:
        return both
    gate, up = both.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def fill(runner: KernelRunner, rows: int, length: int) -> None:
    """The first `rows` slots speak, `length` positions each; the others are silent."""
    table = runner.table
    table.zero_()
    table[:rows, LENGTH], table[:rows, ACTIVE], table[:rows, MOST] = length, 1, 1 << 30
    table[:rows, 2] = torch.arange(rows, device=table.device) * 7919


def attention_table(runner: KernelRunner, clock: Clock, rows: int) -> list[dict[str, Any]]:
    """Blocks and warps of the attention of a decode step; and the draw."""
    step, table = runner.step, []
    cfg = runner.cfg
    width = cfg.num_heads + 2 * cfg.num_kv_heads
    fused = torch.randn(rows, width, cfg.head_dim, dtype=step.fused.dtype, device=runner.device)
    result = torch.empty(rows, cfg.num_heads * cfg.head_dim, dtype=fused.dtype, device=runner.device)
    turns = step.rows_kernel.turns
    for length in (SPOKEN, 900):
        fill(runner, rows, length)
        for span, block, warps, stages in ATTENTION:
            kernel = RowAttentionKernel(runner.cache, turns, cfg.num_heads, rows, span)
            kernel.block, kernel.warps, kernel.stages = block, warps, stages

            def work(kernel: RowAttentionKernel = kernel, length: int = length) -> None:
                for layer in range(cfg.num_layers):
                    kernel(layer, fused, runner.table, result, length + 1)

            row = {"step": "attention", "rows": rows, "length": length, "span": span, "block": block}
            row |= {"warps": warps, "stages": stages}
            table.append({**row, "us": clock.milliseconds(work) / cfg.num_layers * 1e3})
            print_row(table[-1])
    logits = torch.randn(rows, cfg.speech_vocab_size, device=runner.device)
    for warps in (8, 16, 32):

        def draw(warps: int = warps) -> None:
            for _ in range(10):
                draw_ids(logits, runner.table, runner.drawn, cfg, advance=False, warps=warps)

        table.append({"step": "draw", "rows": rows, "warps": warps, "us": clock.milliseconds(draw) * 100})
        print_row(table[-1])
    return table


def step_table(runner: KernelRunner, clock: Clock, name: str, rows: Sequence[int]) -> list[dict[str, Any]]:
    """Whole decode steps."""
    table = []
    for count in rows:
        for length in (SPOKEN, 900):
            fill(runner, count, length)
            kernels = runner.step

            def work(count: int = count, length: int = length) -> None:
                kernels.decode(count, SPAN if length < SPAN else runner.prefixes[-1], runner.drawn)  # noqa: B023
                runner.table[:count, LENGTH] = length

            row = {"step": "decode", "name": name, "rows": count, "length": length}
            table.append({**row, "ms": clock.milliseconds(work)})
            print_row(table[-1])
    return table


def company(runner: KernelRunner) -> None:
    """Whether the first row's logits are the same bits for every number of rows."""
    seen: dict[int, Tensor] = {}
    runner.cache.normal_()
    for rows in (1, 2, 4, 8, 16, 32, 64):
        if rows > runner.slots:
            break
        fill(runner, rows, SPOKEN)
        runner.step.decode(rows, SPAN, runner.drawn)
        seen[rows] = runner.step.logits[0].clone()
    torch.cuda.synchronize()
    for rows, logits in seen.items():
        error = relative_error(logits, seen[1])
        print(f"company {rows}: bits equal {torch.equal(logits, seen[1])}, error {error:.2e}")


def launches(work: Callable[[], None]) -> int:
    """Kernels of one call."""
    from torch.profiler import ProfilerActivity, profile

    work()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        work()
        torch.cuda.synchronize()
    return sum(event.count for event in seen.key_averages() if event.self_device_time_total > 0)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="benchmarks.language_model_kernels", description=__doc__.split("\n")[0]
    )
    add = parser.add_argument
    add("--size", choices=sorted(SIZES), default="full")
    add("--precision", choices=sorted(DTYPES), default="fp16")
    add("--rows", type=int, nargs="+", default=[1, 64], help="rows to tune for")
    add("--steps", type=int, nargs="+", default=[1, 16, 64])
    add("--no-tuning", action="store_true")
    add("--repeats", type=int, default=20)
    add("--json", type=Path)
    given = parser.parse_args(arguments)
    device = torch.device("cuda")
    model = random_model(SIZES[given.size], device, DTYPES[given.precision])
    print(given.size, given.precision, describe("cuda"))
    clock = Clock(device, given.repeats)
    table: list[dict[str, Any]] = []
    with torch.inference_mode():
        plain = BucketRunner(model, 64, 1024, 2048, graphs=False)
        with plain.on_stream():
            print(f"kernels of a plain decode step: {launches(plain.body(DECODE, Shape(1, 256)))}")
        del plain
        runner = KernelRunner(model, 64, 1024, 4096, graphs=False)
        table += step_table(runner, clock, "as in use", given.steps)
        fill(runner, 1, SPOKEN)
        print(f"kernels of a decode step: {launches(lambda: runner.step.decode(1, SPAN, runner.drawn))}")
        company(runner)
        if not given.no_tuning:
            table += prompt_table(runner, clock)
            for rows in given.rows:
                found = product_table(runner, clock, rows)
                table += found + attention_table(runner, clock, rows)
                strips = best_strips(found)
                print(rows, strips)
                tuned = KernelRunner(model, 64, 1024, 2048, graphs=False, strips=strips)
                table += step_table(tuned, clock, f"best of {rows}", given.steps)
    if given.json:
        facts = {"size": given.size, "precision": given.precision, **describe("cuda")}
        given.json.write_text(json.dumps({"machine": facts, "rows": table}, indent=1), encoding="utf-8")


def best_strips(found: Sequence[dict[str, Any]]) -> Strips:
    """The fastest cut of each product."""
    keys = ("outs", "ins", "parts", "warps", "stages")
    return Strips(**{row["step"]: Strip(*(row[key] for key in keys)) for row in found if row["best"]})


if __name__ == "__main__":
    main()

"""What a chunk of speech costs along a text: `python -m benchmarks.flow_chunks`.

The flow model alone, random weights of the public sizes or of nano's, streams in step with each other. For each call
of the schedule: milliseconds when every stream has pages (a new voice each, then known ones), when there are none, and
when all is computed from frame 0 in the packed row. On the CPU the chunk-by-chunk way is measured instead of the paged
one. `host`: of the last way's milliseconds those that the launching thread is busy. `--json FILE` keeps the numbers.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.machine import describe
from inference.models.config import EstimatorConfig, FlowConfig, FlowEncoderConfig
from inference.models.flow import FlowModel
from inference.runtime.flow_cache import IncrementalFlow
from inference.runtime.packed_flow import FlowJob, PackedFlow, encoder_shape
from inference.runtime.paged_flow import PagedFlow
from inference.runtime.paged_layout import row_ladder
from inference.runtime.schedule import ChunkCall, ChunkSchedule

SIZES = {
    "full": FlowConfig(),
    "nano": FlowConfig(
        input_size=192,
        encoder=FlowEncoderConfig(192, 192, attention_heads=4, linear_units=512, num_blocks=3),
        estimator=EstimatorConfig(
            channels=128, attention_head_dim=32, num_heads=4, n_blocks=1, num_mid_blocks=6
        ),
    ),
}
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
Times = list[tuple[float, float]]  # milliseconds until the device is done, and until all is launched


class Bench:
    """One model and some streams of one voice each."""

    def __init__(self, args: argparse.Namespace, streams: int) -> None:
        self.args, self.streams, self.prompt = args, streams, args.prompt
        self.device = torch.device(args.device)
        torch.manual_seed(0)
        self.flow = FlowModel(SIZES[args.size]).eval().requires_grad_(False)
        self.flow = self.flow.to(self.device, DTYPES[args.precision])
        self.packed = PackedFlow(self.flow, streams, graphs=args.graphs)
        generator = np.random.default_rng(0)
        self.prompts = generator.integers(0, 6561, (streams, args.prompt))
        self.tokens = generator.integers(0, 6561, (streams, args.tokens))
        self.mels = generator.standard_normal((streams, 2 * args.prompt, 80)).astype(np.float32) - 5
        self.speakers = generator.standard_normal((streams, 192)).astype(np.float32)
        schedule = ChunkSchedule(args.prompt, self.flow.cfg.pre_lookahead)
        self.calls: list[ChunkCall] = []
        while call := schedule.next_call(args.tokens, finished=True):
            self.calls.append(call)

    def timed(self, work: Callable[[], object]) -> tuple[float, float]:
        """Milliseconds until the device is done, and until the host is."""
        self._wait()
        started = time.perf_counter()
        work()
        host = time.perf_counter()
        self._wait()
        return 1000 * (time.perf_counter() - started), 1000 * (host - started)

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def recomputed(self) -> Times:
        """Each call from frame 0, all streams in one packed batch."""
        speakers = self.flow.project_speaker(torch.from_numpy(self.speakers).to(self.device)).float()
        mels = torch.from_numpy(self.mels).to(self.device)
        times = []
        for call in self.calls:
            joined = np.concatenate((self.prompts, self.tokens[:, : call.token_count]), axis=1)
            first = 2 * (self.prompt + call.offset)
            rows = zip(joined, mels, speakers)
            jobs = [FlowJob(row, True, call.final, mel, speaker, first) for row, mel, speaker in rows]
            times.append(self.timed(lambda jobs=jobs: self.packed.run(jobs)))  # type: ignore[misc]
        return times

    def incremental(self, flow: Any) -> Times:
        """Each call from what was kept."""
        streams = [flow.open(*given) for given in zip(self.prompts, self.mels, self.speakers)]
        times = []
        for call in self.calls:
            new = [row[streams[0].given : call.token_count] for row in self.tokens]
            finals = [call.final] * self.streams
            times.append(
                self.timed(lambda new=new, finals=finals: flow.extend(streams, new, finals))  # type: ignore[misc]
            )
        for stream in streams:
            flow.close(stream)
        return times


def measure(args: argparse.Namespace, streams: int) -> dict[str, Any]:
    """Milliseconds a call; with captured graphs the last of three rounds counts."""
    bench = Bench(args, streams)
    budget = int(args.budget * 2**30)
    results: dict[str, Any] = {}
    if args.device == "cpu":
        ways: dict[str, Any] = {"new voice": IncrementalFlow(bench.flow, budget)}
    else:
        flow = PagedFlow(bench.flow, bench.packed, budget, streams, graphs=args.graphs)
        poor = PagedFlow(bench.flow, bench.packed, 0, streams, graphs=args.graphs)
        results["warm-up s"] = [round(bench.timed(lambda: _warm(bench, flow, poor))[0] / 1000, 2)]
        ways = {"new voice": flow, "no pages": poor}
    for name, way in ways.items():
        for _ in range(2 if name == "no pages" else 1):
            results[name] = bench.incremental(way)
        if name == "new voice":
            for _ in range(2):
                results["known voice"] = bench.incremental(way)
            if args.device != "cpu":
                results["pages MB"] = [round(way.memory_bytes / 1e6)]
    if not args.skip_recomputed:
        for _ in range(3 if args.graphs else 1):
            results["from frame 0"] = bench.recomputed()
    if args.device != "cpu":
        results["reserved MB"] = [round(torch.cuda.max_memory_reserved() / 1e6)]
    return results


def _warm(bench: Bench, *flows: PagedFlow) -> None:
    """Capture what the streams will need."""
    tokens = bench.prompt + bench.args.tokens
    for needed in sorted({encoder_shape(bench.streams, size) for size in range(50, tokens + 1)}):
        bench.packed.prepare_encoder(*needed)
    for flow in flows:
        for rows in reversed(row_ladder(2 * tokens * bench.streams)):
            flow.solver.prepare(rows)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flow_chunks", description=__doc__)
    add = parser.add_argument
    add("--device", default="cpu")
    add("--size", choices=SIZES, default="nano")
    add("--precision", choices=DTYPES, default="fp32")
    add("--streams", default="1", help="comma-separated")
    add("--prompt", type=int, default=100, help="tokens of the reference")
    add("--tokens", type=int, default=250, help="tokens of the speech")
    add("--budget", type=float, default=1.0, help="GiB for the incremental flow")
    add("--graphs", action="store_true", help="capture CUDA graphs")
    add("--skip-recomputed", action="store_true")
    add("--json", type=Path, default=None)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    args = parse(arguments)
    report = {"machine": describe(args.device), "arguments": {k: str(v) for k, v in vars(args).items()}}
    found: dict[str, dict[str, Any]] = {}
    for streams in map(int, args.streams.split(",")):
        started = time.perf_counter()
        # Also the default stream will do, but work on it waits for the whole device.
        scope = torch.cuda.stream(torch.cuda.Stream()) if args.device != "cpu" else nullcontext()
        with scope:
            found[str(streams)] = measure(args, streams)
        spent = time.perf_counter() - started
        print(
            f"{streams} streams of {args.tokens / 25:.0f} s ({args.size}, {args.precision}, {args.device}):"
        )
        for name, values in found[str(streams)].items():
            print(f"  {name:13s} {_line(values, streams * args.tokens / 25)}")
        print(f"  measured in {spent:.0f} s", flush=True)
        if args.json is not None:
            args.json.write_text(json.dumps({**report, "milliseconds": found}, indent=1), encoding="utf-8")
        if args.device != "cpu":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()


def _line(values: Any, seconds: float) -> str:
    if not isinstance(values[0], tuple):
        return " ".join(str(value) for value in values)
    total = sum(device for device, _ in values) / 1000
    times = " ".join(f"{device:7.1f}" for device, _ in values)
    host = " ".join(f"{busy:.1f}" for _, busy in values)
    return f"{times} ms, {total:.3f} s, {seconds / total:.1f} audio-s/s, host {host} ms"


if __name__ == "__main__":
    main()

"""What a chunk of speech costs along a text: `python -m benchmarks.flow_chunks`.

The flow model alone, random weights of the public sizes or of nano's, streams in step with each other. For each call
of the schedule: milliseconds when everything is computed from frame 0, and with the incremental flow, for a new voice
and for one whose prompt is known. `--json FILE` keeps the numbers.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks.machine import describe
from inference.models.config import EstimatorConfig, FlowConfig, FlowEncoderConfig
from inference.models.flow import FlowModel
from inference.runtime.flow_cache import IncrementalFlow
from inference.runtime.packed_flow import FlowJob, PackedFlow
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
Times = list[float]


class Bench:
    """One model and some streams of one voice each."""

    def __init__(self, args: argparse.Namespace, streams: int) -> None:
        self.device = torch.device(args.device)
        torch.manual_seed(0)
        with torch.device(self.device):
            self.flow = FlowModel(SIZES[args.size]).to(DTYPES[args.precision]).eval().requires_grad_(False)
        self.streams, self.prompt = streams, args.prompt
        self.packed = PackedFlow(self.flow, streams, graphs=args.graphs)
        generator = np.random.default_rng(0)
        self.prompts = generator.integers(0, 6561, (streams, args.prompt))
        self.tokens = generator.integers(0, 6561, (streams, args.tokens))
        self.mels = generator.standard_normal((streams, 2 * args.prompt, 80)).astype(np.float32) - 5
        self.speakers = generator.standard_normal((streams, 192)).astype(np.float32)

    def calls(self) -> list[ChunkCall]:
        """The schedule of every stream."""
        schedule = ChunkSchedule(self.prompt, self.flow.cfg.pre_lookahead)
        found = []
        while call := schedule.next_call(self.tokens.shape[1], finished=True):
            found.append(call)
        return found

    def timed(self, work: Callable[[], object]) -> float:
        """Milliseconds until the device is done."""
        started = time.perf_counter()
        work()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return 1000 * (time.perf_counter() - started)

    def recomputed(self) -> Times:
        """Each call from frame 0, all streams in one packed batch."""
        speakers = self.flow.project_speaker(torch.from_numpy(self.speakers).to(self.device)).float()
        mels = torch.from_numpy(self.mels).to(self.device)

        def jobs(call: ChunkCall) -> list[FlowJob]:
            joined = np.concatenate((self.prompts, self.tokens[:, : call.token_count]), axis=1)
            first = 2 * (self.prompt + call.offset)
            rows = zip(joined, mels, speakers)
            return [FlowJob(row, True, call.final, mel, speaker, first) for row, mel, speaker in rows]

        return [self.timed(partial(self.packed.run, jobs(call))) for call in self.calls()]

    def incremental(self, flow: IncrementalFlow) -> Times:
        """Each call from what was kept."""
        caches = []
        for given in zip(self.prompts, self.mels, self.speakers):
            cache = flow.open(*given)
            if cache is None:
                return []
            caches.append(cache)
        times = []
        for call in self.calls():
            new = [row[caches[0].given : call.token_count].copy() for row in self.tokens]
            finals = [call.final] * self.streams
            times.append(self.timed(partial(flow.extend, caches, new, finals)))
        if any(cache.lost for cache in caches):
            print("  (over budget: some streams were recomputed)")
        for cache in caches:
            flow.close(cache)
        return times


def measure(args: argparse.Namespace, streams: int) -> dict[str, Times]:
    """Milliseconds a call. With captured graphs the third round counts: seen, recorded, replayed."""
    bench = Bench(args, streams)
    flow = IncrementalFlow(bench.flow, int(args.budget * 2**30), graphs=args.graphs)
    results: dict[str, Times] = {}
    rounds = 3 if args.graphs else 1
    results["new voice"] = bench.incremental(flow)
    for _ in range(rounds):
        results["known voice"] = bench.incremental(flow)
    if not args.skip_recomputed:
        for _ in range(rounds):
            results["from frame 0"] = bench.recomputed()
    return results


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flow_chunks", description=__doc__)
    add = parser.add_argument
    add("--device", default="cpu")
    add("--size", choices=SIZES, default="nano")
    add("--precision", choices=DTYPES, default="fp32")
    add("--streams", default="1", help="comma-separated")
    add("--prompt", type=int, default=100, help="tokens of the reference")
    add("--tokens", type=int, default=500, help="tokens of the speech")
    add("--budget", type=float, default=1.0, help="GiB for the incremental flow")
    add("--graphs", action="store_true", help="capture CUDA graphs")
    add("--skip-recomputed", action="store_true")
    add("--json", type=Path, default=None)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    args = parse(arguments)
    report = {"machine": describe(args.device), "arguments": {k: str(v) for k, v in vars(args).items()}}
    found: dict[str, dict[str, Times]] = {}
    for streams in map(int, args.streams.split(",")):
        found[str(streams)] = measure(args, streams)
        seconds = streams * args.tokens / 25
        print(
            f"{streams} streams of {args.tokens / 25:.0f} s ({args.size}, {args.precision}, {args.device}):"
        )
        for name, times in found[str(streams)].items():
            total = sum(times) / 1000
            rate = f"{seconds / total:.1f} audio-s/s" if total else "over budget"
            print(f"  {name:13s} {' '.join(f'{value:7.1f}' for value in times)} ms, {total:.3f} s, {rate}")
    if args.json is not None:
        args.json.write_text(json.dumps({**report, "milliseconds": found}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()

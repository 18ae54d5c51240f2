"""Vocoder and flow by backend: time, error and memory side by side.

    python -m benchmarks.backends --device cuda                      # the public size, random weights
    python -m benchmarks.backends --device cpu --model nano --threads 1

The vocoder's spectrum from mel and source spectrum (packed rows on CUDA, item by item on the CPU), and ten Euler steps
of the flow. Errors are relative 2-norms against torch in float32 (TF32 off). With --threads 1 on the CPU
the time is the process's own, whatever else the machine does. "graph" is the same in a CUDA graph;
the flow's ways but "torch" and "torch-fp32" have graphs of their own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.backend_ways import Case, Way, flow_way, spectrum_backend, spectrum_way
from benchmarks.machine import describe, resident_mb
from benchmarks.wave_lane import load_parts
from inference.models.flow import FlowModel
from inference.models.vocoder import Vocoder
from inference.runtime.precision import relative_error

BASELINE = "torch-fp32"
VOCODERS = ("torch", "triton", "channels_last", "compiled", "compiled-static", "onnxruntime", "tensorrt")
FLOWS = (
    "torch",
    "packed",
    "packed-compiled",
    "triton",
    "compiled",
    "compiled-static",
    "onnxruntime",
    "tensorrt",
)
DEFAULTS: dict[str, dict[str, tuple[str, ...]]] = {
    "cpu": {"vocoder": ("torch-fp32", "channels_last", "onnxruntime"), "flow": ("torch-fp32", "onnxruntime")},
    "cuda": {
        "vocoder": ("torch-fp32", "torch", "triton", "compiled", "tensorrt"),
        "flow": ("torch-fp32", "torch", "packed", "packed-compiled", "triton", "tensorrt"),
    },
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One measurement; `ms` and `graph_ms` are medians, `prepare_s` is what came before: export, compile, build."""

    part: str
    backend: str
    items: int
    seconds: float
    ms: float
    graph_ms: float | None
    times_faster: float
    error: float
    memory_mb: float
    prepare_s: float


def main(arguments: Sequence[str] | None = None) -> list[Row]:
    options = _options(arguments)
    torch.set_num_threads(options.threads)
    torch.backends.cudnn.allow_tf32 = False
    flow, vocoder = load_parts(options.model, options.device)
    print(json.dumps(describe(options.device)), flush=True)
    bench = _Bench(options, flow, vocoder)
    for part in options.parts:
        for name in options.backends or DEFAULTS[torch.device(options.device).type][part]:
            bench.measure(part, name)
    if options.json:
        found = {"machine": describe(options.device), "rows": [asdict(row) for row in bench.rows]}
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return bench.rows


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.backends", description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--model", choices=("full", "nano"), default="full")
    parser.add_argument("--parts", nargs="+", choices=("vocoder", "flow"), default=["vocoder", "flow"])
    parser.add_argument("--backends", nargs="+", choices=sorted({BASELINE, *VOCODERS, *FLOWS}))
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--seconds", type=float, nargs="+", default=[1.0, 4.0, 10.0])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--cache", type=Path, help="where graphs and engines are kept (default: as the studio)"
    )
    parser.add_argument("--json", type=Path)
    return parser.parse_args(arguments)


class _Bench:
    def __init__(self, options: argparse.Namespace, flow: FlowModel, vocoder: Vocoder) -> None:
        self.rows: list[Row] = []
        self._options, self._flow, self._vocoder = options, flow, vocoder
        self._cuda = options.device.startswith("cuda")
        self._stream = torch.cuda.Stream(options.device) if self._cuda else None
        self._expected: dict[tuple[str, Case], tuple[Tensor, float]] = {}
        print(" ".join(f"{name:>15}" for name in Row.__dataclass_fields__))

    def measure(self, part: str, name: str) -> None:
        """All sizes of one backend; what it cannot do is said and left out."""
        cases = [Case(items, seconds) for seconds in self._options.seconds for items in self._options.batch]
        started = time.perf_counter()
        ways: Callable[[Case], Way]
        try:
            if part == "vocoder":
                backend = spectrum_backend(name, self._vocoder, self._options.cache)
                ways = lambda case: spectrum_way(name, backend, self._vocoder, case)  # noqa: E731
            else:
                ways = lambda case: flow_way(name, self._flow, case, self._options.cache)  # noqa: E731
            for case in cases:
                self._case(part, name, case, ways(case), started)
                started = time.perf_counter()
        except Exception as error:  # the libraries' errors share no base class
            print(f"{part} {name}: {type(error).__name__}: {str(error).splitlines()[:1]}", flush=True)

    @torch.inference_mode()
    def _case(self, part: str, name: str, case: Case, way: Way, started: float) -> None:
        with torch.cuda.stream(self._stream):
            before = self._memory(reset=True)
            found = way().float().clone()
            self._wait()
            prepared = time.perf_counter() - started
            for _ in range(2):
                way()
            ms = self._median(way)
            memory = self._memory() - before
            graph_ms = self._graphed(way, name) if self._cuda and part == "vocoder" else None
        key = (part, case)
        if name == BASELINE:
            self._expected[key] = (found, ms)
        expected, baseline = self._expected.get(key, (None, float("nan")))
        error = float("nan") if expected is None else relative_error(found, expected)
        best = min(ms, graph_ms or ms)
        row = Row(
            part, name, case.items, case.seconds, ms, graph_ms, baseline / best, error, memory, prepared
        )
        self.rows.append(row)
        print(" ".join(f"{_text(value):>15}" for value in asdict(row).values()), flush=True)

    def _median(self, work: Callable[[], object]) -> float:
        # On one core of a shared machine the process's own time is what can be compared.
        clock = time.process_time if not self._cuda and self._options.threads == 1 else time.perf_counter
        times = []
        for _ in range(self._options.repeat):
            self._wait()
            begun = clock()
            work()
            self._wait()
            times.append(1000.0 * (clock() - begun))
        return statistics.median(times)

    def _graphed(self, way: Way, name: str) -> float | None:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=self._stream):
                way()
        except RuntimeError as error:
            print(f"{name}: no graph: {str(error).splitlines()[:1]}")
            return None
        return self._median(graph.replay)

    def _wait(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()

    def _memory(self, reset: bool = False) -> float:
        if not self._cuda:
            return resident_mb()
        if reset:
            torch.cuda.reset_peak_memory_stats(self._options.device)
            return torch.cuda.memory_allocated(self._options.device) / 1e6
        return torch.cuda.max_memory_allocated(self._options.device) / 1e6


def _text(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()

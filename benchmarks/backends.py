"""Vocoder and flow by backend: time, error and memory side by side, and what `auto` takes.

    python -m benchmarks.backends --device cuda --json backends.json   # the public size, random weights; four minutes
    python -m benchmarks.backends --device cpu --model nano --threads 1

The vocoder's spectrum from mel and source spectrum (packed rows on CUDA, item by item on the CPU), and ten Euler steps
of the flow behind a reference of 4 s. Errors are relative 2-norms against torch in float32 (TF32 off). With --threads 1
on the CPU the time is the process's own, whatever else the machine does. "graph" is the same in a CUDA graph; the
flow's ways but "torch" and "torch-fp32" have graphs of their own.

After --budget seconds nothing further is begun; what was measured is written after every row. At the end the product's
own choice is made (self-tests and its short measurement), and its rows are marked.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.backend_auto import chosen_names
from benchmarks.backend_report import Report, Row
from benchmarks.backend_ways import Case, Way, flow_way, spectrum_backend, spectrum_way
from benchmarks.machine import describe, resident_mb
from benchmarks.wave_lane import load_parts
from inference.faults import is_device_fault
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
    "fused",
    "compiled",
    "compiled-static",
    "onnxruntime",
    "tensorrt",
)
DEFAULTS: dict[str, dict[str, tuple[str, ...]]] = {
    "cpu": {
        "vocoder": ("torch-fp32", "channels_last", "onnxruntime"),
        "flow": ("torch-fp32", "fused", "onnxruntime"),
    },
    "cuda": {
        "vocoder": ("torch-fp32", "triton", "torch", "compiled", "tensorrt"),
        "flow": ("torch-fp32", "triton", "packed", "torch", "packed-compiled", "tensorrt"),
    },
}
GRID = [(items, seconds) for seconds in (1.0, 4.0, 10.0) for items in (1, 4, 16)] + [(8, 10.0)]
_LONGEST = 1.0  # seconds of one row's repeats
_SLOW = 3.0  # seconds after which the first run is the measurement
_CHOOSING = {"cpu": 10.0, "cuda": 45.0}  # seconds that the choice is left
_COMPILE = ("compiled", "compiled-static", "packed-compiled")


def main(arguments: Sequence[str] | None = None) -> list[Row]:
    begun = time.monotonic()
    options = _options(arguments)
    torch.set_num_threads(options.threads)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    flow, vocoder = load_parts(options.model, options.device)
    bench = _Bench(options, flow, vocoder)
    on = torch.device(options.device).type
    spare = min(_CHOOSING[on], options.budget / 4) if options.choose else 0.0
    for number, part in enumerate(options.parts, 1):
        share = begun + (options.budget - spare) * number / len(options.parts)
        bench.measure(part, options.backends or DEFAULTS[on][part], share)
    if options.choose and not bench.broken:
        names = chosen_names(
            flow, vocoder, options.parts, options.cache, begun + options.budget - time.monotonic()
        )
        bench.report.conclude(names)
    return bench.report.rows


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.backends",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--model", choices=("full", "nano"), default="full")
    parser.add_argument("--parts", nargs="+", choices=("vocoder", "flow"), default=["vocoder", "flow"])
    parser.add_argument("--backends", nargs="+", choices=sorted({BASELINE, *VOCODERS, *FLOWS}))
    parser.add_argument("--batch", type=int, nargs="+", help="default: 1 4 16, and 8 of 10 s")
    parser.add_argument("--seconds", type=float, nargs="+", help="default: 1 4 10")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--budget", type=float, default=220.0, help="seconds for all")
    parser.add_argument("--no-choose", dest="choose", action="store_false", help="leave out what auto takes")
    parser.add_argument(
        "--cache", type=Path, help="where graphs and engines are kept (default: as the studio)"
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    options.cases = _cases(options.batch, options.seconds)
    return options


def _cases(batch: list[int] | None, seconds: list[float] | None) -> list[Case]:
    """The cheapest first."""
    grid = GRID
    if batch or seconds:
        grid = [(items, each) for items in batch or (1, 4, 16) for each in seconds or (1.0, 4.0, 10.0)]
    return sorted((Case(*entry) for entry in grid), key=lambda case: case.items * case.seconds)


@dataclass
class _Try:
    """A backend of a part on its way through the sizes."""

    part: str
    name: str
    deadline: float
    ways: Callable[[Case], Way] | None = None
    pace: float = 0.0  # seconds a frame, of the last size
    over: bool = False

    def check_time(self, case: Case) -> None:
        """Raises `TimeoutError`."""
        if time.monotonic() + 3 * self.pace * self.size(case) > self.deadline:
            raise TimeoutError("there was no time left for this and longer ones")

    def size(self, case: Case) -> int:
        """Frames to compute."""
        return case.items * (case.frames + (case.prompt if self.part == "flow" else 0))


class _Bench:
    def __init__(self, options: argparse.Namespace, flow: FlowModel, vocoder: Vocoder) -> None:
        self.report = Report(describe(options.device), options.json)
        self.broken = False
        self._options, self._flow, self._vocoder = options, flow, vocoder
        self._cuda = options.device.startswith("cuda")
        self._stream = torch.cuda.Stream(options.device) if self._cuda else None
        self._expected: dict[tuple[str, Case], tuple[Tensor, float]] = {}

    def measure(self, part: str, names: Sequence[str], deadline: float) -> None:
        """All sizes, the cheapest first; what a backend cannot do, or what there is no time for, is said and left out.

        Those that compile come last: nothing can interrupt them.
        """
        at_once = [name for name in names if name not in _COMPILE]
        for group in (at_once, *([name] for name in names if name in _COMPILE)):
            tries = [_Try(part, name, deadline) for name in group]
            for case in self._options.cases:
                for one in tries:
                    if not (one.over or self.broken):
                        self._attempt(one, case)
            if self._cuda and not self.broken:
                torch.cuda.empty_cache()

    def _attempt(self, one: _Try, case: Case) -> None:
        started = time.perf_counter()
        try:
            one.check_time(case)
            one.ways = one.ways or self._ways(one.part, one.name)
            ms = self._case(one.part, one.name, case, one.ways(case), started)
            one.pace = ms / 1000.0 / one.size(case)
        except Exception as error:  # the libraries' errors share no base class
            # Out of time it stays; what has never run cannot be had here. Else another size may be possible.
            one.over = not one.pace or isinstance(error, TimeoutError)
            self.broken = is_device_fault(error)  # nothing can be computed any more
            self.report.fail(one.part, one.name, (case.items, case.seconds), error)

    def _ways(self, part: str, name: str) -> Callable[[Case], Way]:
        if part == "flow":
            return lambda case: flow_way(name, self._flow, case, self._options.cache)
        backend = spectrum_backend(name, self._vocoder, self._options.cache)
        return lambda case: spectrum_way(backend, self._vocoder, case)

    @torch.inference_mode()
    def _case(self, part: str, name: str, case: Case, way: Way, started: float) -> float:
        """Milliseconds."""
        with torch.cuda.stream(self._stream):
            before = self._memory(reset=True)
            found = way().float().clone()
            self._wait()
            prepared = time.perf_counter() - started
            if prepared > _SLOW and name == BASELINE:  # cuDNN's choice for a shape may take twenty seconds
                ms = 1000.0 * prepared
            else:
                for _ in range(2 if self._cuda and name != BASELINE else 0):  # seen, captured
                    way()
                ms = self._median(way)
            memory = self._memory() - before
            graph_ms = self._graphed(way, name) if self._cuda and part == "vocoder" else None
        if name == BASELINE:
            self._expected[part, case] = (found, ms)
        expected, baseline = self._expected.get((part, case), (None, math.nan))
        error = math.nan if expected is None else relative_error(found, expected)
        faster = 1.0 if name == BASELINE else baseline / min(ms, graph_ms or ms)
        row = Row(part, name, case.items, case.seconds, ms, graph_ms, faster, error, memory, prepared)
        self.report.add(row)
        return ms

    def _median(self, work: Callable[[], object]) -> float:
        # On one core of a shared machine the process's own time is what can be compared.
        clock = time.process_time if not self._cuda and self._options.threads == 1 else time.perf_counter
        times: list[float] = []
        while len(times) < self._options.repeat and sum(times) < 1000.0 * _LONGEST:
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
            if is_device_fault(error):
                raise
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


if __name__ == "__main__":
    main()

"""The velocity network's kernels one by one: `python -m benchmarks.velocity_kernels` tries tile sizes for several
numbers of rows on the GPU, prints milliseconds of each beside PyTorch's way and the error against float32, and then
times whole Euler steps with the plans of `velocity_tiles`. With --before-hopper matrices are read from pointers and
kernels wait for each other, as on earlier cards.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.machine import describe
from benchmarks.velocity_cases import SHAPES, Inputs
from benchmarks.wave_lane import load_parts
from inference.models.flow import FlowModel
from inference.runtime import gpu_traits
from inference.runtime.velocity_tiles import (
    LARGE_CARD,
    SMALL_CARD,
    AttentionTiles,
    FeedForwardTiles,
    LinearTiles,
    Plan,
)

L, W, A = LinearTiles, FeedForwardTiles, AttentionTiles
FEW_TILES: dict[str, list[Any]] = {
    "qkv": [L(32, 64, 4, 1), L(64, 64, 4, 1), L(32, 128, 4, 1), L(64, 128, 4, 1), L(64, 128, 8, 1)],
    "up": [L(32, 64, 4, 1), L(64, 64, 4, 1), L(32, 128, 4, 1), L(64, 128, 4, 1)],
    "out": [
        L(32, 32, 4, 4, 128),
        L(16, 32, 2, 4, 128),
        L(32, 64, 4, 4, 128),
        L(64, 64, 4, 4),
        L(64, 32, 4, 4, 128),
    ],
    "down": [
        L(32, 32, 4, 4, 128),
        L(16, 32, 2, 4, 128),
        L(32, 64, 4, 4, 128),
        L(64, 64, 4, 4),
        L(64, 32, 4, 4, 128),
    ],
    "ff": [W(16, 64, 4, 3)],
    "conv": [L(16, 256, 8, 3, 128), L(16, 256, 4, 3, 128), L(32, 256, 8, 3, 128), L(16, 256, 8, 4)],
    "final": [L(16, 128, 4, 3), L(16, 128, 4, 2, 128)],
    "attention": [A(64, 64, 4, 3), A(64, 64, 4, 2), A(64, 128, 4, 2), A(128, 64, 4, 3)],
}
MANY_TILES: dict[str, list[Any]] = {
    "qkv": [
        L(128, 64, 8, 3, tiles=24), L(128, 64, 8, 2, tiles=24), L(128, 128, 8, 2, tiles=12), L(128, 64, 8, 3, tiles=12),
        L(64, 64, 4, 2, tiles=6), L(64, 64, 4, 2, tiles=24), L(128, 256, 8, 1), L(128, 128, 8, 1), L(64, 128, 4, 1),
        L(64, 256, 8, 1), L(128, 64, 4, 2, tiles=6),
    ],
    "up": [L(64, 64, 4, 2, tiles=4), L(128, 64, 8, 3, tiles=16), L(128, 128, 8, 1), L(64, 128, 4, 1)],
    "out": [
        L(128, 256, 8, 3), L(128, 128, 4, 3), L(64, 128, 4, 4), L(128, 256, 8, 4), L(64, 256, 4, 3),
        L(128, 128, 8, 3, 128),
    ],
    "down": [L(128, 256, 8, 3), L(128, 128, 4, 3), L(64, 128, 4, 4), L(128, 256, 8, 4)],
    "ff": [
        W(128, 64, 8, 2), W(128, 32, 8, 3), W(128, 32, 8, 2), W(64, 64, 4, 2), W(64, 32, 4, 2), W(64, 32, 4, 3),
        W(64, 64, 8, 2), W(64, 128, 8, 1), W(128, 128, 8, 1),
    ],
    "conv": [
        L(128, 256, 8, 3), L(128, 256, 8, 4), L(64, 256, 8, 3), L(64, 256, 4, 3), L(64, 256, 4, 2),
        L(128, 256, 8, 2, 128),
    ],
    "final": [L(64, 128, 4, 3), L(64, 128, 4, 2)],
    "attention": [
        A(128, 64, 4, 3), A(128, 64, 8, 3), A(128, 64, 4, 4), A(128, 64, 8, 4), A(64, 64, 4, 3), A(64, 128, 4, 2),
        A(128, 128, 8, 2), A(128, 128, 4, 2), A(128, 32, 4, 4),
    ],
}  # fmt: skip


@dataclass(frozen=True)
class Found:
    """One measurement: milliseconds of a launch and the largest difference from float32, relative to its spread."""

    shape: str
    rows: int
    part: str
    tiles: str
    ms: float
    error: float


def main(arguments: Sequence[str] | None = None) -> list[Found]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.velocity_kernels", description=__doc__)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--parts", nargs="+", choices=FEW_TILES, default=list(FEW_TILES))
    parser.add_argument("--dtype", choices=("float16", "bfloat16"), default="float16")
    parser.add_argument("--steps-only", action="store_true", help="whole steps alone")
    parser.add_argument("--before-hopper", action="store_true", help="no copy engine, no overlap")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    if options.before_hopper:
        vars(gpu_traits).update(has_copy_engine=lambda device: False, kernels_overlap=lambda device: False)
    started = time.perf_counter()
    flow, _ = load_parts("full", "cuda")
    flow = flow.to(getattr(torch, options.dtype))
    found: list[Found] = []
    with torch.inference_mode(), torch.cuda.stream(torch.cuda.Stream()):
        for shape in options.shapes:
            case = _Case(shape, flow)
            parts = () if options.steps_only else options.parts
            for part in parts:
                found += case.measure(part)
            found += case.steps()
            print(f"# {time.perf_counter() - started:.0f} s", flush=True)
    if options.json:
        text = json.dumps({"machine": describe("cuda"), "rows": [asdict(row) for row in found]}, indent=1)
        options.json.write_text(text, encoding="utf-8")
    return found


class _Case:
    """All measurements of one shape."""

    def __init__(self, shape: str, flow: FlowModel) -> None:
        self.inputs = Inputs(shape, flow)
        self.shape, self.rows = shape, self.inputs.rows

    def measure(self, part: str) -> Iterator[Found]:
        """PyTorch's way, then each tile size."""
        plain, kernel, mask = getattr(self.inputs, part)()
        expected = plain(torch.float32)
        native = self.inputs.weights.out.weight.dtype
        yield self._row(part, "torch", lambda: plain(native), (plain(native), expected, mask))
        candidates = (FEW_TILES if self.rows <= 4096 else MANY_TILES)[part]
        with ThreadPoolExecutor(8) as threads:  # compiling is most of the time
            compiled = list(threads.map(lambda tiles: _try(kernel, tiles), candidates))
        for tiles, error in zip(candidates, compiled):
            if error is not None:
                print(f"{self.shape:>16} {part:>10} {tiles}: {error}", flush=True)
                continue
            output = kernel(tiles)
            yield self._row(
                part, str(tiles), partial(getattr(kernel, "timed", kernel), tiles), (output, expected, mask)
            )

    def steps(self) -> Iterator[Found]:
        """Whole Euler steps."""
        from inference.runtime.velocity_network import KernelStep

        p, buffers = self.inputs.plain, self.inputs.buffers
        expected = self._after(p)
        yield self._row("step", "torch", lambda: p.advance(buffers), (expected, expected, None))
        for name, plan in self._plans().items():
            step = KernelStep(p.weights, p.heads, p.shifts, p.sizes, p.rate, plan)
            found = self._after(step)
            yield self._row("step", name, partial(step.advance, buffers), (found, expected, None))

    def _plans(self) -> dict[str, Plan]:
        """Those that could be right for so many rows."""
        found: dict[str, Plan] = {}
        for card, plans in (("", LARGE_CARD), (", small card", SMALL_CARD)):
            named = dict(zip(("few", "some", "many"), plans))
            named.pop("many" if self.rows <= 2048 else "few")
            found |= {name + card: plan for name, plan in named.items()}
        return found

    def _after(self, step: Any) -> Tensor:
        buffers = self.inputs.buffers
        buffers.start(torch.ones(15000, 80, device=buffers.x.device))
        step.advance(buffers)
        buffers.step.zero_()
        return buffers.x[buffers.layout.inside] - 1.0

    def _row(
        self, part: str, tiles: str, work: Callable[[], object], values: tuple[Tensor, Tensor, Tensor | None]
    ) -> Found:
        output, expected, mask = values
        difference = (
            (output.float() - expected).abs() if mask is None else (output.float() - expected).abs()[mask]
        )
        error = float(difference.max() / expected.std())

        def again() -> None:
            work()
            self.inputs.buffers.step.zero_()

        timed, launches = (again, 3) if part == "step" else (work, 20)
        row = Found(self.shape, self.rows, part, tiles, _milliseconds(timed, launches), error)
        print(f"{row.shape:>16} {row.rows:>6} {part:>10} {row.ms:8.4f} ms {error:9.2g}  {tiles}", flush=True)
        return row


def _try(kernel: Callable[[Any], Tensor], tiles: Any) -> str | None:
    try:
        with torch.inference_mode():
            kernel(tiles)
    except Exception as error:  # out of shared memory, say
        return repr(error)[:200]
    return None


def _milliseconds(work: Callable[[], object], launches: int = 20) -> float:
    """Of one call, out of a captured graph of several."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        for _ in range(launches):
            work()
    graph.replay()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    graph.replay()
    graph.replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / (2 * launches)


if __name__ == "__main__":
    main()

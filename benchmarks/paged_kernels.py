"""The kernels over pages by tiles: `python -m benchmarks.paged_kernels` prints microseconds a launch, at the public
size in float16, for numbers of streams, new chunks and pages; a whole Euler step, and its kernels one by one."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from inference.models.config import FlowConfig
from inference.models.flow import FlowModel
from inference.runtime.captured import Programs
from inference.runtime.flow_pages import PAIR
from inference.runtime.paged_kernels import KernelPages, Tiles
from inference.runtime.paged_layout import DeviceRow, RowItem, RowLayout, TableSizes, row_ladder
from inference.runtime.paged_memory import PageMemory, PageShape
from inference.runtime.paged_velocity import PagedVelocity, RowBuffers, make_buffers, row_operations

CASES = {  # streams, new chunks, pages
    "1 first chunk": (1, 2, 3),
    "1 last chunk": (1, 3, 11),
    "1 without pages": (1, 5, 0),
    "16 first chunks": (16, 2, 3),
    "16 later chunks": (16, 4, 7),
    "16 without pages": (16, 7, 0),
    "64 first chunks": (64, 2, 3),
    "32 without pages": (32, 5, 0),
}
TILES = [
    Tiles(queries, warps, stages) for queries in (16, 32, 64) for warps in (2, 4) for stages in (1, 2, 3, 4)
]
_LAYERS = 8  # of the kernel's timing: pages of other layers than the last launch's


class Bench:
    """One case: a row of streams and the pages it sees."""

    def __init__(self, streams: int, chunks: int, pages: int, device: torch.device) -> None:
        self.shape = PageShape.of(FlowConfig())
        count = streams * (pages + chunks)
        self.memory = PageMemory(self.shape, count, torch.float16, device)
        self.memory.ensure(count - 1)
        address, frames = self.memory.address, self.shape.frames
        items = []
        for number in range(streams):
            first = number * (pages + chunks)
            known = [address(first + page) for page in range(pages)]
            kept = [address(first + pages + chunk) for chunk in range(chunks if pages else 0)]
            items.append(RowItem(pages, (pages + chunks) * frames, known, kept))
        rows = row_ladder(streams * chunks * frames)[-1]
        layout = RowLayout(items, TableSizes(rows, 64, frames))
        self.buffers = make_buffers(layout.sizes, 80, torch.float16, device)
        self.buffers.table[: len(layout.table)] = torch.from_numpy(layout.table).to(device)
        self.buffers.past.copy_(torch.from_numpy(layout.past))
        self.row = DeviceRow.of(self.buffers.table, layout.sizes)
        inner = self.shape.heads * self.shape.head_size
        self.qkv = torch.randn(PAIR * rows, 3 * inner, device=device).half()
        self.mixed = torch.empty(PAIR * rows, inner, device=device).half()

    def attend(self, tiles: Tiles | None) -> Callable[[RowBuffers], None]:
        ops = KernelPages(self.memory, tiles)

        def body(buffers: RowBuffers) -> None:
            for layer in range(_LAYERS):
                ops.attend(self.qkv, layer, self.row, buffers.step, self.mixed)

        return body

    def tails(self, buffers: RowBuffers) -> None:
        ops = KernelPages(self.memory)
        for _ in range(_LAYERS):
            ops.tails(self.row, buffers.step)

    def keep(self, buffers: RowBuffers) -> None:
        ops, x = KernelPages(self.memory), self.qkv[:, :256]
        for _ in range(_LAYERS):
            ops.keep(x, 0, self.row, buffers.step)

    def timed(self, body: Callable[[RowBuffers], None], times: int = 20) -> float:
        """Milliseconds of the captured body."""
        programs: Programs[RowBuffers] = Programs(self.mixed.device, 1, True)
        program = programs.prepare(0, lambda: self.buffers, body)
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        program.run(3)
        self.buffers.step.zero_()
        begin.record()
        program.run(times)
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / times


def step_kernels(bench: Bench, velocity: PagedVelocity) -> list[tuple[str, int, float]]:
    """(kernel, launches, microseconds in all) of one Euler step, the most expensive first."""
    from torch.profiler import ProfilerActivity, profile

    bench.buffers.step.zero_()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        velocity(bench.buffers)
        torch.cuda.synchronize()
    rows = [(event.key[:60], event.count, event.self_device_time_total) for event in found.key_averages()]
    return sorted(rows, key=lambda row: -row[2])[:14]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paged_kernels", description=__doc__)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--profile", nargs="*", choices=CASES, default=["1 first chunk", "64 first chunks"])
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args(arguments)
    device = torch.device("cuda:0")
    flow = FlowModel(FlowConfig()).eval().requires_grad_(False).to(device, torch.float16)
    report: dict[str, object] = {}
    with torch.inference_mode(), torch.cuda.stream(torch.cuda.Stream()):
        for name in options.cases:
            bench = Bench(*CASES[name], device)
            times = {str(tuple(t)): 1000 * bench.timed(bench.attend(t)) / _LAYERS for t in TILES}
            chosen = 1000 * bench.timed(bench.attend(None)) / _LAYERS
            best = sorted(times, key=lambda key: times[key])[:4]
            tails, keep = (1000 * bench.timed(body) / _LAYERS for body in (bench.tails, bench.keep))
            velocity = PagedVelocity(flow, KernelPages(bench.memory), row_operations(True))
            step = bench.timed(velocity, times=5)
            report[name] = {"attend": times, "chosen": chosen, "tails": tails, "keep": keep, "step_ms": step}
            found = ", ".join(f"{key} {times[key]:.1f}" for key in best)
            print(f"{name} ({len(bench.buffers.x)} rows): attention {chosen:.1f} us as chosen; best {found};")
            print(f"    tails {tails:.1f}, keep {keep:.1f} us; a step {step:.3f} ms", flush=True)
            if name in options.profile:
                for key, count, total in step_kernels(bench, velocity):
                    print(f"      {total:8.0f} us {count:4d} x {key}", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()

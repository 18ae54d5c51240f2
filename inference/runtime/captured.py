"""Captured CUDA graphs by shape, the least used ones given up first; without CUDA the same code runs eagerly."""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from inference.runtime.graph_pool import SLACK, CaptureError, GraphPool, capture_stream, pool_of, record
from inference.runtime.lane_graphs import CAPTURE_LOCK
from inference.runtime.scratch import Scratch

logger = logging.getLogger(__name__)

BuffersT = TypeVar("BuffersT")


@dataclass
class Tail:
    """The last `rounds` of a program's run; `reached` is called when all before them is on its way to the device."""

    rounds: int = 0
    reached: Callable[[], None] = lambda: None


class Program(Generic[BuffersT]):
    """Work of one shape on buffers of its own: fill `buffers`, `run`, read `buffers`."""

    def __init__(self, buffers: BuffersT, body: Callable[[BuffersT], None]) -> None:
        self.buffers = buffers
        self._body = body
        self.graph: torch.cuda.CUDAGraph | None = None
        self.runs = 0
        self.too_large = False  # to be captured
        self.before_run: Callable[[], None] | None = None  # instead of the next round's body

    def run(self, times: int = 1, tail: Tail | None = None) -> None:
        """`times` rounds of the body, one behind the other."""
        self.runs += 1
        last = 0 if tail is None else min(tail.rounds, times)
        self._rounds(times - last)
        if tail is not None:
            tail.reached()
            self._rounds(last)

    def _rounds(self, times: int) -> None:
        if self.before_run is not None and times:
            first, self.before_run = self.before_run, None
            first()
            times -= 1
        for _ in range(times):
            if self.graph is None:
                self._body(self.buffers)
            else:
                self.graph.replay()

    def capture(self, pool: GraphPool, device: torch.device, room: float = math.inf) -> int:
        """Run the body once and record it in `pool`, from whatever stream. What is recorded does not run.

        What needs more than `room` bytes is not recorded: it is so busy that starting its kernels one by one costs
        nothing. Returns the bytes that the pool has grown by. When recording fails the body has run all the same, the
        device can be used as before, and the program stays eager. Raises what the body raises when it just runs, and
        `CaptureError`.
        """
        here, side = torch.cuda.current_stream(device), capture_stream(device)
        side.wait_stream(here)
        with CAPTURE_LOCK, torch.cuda.stream(side):
            # Loads kernels, makes workspaces and handles, which a capture cannot.
            needed = _most_held(lambda: self._body(self.buffers), device)
            side.synchronize()
            before = torch.cuda.memory_reserved(device)
            self.too_large = needed > room
            if not self.too_large:
                pool.reserve(needed, device)
                self.graph = record(lambda: self._body(self.buffers), pool.handle(), device)
                pool.add(self.graph)
            grown = torch.cuda.memory_reserved(device) - before
        here.wait_stream(side)
        return max(0, grown)


def _most_held(work: Callable[[], None], device: torch.device) -> int:
    """Bytes that tensors made by the work take at most."""
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    work()
    return max(0, torch.cuda.max_memory_allocated(device) - before)


class Programs(Generic[BuffersT]):
    """Programs by key, at most `limit`.

    `prepare` captures a key at once. Others are captured when they come up the second time: odd shapes never are.
    The stream that is current here is the one that they run on: all programs of a stream share working memory.
    `scratch` is for buffers that they need in turn.
    """

    def __init__(self, device: torch.device, limit: int, graphs: bool) -> None:
        self._device = device
        self._limit = limit
        self._graphs = graphs and device.type == "cuda"
        self._pool: GraphPool | None = None
        if self._graphs:
            self._pool = pool_of(device, torch.cuda.current_stream(device).cuda_stream)
        self._pool_bytes = 0
        self._room = math.inf
        self.scratch = Scratch(device)
        self._programs: OrderedDict[Hashable, Program[BuffersT]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._programs)

    @property
    def graphs(self) -> bool:
        """Whether programs are captured."""
        return self._graphs

    @property
    def captured(self) -> int:
        """How many are graphs by now."""
        return sum(program.graph is not None for program in self._programs.values())

    def ready(self, keys: Iterable[Hashable]) -> Hashable | None:
        """The first of the keys whose program is captured; where nothing is, the first that is kept at all."""
        for key in keys:
            program = self._programs.get(key)
            if program is not None and (program.graph is not None or not self._graphs):
                return key
        return None

    def bytes(self) -> int:
        """What buffers and graphs' working memory take (the latter as it grew while capturing)."""
        programs = list(self._programs.values())  # another thread may ask
        values = [value for program in programs for value in vars(program.buffers).values()]
        stores = [value.untyped_storage() for value in values if isinstance(value, torch.Tensor)]
        return self._pool_bytes + sum({store._cdata: store.nbytes() for store in stores}.values())

    def get(
        self, key: Hashable, make: Callable[[], BuffersT], body: Callable[[BuffersT], None]
    ) -> Program[BuffersT]:
        """The program of `key`. Its buffers hold what the last run left in them."""
        program = self._programs.pop(key, None)
        if program is None:
            self._make_room()
            program = Program(make(), body)
        elif self._graphs and program.graph is None and program.runs and not program.too_large:
            again = program  # when its buffers are filled
            again.before_run = lambda: self._capture(again)
        self._programs[key] = program
        return program

    def prepare(
        self, key: Hashable, make: Callable[[], BuffersT], body: Callable[[BuffersT], None]
    ) -> Program[BuffersT]:
        """The program of `key`, captured now; `make`'s buffers must be fit for a run."""
        program = self._programs.get(key)
        if program is None:
            self._make_room()
            program = Program(make(), body)
        if self._graphs and program.graph is None and not program.too_large:
            self._capture(program)
        elif not self._graphs:
            program.run()
        self._programs[key] = program
        return program

    def settle(self) -> None:
        """From now on nothing is captured that needs more working memory than what was captured on this stream."""
        if self._pool is not None and self._pool.most:
            self._room = self._pool.most * SLACK

    def clear(self) -> None:
        """Give all buffers and graphs back."""
        self._programs.clear()
        self.scratch.clear()
        self._pool_bytes = 0
        if self._pool is not None:
            self._pool.renew()

    def _make_room(self) -> None:
        while len(self._programs) >= self._limit:
            self._programs.popitem(last=False)

    def _capture(self, program: Program[BuffersT]) -> None:
        """Run a program's body once and record it, if that is possible here."""
        if self._pool is None:
            return
        try:
            self._pool_bytes += program.capture(self._pool, self._device, self._room)
        except CaptureError as error:
            self._graphs = False
            logger.warning("CUDA graphs cannot be captured here; kernels are launched one by one: %s", error)

"""Captured CUDA graphs by shape, the least used ones given up first; without CUDA the same code runs eagerly."""

from __future__ import annotations

import gc
import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from functools import lru_cache
from typing import Any, Generic, TypeVar
from weakref import WeakSet

import torch

from inference.runtime.lane_graphs import CAPTURE_LOCK

logger = logging.getLogger(__name__)

BuffersT = TypeVar("BuffersT")


@lru_cache(maxsize=64)
def capture_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream that graphs of a device are recorded on: the default one cannot be, and each new one would cost the
    libraries a workspace."""
    return torch.cuda.Stream(device)


class GraphPool:
    """Working memory of graphs that run one after another on one stream, whatever they do: no graph needs what the one
    before it left there."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Coming graphs get other memory; the old one goes with the last of its graphs."""
        self._handle = torch.cuda.graph_pool_handle()
        self._graphs: WeakSet[torch.cuda.CUDAGraph] = WeakSet()

    def handle(self) -> Any:
        """For one more graph. Memory whose graphs are all gone cannot be captured into again."""
        if not self._graphs:
            self.renew()
        return self._handle

    def add(self, graph: torch.cuda.CUDAGraph) -> None:
        """A graph was captured into what `handle` gave last."""
        self._graphs.add(graph)


@lru_cache(maxsize=64)
def _pool_of(device: torch.device, stream: int) -> GraphPool:
    return GraphPool()


class Program(Generic[BuffersT]):
    """Work of one shape on buffers of its own: fill `buffers`, `run`, read `buffers`."""

    def __init__(self, buffers: BuffersT, body: Callable[[BuffersT], None]) -> None:
        self.buffers = buffers
        self._body = body
        self.graph: torch.cuda.CUDAGraph | None = None
        self.runs = 0
        self.before_run: Callable[[], None] | None = None  # instead of the next round's body

    def run(self, times: int = 1) -> None:
        """`times` rounds of the body, one behind the other."""
        self.runs += 1
        if self.before_run is not None and times:
            first, self.before_run = self.before_run, None
            first()
            times -= 1
        for _ in range(times):
            if self.graph is None:
                self._body(self.buffers)
            else:
                self.graph.replay()

    def capture(self, pool: Any, device: torch.device) -> None:
        """Run the body once and record it, from whatever stream. What is recorded does not run.

        When that fails the body has run all the same, the device can be used as before, and the program stays eager.
        Raises what the body raises when it just runs, and `CaptureError`.
        """
        here, side = torch.cuda.current_stream(device), capture_stream(device)
        side.wait_stream(here)
        with CAPTURE_LOCK, torch.cuda.stream(side):
            self._body(self.buffers)  # loads kernels, makes workspaces and handles, which a capture cannot
            side.synchronize()
            self.graph = _record(lambda: self._body(self.buffers), pool, device)
        here.wait_stream(side)


class CaptureError(RuntimeError):
    """Something ran, but could not be recorded."""


def _record(body: Callable[[], None], pool: Any, device: torch.device) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    collecting = gc.isenabled()
    gc.disable()  # a graph in a reference cycle that went meanwhile would end the capture
    try:
        # Other threads go on using the device while this one records.
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            body()
        except BaseException:
            with suppress(RuntimeError):  # what went wrong first is what counts
                graph.capture_end()
            raise
        graph.capture_end()
    except RuntimeError as error:
        _leave_capture(pool, device)
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise CaptureError(str(error)) from error
    finally:
        if collecting:
            gc.enable()
    return graph


def _leave_capture(pool: Any, device: torch.device) -> None:
    """A capture that could not end leaves the generator waiting for it, and random numbers would fail from then on."""
    with suppress(Exception):
        torch._C._cuda_endAllocateToPool(device.index or 0, pool)
    with suppress(Exception):
        generator = torch.cuda.default_generators[device.index or 0]
        generator.graphsafe_set_state(generator.clone_state())


class Programs(Generic[BuffersT]):
    """Programs by key, at most `limit`.

    `prepare` captures a key at once. Others are captured when they come up the second time: odd shapes never are.
    The stream that is current here is the one that they run on: all programs of a stream share working memory.
    """

    def __init__(self, device: torch.device, limit: int, graphs: bool) -> None:
        self._device = device
        self._limit = limit
        self._graphs = graphs and device.type == "cuda"
        self._pool: GraphPool | None = None
        if self._graphs:
            self._pool = _pool_of(device, torch.cuda.current_stream(device).cuda_stream)
        self._pool_bytes = 0
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
        return self._pool_bytes + sum(
            value.numel() * value.element_size() for value in values if isinstance(value, torch.Tensor)
        )

    def get(
        self, key: Hashable, make: Callable[[], BuffersT], body: Callable[[BuffersT], None]
    ) -> Program[BuffersT]:
        """The program of `key`. Its buffers hold what the last run left in them."""
        program = self._programs.pop(key, None)
        if program is None:
            self._make_room()
            program = Program(make(), body)
        elif self._graphs and program.graph is None and program.runs:
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
        if self._graphs and program.graph is None:
            self._capture(program)
        elif not self._graphs:
            program.run()
        self._programs[key] = program
        return program

    def clear(self) -> None:
        """Give all buffers and graphs back."""
        self._programs.clear()
        self._pool_bytes = 0
        if self._pool is not None:
            self._pool.renew()

    def _make_room(self) -> None:
        while len(self._programs) >= self._limit:
            self._programs.popitem(last=False)

    def _capture(self, program: Program[BuffersT]) -> None:
        """Run a program's body once and record it, if that is possible here."""
        before = torch.cuda.memory_reserved(self._device)
        try:
            program.capture(None if self._pool is None else self._pool.handle(), self._device)
            if self._pool is not None and program.graph is not None:
                self._pool.add(program.graph)
        except CaptureError as error:
            self._graphs = False
            logger.warning("CUDA graphs cannot be captured here; kernels are launched one by one: %s", error)
        self._pool_bytes += max(0, torch.cuda.memory_reserved(self._device) - before)

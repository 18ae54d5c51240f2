"""The memory that captured CUDA graphs of a stream work in, and how a graph is recorded into it."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any
from weakref import WeakSet

import torch

# Over what the first of a pool's programs holds at most. Blocks of many sizes in one piece of memory leave gaps: 1.08
# was too little for the public sizes' shapes, played through with the allocator's rules.
SLACK = 1.11


class CaptureError(RuntimeError):
    """Something ran, but could not be recorded."""


def _touch(size: int, device: torch.device) -> None:
    torch.empty(size, dtype=torch.uint8, device=device)[:1].zero_()


@lru_cache(maxsize=64)
def capture_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream that graphs of a device are recorded on: the default one cannot be, and each new one would cost the
    libraries a workspace."""
    return torch.cuda.Stream(device)


class GraphPool:
    """Working memory of graphs that run one after another on one stream, whatever they do: no graph needs what the one
    before it left there.

    It begins as one piece for the first graph, which should be the largest: blocks of one size after another would
    leave pieces that no other shape fits into, twice as much in all.
    """

    def __init__(self) -> None:
        self.most = 0  # bytes that a graph needs, of all that were captured
        self.renew()

    def renew(self) -> None:
        """Coming graphs get other memory; the old one goes with the last of its graphs."""
        self._handle = torch.cuda.graph_pool_handle()
        self._piece: torch.cuda.CUDAGraph | None = None
        self._graphs: WeakSet[torch.cuda.CUDAGraph] = WeakSet()

    def handle(self) -> Any:
        """For one more graph. Memory whose graphs are all gone cannot be captured into again."""
        if not self._graphs:
            self.renew()
        return self._handle

    def reserve(self, size: int, device: torch.device) -> None:
        """A graph that needs `size` bytes is about to be captured, on the stream that is current."""
        handle = self.handle()
        self.most = max(self.most, size)
        if self._piece is None and size:
            with suppress(torch.OutOfMemoryError, CaptureError):  # then it grows as it is needed
                self._piece = record(lambda: _touch(int(self.most * SLACK), device), handle, device)
                self.add(self._piece)

    def add(self, graph: torch.cuda.CUDAGraph) -> None:
        """A graph was captured into what `handle` gave last."""
        self._graphs.add(graph)


@lru_cache(maxsize=64)
def pool_of(device: torch.device, stream: int) -> GraphPool:
    """The one of all graphs that run on a stream."""
    return GraphPool()


def record(body: Callable[[], None], pool: Any, device: torch.device) -> torch.cuda.CUDAGraph:
    """The graph of `body`, which does not run, in the memory of the handle `pool`. To be called with `CAPTURE_LOCK`.

    Raises `CaptureError`, and `OutOfMemoryError` as it is; the device can be used as before.
    """
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

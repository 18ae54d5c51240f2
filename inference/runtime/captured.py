"""Captured CUDA graphs by shape, the least used ones given up first; without CUDA the same code runs eagerly."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any, Generic, TypeVar

import torch

from inference.runtime.lane_graphs import CAPTURE_LOCK

logger = logging.getLogger(__name__)

BuffersT = TypeVar("BuffersT")


class Program(Generic[BuffersT]):
    """Work of one shape on buffers of its own: fill `buffers`, `run`, read `buffers`."""

    def __init__(self, buffers: BuffersT, body: Callable[[BuffersT], None]) -> None:
        self.buffers = buffers
        self._body = body
        self.graph: torch.cuda.CUDAGraph | None = None
        self.runs = 0
        self._thread = 0

    def run(self, times: int = 1) -> None:
        """`times` rounds of the body, one behind the other."""
        self.runs += 1
        self._thread = threading.get_ident()
        for _ in range(times):
            if self.graph is None:
                self._body(self.buffers)
            else:
                self.graph.replay()

    def capture(self, pool: Any, device: torch.device) -> None:
        """Record the body once; it must have run before on this stream. What is recorded does not run."""
        graph = torch.cuda.CUDAGraph()
        if self._thread != threading.get_ident():
            self._body(self.buffers)  # libraries make their handles thread by thread, which a capture cannot
        with CAPTURE_LOCK:
            torch.cuda.current_stream(device).synchronize()
            # Other threads go on using the device while this one records.
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                self._body(self.buffers)
            except BaseException:
                with suppress(RuntimeError):  # what went wrong first is what counts
                    graph.capture_end()
                raise
            graph.capture_end()
        self.graph = graph


class Programs(Generic[BuffersT]):
    """Programs by key, at most `limit`. A key is captured when it comes up the second time: odd shapes never are.

    All graphs share one memory pool, so they must run one after another on one stream.
    """

    def __init__(self, device: torch.device, limit: int, graphs: bool) -> None:
        self._device = device
        self._limit = limit
        self._graphs = graphs and device.type == "cuda"
        self._pool = torch.cuda.graph_pool_handle() if self._graphs else None
        self._programs: OrderedDict[Hashable, Program[BuffersT]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._programs)

    @property
    def captured(self) -> int:
        """How many are graphs by now."""
        return sum(program.graph is not None for program in self._programs.values())

    def bytes(self) -> int:
        """What the buffers take; graphs' own memory is not counted."""
        values = [value for program in self._programs.values() for value in vars(program.buffers).values()]
        return sum(
            value.numel() * value.element_size() for value in values if isinstance(value, torch.Tensor)
        )

    def get(
        self, key: Hashable, make: Callable[[], BuffersT], body: Callable[[BuffersT], None]
    ) -> Program[BuffersT]:
        """The program of `key`. Its buffers hold what the last run left in them."""
        program = self._programs.pop(key, None)
        if program is None:
            while len(self._programs) >= self._limit:
                self._programs.popitem(last=False)
            program = Program(make(), body)
        elif self._graphs and program.graph is None and program.runs and self._pool is not None:
            self._capture(program, self._pool)
        self._programs[key] = program
        return program

    def clear(self) -> None:
        """Give all buffers and graphs back."""
        self._programs.clear()
        if self._graphs:
            self._pool = torch.cuda.graph_pool_handle()

    def _capture(self, program: Program[BuffersT], pool: Any) -> None:
        try:
            program.capture(pool, self._device)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self._graphs = False
            logger.warning("CUDA graphs cannot be captured here; kernels are launched one by one: %s", error)

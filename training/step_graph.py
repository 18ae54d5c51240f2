"""Runs a training step as one CUDA graph, so that launching its kernels costs the host nothing.

A small network's step is thousands of kernels of a few microseconds each: started one by one from Python they
leave the device idle, and the more so when other processes want the same cores. A graph starts them all at once.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor

WARMUP_STEPS = 4  # ordinary steps of a phase before its capture: kernels are chosen, plans and buffers made
AHEAD = 2  # steps the host may run ahead of the device

Losses = dict[str, Tensor]


class Capture(Protocol):
    """Takes the work of one step; returns what replays it and the tensors that each replay fills anew."""

    def __call__(self, work: Callable[[], Losses]) -> tuple[Callable[[], None], Losses]: ...


class CudaCapture:
    """Records work on a stream of its own into a graph. Raises whatever made the recording fail."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream

    def __call__(self, work: Callable[[], Losses]) -> tuple[Callable[[], None], Losses]:
        before = torch.cuda.current_stream()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=self._stream):
                losses = work()
        except BaseException:
            torch.cuda.set_stream(before)  # a recording that breaks off leaves its own stream current
            raise
        return graph.replay, losses


class StepGraph:
    """Calls `compute(phase)`: a few times as it is, then as a replay of one recorded call, anew for each phase.

    `compute` must read and write tensors that stay where they are, and must not wait for the device. When recording
    fails, one line is logged, `recover` is called once, and all further steps are ordinary calls.
    """

    def __init__(
        self,
        compute: Callable[[Any], Losses],
        device: torch.device,
        enabled: bool,
        recover: Callable[[], None],
        capture: Capture | None = None,
    ) -> None:
        self._compute, self._recover = compute, recover
        self._cuda = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if self._cuda else None
        self._capture = capture or (CudaCapture(self._stream) if self._stream is not None else None)
        self.enabled = enabled and self._capture is not None
        self._phase: Hashable = None
        self._ordinary = 0
        self._replay: Callable[[], None] | None = None
        self._losses: Losses = {}
        self._events: deque[torch.cuda.Event] = deque()
        self._finished: list[
            Callable[[], None]
        ] = []  # recordings of earlier phases, whose memory stays theirs

    @property
    def replaying(self) -> bool:
        return self._replay is not None

    def __call__(self, phase: Hashable) -> Losses:
        """One step. The tensors returned may be overwritten by the next one."""
        if phase != self._phase:
            self._begin(phase)
        if self.enabled and self._replay is None and self._ordinary >= WARMUP_STEPS:
            self._record()
        if self._replay is not None:
            self._replay()
            losses = self._losses
        else:
            losses = self._ordinarily()
        self._hold_back()
        return losses

    def _begin(self, phase: Hashable) -> None:
        """A new phase: replays of the last one are still under way, and nobody may get their memory meanwhile."""
        if self._replay is not None:
            if self._cuda:
                torch.cuda.synchronize()
            self._finished.append(self._replay)
        self._phase, self._ordinary, self._replay, self._losses = phase, 0, None, {}

    def _ordinarily(self) -> Losses:
        self._ordinary += 1
        if not self.enabled:
            return self._compute(self._phase)
        with self._aside():
            return self._compute(self._phase)

    def _record(self) -> None:
        assert self._capture is not None
        try:
            self._replay, self._losses = self._capture(lambda: self._compute(self._phase))
        except Exception as error:  # whatever it was, training has to go on
            self.enabled, self._replay, self._losses = False, None, {}
            why = f"{type(error).__name__}: {error}"[:300]
            print(json.dumps({"graph": "recording failed, going on step by step", "why": why}), flush=True)
            self._recover()
            if self._cuda:
                torch.cuda.synchronize()

    def _aside(self) -> AbstractContextManager[object]:
        """Work before a recording belongs on the recording's stream, in order with the current one."""
        return nullcontext() if self._stream is None else _InOrder(self._stream)

    def _hold_back(self) -> None:
        """Wait, without burning a core, until the device is at most `AHEAD` steps behind."""
        if self._cuda:
            event = torch.cuda.Event(blocking=True)
            event.record()
            self._events.append(event)
            if len(self._events) > AHEAD:
                self._events.popleft().synchronize()


class _InOrder:
    """Runs on `stream` after all work of the current stream, which in turn waits for it."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self._context = torch.cuda.stream(stream)

    def __enter__(self) -> None:
        self._outer = torch.cuda.current_stream()
        self._stream.wait_stream(self._outer)
        self._context.__enter__()

    def __exit__(self, *error: object) -> None:
        self._context.__exit__(*error)
        self._outer.wait_stream(self._stream)

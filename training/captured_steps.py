"""Training steps as CUDA graphs: a small network's step is thousands of launches that the host cannot issue in time.

A step is captured once for every key (shapes, mode) after a few eager runs. What it reads must stay where it is:
parameters, optimiser state, the inputs, which are copied into place, and learning rates held as tensors.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable
from typing import Protocol

import torch
from torch import Tensor

Inputs = tuple[Tensor, ...]
StepFunction = Callable[[Hashable, Inputs], Tensor]

_MOST_AHEAD = 2  # steps
EAGER_RUNS = 3  # of every key before its capture: workspaces, optimiser state, kernel choice


class Recording(Protocol):
    """A captured step."""

    def replay(self) -> None: ...


Recorder = Callable[[Callable[[], Tensor]], tuple[Recording, Tensor]]


class CudaRecorder:
    """Captures into one memory pool on the current stream, which must not be the default one."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, function: Callable[[], Tensor]) -> tuple[Recording, Tensor]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=torch.cuda.current_stream()):
            output = function()
        return graph, output


def use_own_stream(device: torch.device) -> None:
    """All further work on a stream that can be captured; backward's bookkeeping must not begin on another one."""
    if device.type == "cuda":
        torch.cuda.set_stream(torch.cuda.Stream(device))


class CapturedSteps:
    """Calls `function(key, inputs)`, from the fourth call of a key on as a recording.

    Raises RuntimeError where recording fails: a broken capture leaves the device's random generator unusable, so the
    run has to begin anew without (the pipeline does).
    """

    def __init__(self, function: StepFunction, recorder: Recorder | None) -> None:
        self._function = function
        self._ahead: deque[torch.cuda.Event] = deque()
        self._recorder = recorder
        self._runs: Counter[Hashable] = Counter()
        self._recorded: dict[Hashable, tuple[Recording, Inputs, Tensor]] = {}

    @property
    def recorded(self) -> int:
        return len(self._recorded)

    def forget(self) -> None:
        """After the optimiser's state was replaced: record anew."""
        self._recorded.clear()
        self._runs.clear()

    def __call__(self, key: Hashable, inputs: Inputs) -> Tensor:
        """The step's result; it is overwritten by the next call of the same key."""
        output = self._run(key, inputs)
        if output.is_cuda:
            self._hold_back()
        return output

    def _run(self, key: Hashable, inputs: Inputs) -> Tensor:
        found = self._recorded.get(key)
        if found is None and self._recorder is not None and self._runs[key] >= EAGER_RUNS:
            found = self._record(self._recorder, key, inputs)
        if found is None:
            self._runs[key] += 1
            return self._function(key, inputs)
        recording, places, output = found
        for place, value in zip(places, inputs):
            place.copy_(value, non_blocking=True)
        recording.replay()
        return output

    def _record(self, recorder: Recorder, key: Hashable, inputs: Inputs) -> tuple[Recording, Inputs, Tensor]:
        places = tuple(value.clone() for value in inputs)
        try:
            recording, output = recorder(lambda: self._function(key, places))
        except Exception as error:
            raise RuntimeError("the step cannot be captured; start again with --no-graph") from error
        self._recorded[key] = (recording, places, output)
        return self._recorded[key]

    def _hold_back(self) -> None:
        """Sleep until the device is at most two steps behind: replays would not hold the host back."""
        event = torch.cuda.Event(blocking=True)
        event.record()
        self._ahead.append(event)
        if len(self._ahead) > _MOST_AHEAD:
            self._ahead.popleft().synchronize()

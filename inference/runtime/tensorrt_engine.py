"""A loaded TensorRT engine as a function on torch tensors: on the current stream, without waiting for the device.

A CUDA graph that captured a call holds the context's addresses and shape, so every shape has a context of its own, made
at its first (uncaptured) call and never given another shape. All contexts of a stream share one scratch buffer, which
never moves; they run one after the other.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from inference.runtime.shape_ranges import ShapeRange
from inference.runtime.tensorrt_api import TensorRt, TensorRtError

MOST_CONTEXTS = 64  # a stream's; as many as there are buckets
SCRATCH_LIMIT = 3 << 30  # bytes, for all profiles and shapes of an engine


class TooLargeError(TensorRtError):
    """The engine's profiles need more scratch memory than it may have."""


@dataclass
class _Context:
    run: Any
    captured: bool = False


@dataclass
class _Lane:
    """What belongs to one stream."""

    scratch: Tensor
    contexts: OrderedDict[tuple[int, int], _Context] = field(default_factory=OrderedDict)


class TensorRtEngine:
    """`ranges` as the plan was built for. Inputs in the network's order; any number of threads, one at a time.

    Raises `TensorRtError` for a plan that cannot be used here (damaged, of another version), `TooLargeError` where its
    scratch memory would pass `scratch_limit`.
    """

    def __init__(
        self,
        api: TensorRt,
        plan: bytes,
        inputs: Sequence[str],
        ranges: Sequence[ShapeRange],
        device: torch.device,
        scratch_limit: int = SCRATCH_LIMIT,
    ) -> None:
        self._api, self._device, self._inputs = api, device, tuple(inputs)
        self._runtime = api.runtime()
        self._engine = self._runtime.deserialize_cuda_engine(plan)
        if self._engine is None:
            raise TensorRtError(f"TensorRT {api.version} cannot read the plan here; its log says why.")
        self._types = {name: self._torch_type(name) for name in self._tensor_names()}
        (self._output,) = (name for name in self._types if name not in self._inputs)
        self._ranges = tuple(ranges)
        self.scratch_bytes = self._check_size(scratch_limit)
        self._lanes: dict[int, _Lane] = {}
        self._lock = threading.Lock()

    def _tensor_names(self) -> list[str]:
        engine = self._engine
        names = [engine.get_tensor_name(number) for number in range(engine.num_io_tensors)]
        given = {name for name in names if self._api.is_input(engine, name)}
        if given != set(self._inputs):
            raise TensorRtError(f"The plan's inputs are {sorted(given)}, not {sorted(self._inputs)}.")
        return names

    def _torch_type(self, name: str) -> torch.dtype:
        kinds = self._api.trt.DataType
        found = self._engine.get_tensor_dtype(name)
        types = {kinds.FLOAT: torch.float32, kinds.HALF: torch.float16}
        if found not in types:
            raise TensorRtError(f"The plan's tensor {name} is of type {found}.")
        return types[found]

    def _check_size(self, limit: int) -> int:
        """Scratch bytes that any context needs."""
        if self._engine.num_optimization_profiles != len(self._ranges):
            raise TensorRtError("The plan was built for other shapes.")
        size = max(self._api.scratch_bytes(self._engine, number) for number in range(len(self._ranges)))
        if size > limit:
            raise TooLargeError(
                f"The engine needs {size >> 20} MiB of scratch memory; {limit >> 20} are allowed."
            )
        return size

    def takes(self, batch: int, frames: int) -> bool:
        """Whether a shape is within a profile."""
        return any(shapes.takes(batch, frames) for shapes in self._ranges)

    def memory_bytes(self) -> int:
        """Scratch memory of all streams."""
        return sum(lane.scratch.numel() for lane in self._lanes.values())

    def __call__(self, *values: Tensor) -> Tensor | None:
        """Inputs of any float type, batch and frames (axes 0 and -1) of the first one deciding; None: no profile takes
        the shape. Raises `TensorRtError` when TensorRT fails."""
        shape = values[0].shape[0], values[0].shape[-1]
        profile = next((i for i, shapes in enumerate(self._ranges) if shapes.takes(*shape)), None)
        if profile is None:
            return None
        with self._lock:
            stream, capturing = self._stream()
            context = self._context(stream, profile, shape, capturing)
            return None if context is None else self._run(context, stream, values)

    def _stream(self) -> tuple[int, bool]:
        if self._device.type != "cuda":  # tests
            return 0, False
        capturing = torch.cuda.is_current_stream_capturing()
        return torch.cuda.current_stream(self._device).cuda_stream, capturing

    def _context(self, stream: int, profile: int, shape: tuple[int, int], capturing: bool) -> Any | None:
        lane = self._lanes.get(stream)
        known = None if lane is None else lane.contexts.get(shape)
        if lane is None or known is None:
            if capturing:
                raise TensorRtError("A shape must have run once before it can be captured.")
            lane = self._lanes.setdefault(stream, lane or self._new_lane())
            known = self._new_context(lane, stream, profile, shape)
            if known is None:
                return None
        known.captured |= capturing
        lane.contexts.move_to_end(shape)
        return known.run

    def _new_lane(self) -> _Lane:
        size = max(256, self.scratch_bytes)
        return _Lane(torch.empty(size, dtype=torch.uint8, device=self._device))

    def _new_context(self, lane: _Lane, stream: int, profile: int, shape: tuple[int, int]) -> _Context | None:
        if len(lane.contexts) >= MOST_CONTEXTS:
            free = next((key for key, entry in lane.contexts.items() if not entry.captured), None)
            if free is None:  # all belong to graphs, which may be replayed at any time
                return None
            self._wait()  # the oldest one's work may not have run yet
            del lane.contexts[free]
        context = self._api.make_context(self._engine, lane.scratch.data_ptr(), lane.scratch.numel())
        if not context.set_optimization_profile_async(profile, stream):
            raise TensorRtError(f"The profile {profile} cannot be chosen.")
        lane.contexts[shape] = _Context(context)
        return lane.contexts[shape]

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    def _run(self, context: Any, stream: int, values: Sequence[Tensor]) -> Tensor | None:
        # Freed memory is reused in the stream's order, so the converted inputs may go as soon as the work is queued.
        given = [value.to(self._types[name]).contiguous() for name, value in zip(self._inputs, values)]
        for name, value in zip(self._inputs, given):
            if not context.set_input_shape(name, tuple(value.shape)):
                return None
            context.set_tensor_address(name, value.data_ptr())
        size = tuple(context.get_tensor_shape(self._output))
        if min(size) < 1:
            return None
        found = torch.empty(size, dtype=self._types[self._output], device=self._device)
        context.set_tensor_address(self._output, found.data_ptr())
        if not context.execute_async_v3(stream):
            raise TensorRtError("TensorRT could not start its work; its log says why.")
        return found

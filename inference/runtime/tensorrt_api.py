"""One TensorRT, whichever is installed: 8.6, 10.x, 11.x or TensorRT-RTX, behind the calls that they share.

What differs between them is in this file only: how half precision is asked for, what a network is created with, how
much scratch memory a profile takes and who owns it. Nothing here imports torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference.runtime.shape_ranges import ShapeRange

MODULES = ("tensorrt", "tensorrt_rtx")  # in this order
WORKSPACE_BYTES = 1 << 30  # of one layer's tactic


class TensorRtError(Exception):
    """TensorRT refused: a sentence and its own words."""


@dataclass(frozen=True)
class Plan:
    """A built engine and what its builder measured on the way (b"" if that cannot be had)."""

    content: bytes
    timings: bytes


def load_tensorrt() -> TensorRt:
    """Raises `TensorRtError` where none is installed or its libraries do not load."""
    reasons = []
    for name in MODULES:
        try:
            return TensorRt(importlib.import_module(name))
        except ModuleNotFoundError:
            reasons.append(f"{name} is not installed")
        except Exception as error:  # libraries missing, of another CUDA, of another Python
            reasons.append(f"{name} cannot be loaded ({error})")
    raise TensorRtError("; ".join(reasons))


class TensorRt:
    """`module`: the Python bindings."""

    def __init__(self, module: Any) -> None:
        self.trt = module
        self.name: str = module.__name__.split("_bindings")[0].split(".")[0]
        self.version: str = module.__version__
        self.logger = module.Logger(module.Logger.WARNING)

    @property
    def keeps_timings(self) -> bool:
        """Whether what a build has measured is of use to the next one; TensorRT-RTX measures on the user's GPU."""
        return self.name != "tensorrt_rtx"

    @property
    def typed_files(self) -> bool:
        """Half precision is asked for by the types in the file (10.x, 11.x, RTX), not by a flag (8.6)."""
        return hasattr(self.trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED")

    # ------------------------------------------------------------------------------------------------ build
    def build(
        self,
        graph: Path,
        axes: Sequence[tuple[str, dict[int, str]]],
        ranges: Sequence[ShapeRange],
        *,
        half: bool,
        timings: bytes = b"",
        workspace: int = WORKSPACE_BYTES,
        tell: Callable[[str], None] | None = None,
    ) -> Plan:
        """A plan of an ONNX file with one optimisation profile for each of `ranges`.

        `axes`: (input, {axis: "batch", "frames" or "bins"}). `half`: the file's types decide where `typed_files`, else
        a float32 file is built in half precision. `workspace` 0: no limit. `tell` hears of the progress.
        Raises `TensorRtError`.
        """
        trt = self.trt
        builder = trt.Builder(self.logger)
        network = builder.create_network(self._network_flags())
        parser = trt.OnnxParser(network, self.logger)
        if not parser.parse(graph.read_bytes()):
            words = [str(parser.get_error(i)) for i in range(parser.num_errors)]
            raise TensorRtError(f"{graph.name} cannot be parsed: {'; '.join(words)}")
        config = builder.create_builder_config()
        if workspace:
            config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, workspace)
        config.clear_flag(trt.BuilderFlag.TF32)  # what is float32 shall be
        if half and not self.typed_files:
            config.set_flag(trt.BuilderFlag.FP16)
        self._add_profiles(builder, network, config, axes, ranges)
        if self.keeps_timings:
            config.set_timing_cache(config.create_timing_cache(timings), True)
        if tell is not None and hasattr(trt, "IProgressMonitor"):
            config.progress_monitor = _monitor(trt, tell)
        content = builder.build_serialized_network(network, config)
        if content is None:
            raise TensorRtError(f"TensorRT {self.version} cannot build {graph.name}; its log says why.")
        cache = config.get_timing_cache() if self.keeps_timings else None
        return Plan(bytes(content), b"" if cache is None else bytes(cache.serialize()))

    def _network_flags(self) -> int:
        flags = self.trt.NetworkDefinitionCreationFlag
        names = ("STRONGLY_TYPED",) if self.typed_files else ("EXPLICIT_BATCH",)
        return sum(1 << int(getattr(flags, name)) for name in names)

    def _add_profiles(
        self,
        builder: Any,
        network: Any,
        config: Any,
        axes: Sequence[tuple[str, dict[int, str]]],
        ranges: Sequence[ShapeRange],
    ) -> None:
        dynamic = dict(axes)
        for shapes in ranges:
            profile = builder.create_optimization_profile()
            for number in range(network.num_inputs):
                tensor = network.get_input(number)
                fixed = tuple(tensor.shape)
                profile.set_shape(tensor.name, *shapes.bounds(fixed, dynamic[tensor.name]))
            if config.add_optimization_profile(profile) < 0:
                raise TensorRtError(f"The shapes {shapes} do not fit the network.")

    # -------------------------------------------------------------------------------------------------- run
    def runtime(self) -> Any:
        """What reads plans; to be kept as long as their engines."""
        return self.trt.Runtime(self.logger)

    def scratch_bytes(self, engine: Any, profile: int) -> int:
        """What a context of that profile needs; where versions do not tell, what the largest one needs."""
        for name in ("get_device_memory_size_for_profile_v2", "get_device_memory_size_for_profile"):
            if hasattr(engine, name):
                return int(getattr(engine, name)(profile))
        whole = "device_memory_size_v2" if hasattr(engine, "device_memory_size_v2") else "device_memory_size"
        return int(getattr(engine, whole))

    def make_context(self, engine: Any, scratch: int, size: int) -> Any:
        """An execution context on scratch memory of the caller's, 256-byte aligned, which it must outlive."""
        strategies = getattr(self.trt, "ExecutionContextAllocationStrategy", None)
        if strategies is None:
            context = engine.create_execution_context_without_device_memory()
        else:
            context = engine.create_execution_context(strategies.USER_MANAGED)
        if context is None:
            raise TensorRtError("No execution context can be made.")
        if hasattr(context, "set_device_memory"):
            context.set_device_memory(scratch, size)
        else:
            context.device_memory = scratch
        return context

    def is_input(self, engine: Any, name: str) -> bool:
        """Whether a tensor goes in."""
        return bool(engine.get_tensor_mode(name) == self.trt.TensorIOMode.INPUT)


def _monitor(trt: Any, tell: Callable[[str], None]) -> Any:
    """Tells each phase's share as it grows."""

    class Monitor(trt.IProgressMonitor):
        def __init__(self) -> None:
            super().__init__()
            self._steps: dict[str, int] = {}

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            self._steps[phase_name] = max(1, num_steps)

        def step_complete(self, phase_name: str, step: int) -> bool:
            tell(f"{phase_name} {100 * step // self._steps.get(phase_name, 1)} %")
            return True

        def phase_finish(self, phase_name: str) -> None:
            self._steps.pop(phase_name, None)

    return Monitor()

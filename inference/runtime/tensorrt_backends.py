"""Vocoder spectrum and velocity network through TensorRT: export, build or read the engine, run it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from inference.models.velocity import VelocityNetwork
from inference.models.vocoder import Vocoder
from inference.runtime import gpu_traits
from inference.runtime.engine_store import EngineKey, EngineStore, describe
from inference.runtime.graph_files import default_cache_dir, graph_key
from inference.runtime.network_graphs import SPECTRUM_INPUTS, VELOCITY_INPUTS, GraphInput
from inference.runtime.onnx_export import export_spectrum, export_velocity
from inference.runtime.shape_ranges import ShapeRange, spectrum_ranges, velocity_ranges
from inference.runtime.tensorrt_api import WORKSPACE_BYTES, TensorRt, TensorRtError, load_tensorrt
from inference.runtime.tensorrt_engine import SCRATCH_LIMIT, TensorRtEngine, TooLargeError

logger = logging.getLogger(__name__)

Tell = Callable[[str], None]


@dataclass(frozen=True)
class EngineSpec:
    """What an engine is made of. `export(path, dtype)` writes its ONNX file."""

    key: EngineKey
    inputs: tuple[GraphInput, ...]
    export: Callable[[Path, torch.dtype], None]
    dtype: torch.dtype


class TensorRtSpectrum:
    """The vocoder's convolutions for packed rows; see `network_graphs.SpectrumGraph`. None: another shape."""

    def __init__(self, engine: TensorRtEngine) -> None:
        self.engine = engine

    def __call__(self, mel: Tensor, excitation: Tensor, mask: Tensor | None = None) -> Tensor | None:
        inside = torch.ones_like(mel[:, :1]) if mask is None else mask
        found = self.engine(mel, excitation, inside)
        return None if found is None else found.float()


class TensorRtVelocity:
    """A `PaddedVelocity`."""

    def __init__(self, engine: TensorRtEngine) -> None:
        self.engine = engine

    def __call__(
        self, x: Tensor, mask: Tensor, mu: Tensor, t: Tensor, spks: Tensor, cond: Tensor, chunks: Tensor
    ) -> Tensor | None:
        return self.engine(x, mask, mu, t, spks, cond, chunks)


def gpu_name(device: torch.device) -> str:
    """What an engine is tied to."""
    if device.type != "cuda":
        return device.type
    major, minor = gpu_traits.capability(device)
    return f"{torch.cuda.get_device_name(device)} {major}.{minor}"


def spectrum_spec(
    api: TensorRt, vocoder: Vocoder, dtype: torch.dtype, ranges: Sequence[ShapeRange]
) -> EngineSpec:
    key = _key("spectrum", api, vocoder, vocoder.cfg, dtype, ranges)
    return EngineSpec(key, SPECTRUM_INPUTS, lambda path, kind: export_spectrum(vocoder, path, kind), dtype)


def velocity_spec(
    api: TensorRt, network: VelocityNetwork, dtype: torch.dtype, ranges: Sequence[ShapeRange]
) -> EngineSpec:
    key = _key("velocity", api, network, network.cfg, dtype, ranges)
    return EngineSpec(key, VELOCITY_INPUTS, lambda path, kind: export_velocity(network, path, kind), dtype)


def _key(
    kind: str,
    api: TensorRt,
    module: Vocoder | VelocityNetwork,
    config: object,
    dtype: torch.dtype,
    ranges: Sequence[ShapeRange],
) -> EngineKey:
    device = next(module.parameters()).device
    precision = "fp32" if dtype == torch.float32 else "fp16"
    runtime = f"{api.name} {api.version}"
    return EngineKey(
        kind, graph_key(kind, module, config), gpu_name(device), runtime, precision, tuple(ranges)
    )


# --------------------------------------------------------------------------------------------------- make
def tensorrt_spectrum(
    vocoder: Vocoder,
    dtype: torch.dtype,
    cache_dir: Path | None = None,
    *,
    ranges: Sequence[ShapeRange] | None = None,
    build: bool = True,
    tell: Tell | None = None,
) -> TensorRtSpectrum:
    """Reads the engine or, if `build`, makes it (minutes). Raises `TensorRtError`."""
    api = load_tensorrt()
    chosen = ranges or spectrum_ranges(32, 32768)
    engine = ready_engine(
        api, spectrum_spec(api, vocoder, dtype, chosen), _store(cache_dir), _device(vocoder), build, tell
    )
    return TensorRtSpectrum(engine)


def tensorrt_velocity(
    network: VelocityNetwork,
    dtype: torch.dtype,
    cache_dir: Path | None = None,
    *,
    ranges: Sequence[ShapeRange] | None = None,
    build: bool = True,
    tell: Tell | None = None,
) -> TensorRtVelocity:
    """As `tensorrt_spectrum`."""
    api = load_tensorrt()
    chosen = ranges or velocity_ranges(32, 32768, network.cfg.num_heads)
    engine = ready_engine(
        api, velocity_spec(api, network, dtype, chosen), _store(cache_dir), _device(network), build, tell
    )
    return TensorRtVelocity(engine)


def ready_engine(
    api: TensorRt,
    spec: EngineSpec,
    store: EngineStore,
    device: torch.device,
    build: bool = True,
    tell: Tell | None = None,
    scratch_limit: int = SCRATCH_LIMIT,
) -> TensorRtEngine:
    """The engine from the store; a missing, damaged or unreadable one is built if it may be.

    An engine whose largest profiles need too much scratch memory is made again without them: longer batches go to
    PyTorch then. Raises `TensorRtError`.
    """
    names = [entry.name for entry in spec.inputs]
    while True:
        ranges = spec.key.ranges
        try:
            for fresh in (False, True):
                plan = _plan(api, spec, store, build, tell, anew=fresh)
                try:
                    return TensorRtEngine(api, plan, names, ranges, device, scratch_limit)
                except TooLargeError:
                    raise
                except TensorRtError:
                    store.remove(spec.key)
                    if fresh or not build:
                        raise
        except TooLargeError as error:
            if len(ranges) == 1:
                raise
            logger.warning("%s It is made without its largest profile.", error)
            spec = replace(spec, key=replace(spec.key, ranges=ranges[:-1]))


def _plan(
    api: TensorRt, spec: EngineSpec, store: EngineStore, build: bool, tell: Tell | None, *, anew: bool
) -> bytes:
    found = None if anew else store.read(spec.key)
    if found is not None:
        return found
    if not build:
        raise TensorRtError(f"There is no {spec.key.kind} engine for this machine yet.")
    half = spec.dtype != torch.float32
    if tell is not None:
        tell(f"exporting {spec.key.kind}, up to {describe(spec.key.ranges)}")
    with TemporaryDirectory() as folder:
        graph = Path(folder) / f"{spec.key.kind}.onnx"
        spec.export(graph, spec.dtype if half and api.typed_files else torch.float32)
        axes = [(entry.name, entry.axes) for entry in spec.inputs]
        plan = api.build(
            graph,
            axes,
            spec.key.ranges,
            half=half,
            timings=store.timings(spec.key),
            # Without a GPU (tests) TensorRT-RTX takes the limit for an amount to set aside.
            workspace=0 if spec.key.gpu == "cpu" else WORKSPACE_BYTES,
            tell=tell,
        )
    store.write(spec.key, plan.content)
    store.keep_timings(spec.key, plan.timings)
    return plan.content


def _store(cache_dir: Path | None) -> EngineStore:
    return EngineStore(cache_dir or default_cache_dir())


def _device(module: Vocoder | VelocityNetwork) -> torch.device:
    return next(module.parameters()).device

"""Backends of the packed lane on CUDA: a packed vocoder (`VOCODERS`) and a packed flow's solver (`SOLVERS`) by name.

"triton" is what the lane chooses by itself where its kernels are sound. The others differ in what computes a packed
vocoder's convolutions (`BackendGenerator`) or a padded solver's velocity; another one is added to the tables, which are
in order of preference.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import cast

import torch

from inference.models.vocoder import Vocoder
from inference.runtime.backend_generator import BackendGenerator, Generator
from inference.runtime.backend_report import REPORT
from inference.runtime.backends import MaskedSpectrum
from inference.runtime.frame_pack import SMALLEST_BUCKET, bucket
from inference.runtime.packed_attention import choose_attention
from inference.runtime.packed_flow import PackedFlow
from inference.runtime.packed_solver import PackedSolver
from inference.runtime.packed_state import PackedStep
from inference.runtime.packed_velocity import PackedVelocity
from inference.runtime.packed_vocoder import PackedVocoder
from inference.runtime.padded_velocity import PaddedSolver
from inference.runtime.shape_ranges import spectrum_ranges, velocity_ranges
from inference.runtime.vocoder_fused import FusedVocoder
from inference.runtime.vocoder_generator import make_generator
from inference.settings import LaneSettings

logger = logging.getLogger(__name__)

_COMPILE_SECONDS = 90.0  # usually one compilation serves all lengths; those left over go to PyTorch


AnyVocoder = PackedVocoder | FusedVocoder


@dataclass(frozen=True)
class VocoderParts:
    """What a packed vocoder is made of: the float32 model, the vocoder that the lane chose by itself, the convolutions'
    type."""

    model: Vocoder
    packed: AnyVocoder
    settings: LaneSettings
    cache_dir: Path | None
    most_items: int

    @property
    def own(self) -> str:
        """The name of what the lane runs by itself."""
        return "triton" if isinstance(self.packed, FusedVocoder) and self.packed.usable else "torch"

    @property
    def dtype(self) -> torch.dtype:
        return self.packed.dtype

    @cached_property
    def plain(self) -> Vocoder:
        """PyTorch's convolutions."""
        if isinstance(self.packed, PackedVocoder):
            return self.packed.generator
        return make_generator(self.model, self.dtype, False)

    def with_generator(self, generator: Generator) -> PackedVocoder:
        """A vocoder of its own with these convolutions."""
        chosen = cast(Vocoder, generator)
        graphs = self.settings.graphs
        return PackedVocoder(self.model, self.most_items, generator=chosen, graphs=graphs)

    def with_backend(self, name: str, backend: MaskedSpectrum) -> PackedVocoder:
        """As `with_generator`; graphs that hold a backend go when it is dropped."""
        generator = BackendGenerator(self.plain, name, backend)
        vocoder = self.with_generator(generator)
        generator.on_drop = vocoder.programs.clear
        return vocoder


@dataclass(frozen=True)
class FlowParts:
    """What a solver is made of: the packed flow, and the solver that the lane chose by itself."""

    packed: PackedFlow
    chosen: PackedSolver
    settings: LaneSettings
    cache_dir: Path | None

    @property
    def own(self) -> str:
        """The name of what the lane runs by itself; its kernels have a spare until they fail."""
        return "torch" if self.chosen.spare is None else "triton"

    @property
    def dtype(self) -> torch.dtype:
        return self.packed.flow.encoder_proj.weight.dtype

    def with_step(self, step: PackedStep) -> PackedSolver:
        """A solver of its own."""
        cfg, graphs = self.packed.flow.cfg, self.settings.graphs
        return PackedSolver(step, cfg, self.dtype, self.packed.device, graphs=graphs)

    def torch_step(self, *, compiled: bool = False) -> PackedVelocity:
        """PyTorch's operations."""
        flow = self.packed.flow
        attention = choose_attention(self.packed.device, self.dtype, flow.cfg.estimator.attention_head_dim)
        return PackedVelocity(flow.decoder.estimator, flow.cfg, attention, compiled=compiled)


# -------------------------------------------------------------------------------------------------- makers
def _own_vocoder(parts: VocoderParts) -> AnyVocoder:
    if parts.own != "triton":
        raise LookupError("the vocoder's kernels are not used here; the log says why")
    return parts.packed


def _torch_vocoder(parts: VocoderParts) -> AnyVocoder:
    return parts.packed if isinstance(parts.packed, PackedVocoder) else parts.with_generator(parts.plain)


def _compiled_vocoder(parts: VocoderParts) -> AnyVocoder:
    from inference.runtime.compiled_graphs import CompiledSpectrum

    backend = CompiledSpectrum(parts.model, parts.dtype)
    backend.prepare(_outside_in(buckets_up_to(longest_row(parts.settings))), _COMPILE_SECONDS)
    return parts.with_backend("compiled", backend)


def _outside_in(lengths: Sequence[int]) -> list[int]:
    """The shortest and the longest first: first chunks, and full rows."""
    rest = list(lengths)
    return [rest.pop(0 if number % 2 == 0 else -1) for number in range(len(lengths))]


def _tensorrt_vocoder(parts: VocoderParts) -> AnyVocoder:
    from inference.runtime.tensorrt_backends import tensorrt_spectrum

    ranges = spectrum_ranges(parts.settings.max_batch, parts.settings.max_batch_frames)
    backend = tensorrt_spectrum(parts.model, parts.dtype, parts.cache_dir, ranges=ranges, build=False)
    return parts.with_backend("tensorrt", backend)


def _own_solver(parts: FlowParts) -> PackedSolver:
    if parts.own != "triton":
        raise LookupError("the flow's kernels are not used here; the log says why")
    return parts.chosen


def _torch_solver(parts: FlowParts) -> PackedSolver:
    return parts.chosen if parts.own == "torch" else parts.with_step(parts.torch_step())


def _compiled_solver(parts: FlowParts) -> PackedSolver:
    step = parts.torch_step(compiled=True)
    step.on_failure(lambda error: REPORT.drop("flow", "compiled", "failed while serving", error))
    return parts.with_step(step)


def _tensorrt_solver(parts: FlowParts) -> PackedSolver:
    from inference.runtime.tensorrt_backends import tensorrt_velocity

    settings, flow = parts.settings, parts.packed.flow
    ranges = velocity_ranges(settings.max_batch, settings.max_batch_frames, flow.cfg.estimator.num_heads)
    network = flow.decoder.estimator
    backend = tensorrt_velocity(network, parts.dtype, parts.cache_dir, ranges=ranges, build=False)
    return PaddedSolver(
        parts.chosen._velocity,
        flow.cfg,
        parts.dtype,
        parts.packed.device,
        backend,
        graphs=settings.graphs,
        failed=lambda error: REPORT.drop(
            "flow", "tensorrt", "failed while serving", error, instead=parts.own
        ),
        spare=parts.chosen.spare,
    )


VOCODERS: dict[str, Callable[[VocoderParts], AnyVocoder]] = {
    "triton": _own_vocoder,
    "torch": _torch_vocoder,
    "compiled": _compiled_vocoder,
    "tensorrt": _tensorrt_vocoder,
}
SOLVERS: dict[str, Callable[[FlowParts], PackedSolver]] = {
    "triton": _own_solver,
    "torch": _torch_solver,
    "compiled": _compiled_solver,
    "tensorrt": _tensorrt_solver,
}


def longest_row(settings: LaneSettings) -> int:
    """Frames of the longest row that the lane makes (but for a single longer item)."""
    return spectrum_ranges(settings.max_batch, settings.max_batch_frames)[-1].frames[2]


def buckets_up_to(longest: int) -> list[int]:
    """All lengths of rows that the packed lane makes."""
    found = [SMALLEST_BUCKET]
    while found[-1] < longest:
        found.append(bucket(found[-1] + 1))
    return found

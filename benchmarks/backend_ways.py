"""Every way to compute the vocoder's spectrum and a flow solve, as functions without arguments (see `backends`)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from inference.models.flow import FlowModel
from inference.models.velocity import VelocityNetwork
from inference.models.vocoder import Vocoder
from inference.runtime.channels_last import ChannelsLast
from inference.runtime.compiled_graphs import CompiledSpectrum, CompiledVelocity
from inference.runtime.flow_solver import FlowConditions, VelocityBackend, solve
from inference.runtime.frame_pack import FramePack, PackedMel, bucket
from inference.runtime.network_graphs import SpectrumGraph, spectrum_graph
from inference.runtime.packed_attention import choose_attention
from inference.runtime.packed_solver import PackedSolver
from inference.runtime.packed_state import PackedStep
from inference.runtime.packed_velocity import PackedVelocity
from inference.runtime.padded_velocity import BoundVelocity, PaddedSolver, PaddedVelocity
from inference.runtime.velocity_choice import choose_step
from inference.runtime.vocoder_fused import FusedSpectrum
from inference.runtime.vocoder_pack import GAP, rows_used
from inference.runtime.wave_parts import VOCODER_FRAMES

_PADDED = ("compiled", "compiled-static", "tensorrt")
Way = Callable[[], Tensor]
Spectrum = Callable[[Tensor, Tensor, "Tensor | None"], "Tensor | None"]


@dataclass(frozen=True)
class Case:
    """`items` of `seconds` each; `prompt` frames of the reference in front of each (flow)."""

    items: int
    seconds: float
    prompt: int = 200

    @property
    def frames(self) -> int:
        """Mel frames of one item."""
        return int(50 * self.seconds)


# ------------------------------------------------------------------------------------------------ vocoder
def spectrum_way(backend: Spectrum | FusedSpectrum, vocoder: Vocoder, case: Case) -> Way:
    """The items' spectra (B, 18, 120*T + 1).

    As the pool would have it: on CUDA packed rows with a mask (but Triton's kernels, which make their own), on the CPU
    one item after the other.
    """
    mel, excitation = _items(vocoder, case)
    if isinstance(backend, FusedSpectrum):
        return _kernels_way(backend, mel, excitation)
    if mel.device.type == "cpu":
        return lambda: torch.cat(
            [_sure(backend(*item, None)) for item in zip(mel.split(1), excitation.split(1))]
        )
    each = max(1, VOCODER_FRAMES // case.frames)
    rows = [_packed(*part) for part in zip(mel.split(each), excitation.split(each))]

    def run() -> Tensor:
        found = []
        for row in rows:
            spectrum = _sure(backend(row.mel, row.excitation, row.mask))[0]
            found += [spectrum[:, start : start + case.frames * row.hops + 1] for start in row.starts]
        return torch.stack(found)

    return run


def _kernels_way(backend: FusedSpectrum, mel: Tensor, excitation: Tensor) -> Way:
    """The layout is the host's work, which the lane does beside the device."""
    length, ends, convolutions = mel.shape[2], backend.ends, backend.convolutions
    starts, rows, flags = ends.layout(len(mel), length, mel.device)

    def run() -> Tensor:
        halves, spectrum = ends.spread(mel, excitation, starts, rows, convolutions.dtype)
        found = ends.spectrum(convolutions.hidden(halves, spectrum, flags), flags, sound=False)
        return ends.collect(found, starts, length)

    return run


@dataclass(frozen=True)
class _Row:
    """Items in a row; `starts` of their spectra."""

    mel: Tensor
    excitation: Tensor
    mask: Tensor
    starts: list[int]
    hops: int


def _items(vocoder: Vocoder, case: Case) -> tuple[Tensor, Tensor]:
    device, cfg = vocoder.conv_pre.weight.device, vocoder.cfg
    generator = torch.Generator(device).manual_seed(5)
    bins = case.frames * (cfg.hop // cfg.istft_hop) + 1
    mel = torch.randn(case.items, cfg.mel_bins, case.frames, generator=generator, device=device) * 2 - 5
    shape = (case.items, cfg.istft_n_fft + 2, bins)
    return mel, 0.3 * torch.randn(shape, generator=generator, device=device)


def _packed(mel: Tensor, excitation: Tensor) -> _Row:
    count, _, frames = mel.shape
    hops = (excitation.shape[2] - 1) // frames
    rows = bucket(rows_used([frames] * count))
    row_mel, mask = mel.new_zeros(1, mel.shape[1], rows), torch.zeros(1, 1, rows, device=mel.device)
    row_excitation = excitation.new_zeros(1, excitation.shape[1], rows * hops + 1)
    begins = [GAP + number * (frames + GAP) for number in range(count)]
    for number, begin in enumerate(begins):
        mask[:, :, begin : begin + frames] = 1.0
        row_mel[0, :, begin : begin + frames] = mel[number]
        row_excitation[0, :, begin * hops : (begin + frames) * hops + 1] = excitation[number]
    return _Row(row_mel, row_excitation, mask > 0, [begin * hops for begin in begins], hops)


def _sure(found: Tensor | None) -> Tensor:
    if found is None:
        raise ValueError("the backend does not take this shape")
    return found


def spectrum_backend(name: str, vocoder: Vocoder, cache: Path | None) -> Spectrum | FusedSpectrum:
    """Raises what making it raises."""
    dtype = torch.float16 if vocoder.conv_pre.weight.is_cuda else torch.float32
    if name in ("torch-fp32", "torch"):
        return _eager(spectrum_graph(vocoder, torch.float32 if name == "torch-fp32" else dtype))
    if name in ("compiled", "compiled-static"):
        return CompiledSpectrum(vocoder, dtype, dynamic=name == "compiled")
    if name == "triton":
        return FusedSpectrum.of(vocoder)
    if name == "channels_last":
        fast = ChannelsLast(vocoder)
        return lambda mel, excitation, mask: fast(mel, excitation)
    if name == "onnxruntime":
        from inference.runtime.onnx_backends import OnnxSpectrum

        return OnnxSpectrum.make(vocoder, cache_dir=cache)
    from inference.runtime.tensorrt_backends import tensorrt_spectrum

    return tensorrt_spectrum(vocoder, dtype, cache)


def _eager(graph: SpectrumGraph) -> Spectrum:
    dtype = graph.vocoder.conv_pre.weight.dtype

    def run(mel: Tensor, excitation: Tensor, mask: Tensor | None) -> Tensor:
        found: Tensor = graph(mel.to(dtype), excitation.to(dtype), None if mask is None else mask.to(dtype))
        return found

    return run


# --------------------------------------------------------------------------------------------------- flow
def flow_way(name: str, flow: FlowModel, case: Case, cache: Path | None) -> Way:
    """Ten Euler steps for whole segments → mels (B, frames, 80), prompts included."""
    network = flow.decoder.estimator
    dtype = torch.float16 if network.final_proj.weight.is_cuda else torch.float32
    if name in ("packed", "packed-compiled", "triton"):
        return _packed_way(flow, case, dtype, name=name)
    if network.final_proj.weight.is_cuda and name in _PADDED:
        return _packed_way(flow, case, dtype, padded=_padded(name, network, dtype, cache))
    conditions = _conditions(flow, case)
    backend = _velocity(name, network, dtype, cache)
    cfg = flow.cfg
    return lambda: solve(backend, conditions, steps=cfg.n_timesteps, cfg_rate=cfg.cfg_rate).transpose(1, 2)


def _velocity(name: str, network: VelocityNetwork, dtype: torch.dtype, cache: Path | None) -> VelocityBackend:
    if name == "torch-fp32":
        return network
    if name == "torch":
        return copy.deepcopy(network).to(dtype)
    if name == "fused":
        from inference.runtime.fused_velocity import FusedVelocity

        return FusedVelocity(network)
    return BoundVelocity(network, _padded(name, network, dtype, cache))


def _padded(name: str, network: VelocityNetwork, dtype: torch.dtype, cache: Path | None) -> PaddedVelocity:
    if name in ("compiled", "compiled-static"):
        return CompiledVelocity(network, dtype, dynamic=name == "compiled")
    if name == "onnxruntime":
        from inference.runtime.onnx_backends import OnnxVelocity

        return OnnxVelocity.make(network, cache_dir=cache)
    from inference.runtime.tensorrt_backends import tensorrt_velocity

    return tensorrt_velocity(network, dtype, cache)


def _conditions(flow: FlowModel, case: Case) -> FlowConditions:
    device, bins = flow.encoder_proj.weight.device, flow.cfg.mel_bins
    generator = torch.Generator(device).manual_seed(6)
    frames = case.prompt + case.frames
    mu, cond = (torch.randn(case.items, bins, frames, generator=generator, device=device) for _ in range(2))
    cond[:, :, case.prompt :] = 0.0
    speaker = torch.randn(case.items, bins, generator=generator, device=device)
    return FlowConditions(mu, speaker, cond)


def _packed_way(
    flow: FlowModel,
    case: Case,
    dtype: torch.dtype,
    *,
    name: str = "packed",
    padded: PaddedVelocity | None = None,
) -> Way:
    """The pool's own solver, its graphs included."""
    given = _conditions(flow, case)
    joined = torch.cat((given.mu, given.speaker[:, :, None].expand_as(given.mu), given.cond), dim=1)
    frames = case.prompt + case.frames
    own = flow if flow.encoder_proj.weight.dtype == dtype else copy.deepcopy(flow).to(dtype)
    solver = _solver(own, name, padded)
    pack = FramePack([PackedMel(frames)] * case.items, case.items)

    def run() -> Tensor:
        buffers = solver.begin(pack)
        layout = buffers.layout
        rows = joined.transpose(1, 2)[layout.item.long(), layout.place.long()]
        buffers.static[0].copy_(rows)
        x = solver.solve()
        starts = pack.starts.tolist()
        return torch.stack([x[start : start + frames] for start in starts])

    return run


def _solver(flow: FlowModel, name: str, padded: PaddedVelocity | None) -> PackedSolver:
    weight, cfg = flow.encoder_proj.weight, flow.cfg
    attention = choose_attention(weight.device, weight.dtype, cfg.estimator.attention_head_dim)
    step: PackedStep = PackedVelocity(
        flow.decoder.estimator, cfg, attention, compiled=name == "packed-compiled"
    )
    if name == "triton":
        step, used = choose_step(flow, attention)
        if used != "kernels":
            raise ValueError("the kernels cannot be used here")
    given = (step, cfg, weight.dtype, weight.device)
    graphs = weight.device.type == "cuda"
    return (
        PackedSolver(*given, graphs=graphs) if padded is None else PaddedSolver(*given, padded, graphs=graphs)
    )

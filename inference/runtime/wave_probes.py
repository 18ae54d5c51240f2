"""Self-test and short measurement of the packed lane's backends (`wave_backends`), as the lane would run them."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from inference.models.vocoder import Vocoder
from inference.runtime.backend_choice import Soundness, best_seconds
from inference.runtime.backend_generator import Generator
from inference.runtime.frame_pack import FramePack, PackedMel, bucket
from inference.runtime.network_graphs import SpectrumGraph
from inference.runtime.packed_attention import choose_attention
from inference.runtime.packed_solver import PackedSolver
from inference.runtime.packed_velocity import PackedVelocity
from inference.runtime.packed_vocoder import PackedVocoder
from inference.runtime.vocoder_fused import FusedSpectrum
from inference.runtime.vocoder_pack import GAP, VocoderJob, rows_used
from inference.runtime.wave_backends import AnyVocoder, FlowParts, VocoderParts, longest_row

# Relative 2-norm beside float32; where PyTorch's own half precision is no better, a backend need not be either.
SPECTRUM_BOUND = 3e-3
MEL_BOUND = 2e-2
_MOST = 2e-2
_SLACK = 1.5
_FIRST_CHUNK = 50  # frames
_SENTENCE, _SENTENCES = (400,), (700,) * 8
_FULL_ROW = 500


# ------------------------------------------------------------------------------------------------ vocoder
@torch.inference_mode()
def vocoder_soundness(parts: VocoderParts, vocoder: AnyVocoder) -> Soundness:
    """The spectrum of two items beside the float32 modules, inside of the items."""
    if not isinstance(vocoder, PackedVocoder):
        backend = FusedSpectrum(vocoder.convolutions, vocoder.ends)
        mel, excitation, _ = _row(parts.model, (40,))
        mel, excitation = mel[:, :, GAP : GAP + 40], excitation[:, :, 120 * GAP : 120 * (GAP + 40) + 1]
        return Soundness.of(
            backend(mel.contiguous(), excitation.contiguous()), _exact(parts, mel, excitation)
        )
    return _generator_soundness(parts, vocoder.generator)


@torch.inference_mode()
def spectrum_bound(parts: VocoderParts) -> float:
    """What is asked of a backend's error with this model."""
    plain = _generator_soundness(parts, parts.plain).error
    return min(_MOST, max(SPECTRUM_BOUND, _SLACK * plain)) if math.isfinite(plain) else SPECTRUM_BOUND


def _generator_soundness(parts: VocoderParts, generator: Generator) -> Soundness:
    mel, excitation, mask = _row(parts.model, (21, 20))
    expected = _exact(parts, mel, excitation, mask)
    found = _convolve(parts.model, generator, mel, excitation, mask)
    inside = mask.repeat_interleave(excitation.shape[2] // mask.shape[2], dim=2)
    return Soundness.of(found[..., :-1] * inside, expected[..., :-1] * inside)


def _exact(parts: VocoderParts, mel: Tensor, excitation: Tensor, mask: Tensor | None = None) -> Tensor:
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        given = None if mask is None else mask.to(mel.dtype)
        found: Tensor = SpectrumGraph(parts.model)(mel, excitation, given)
        return found


@torch.inference_mode()
def vocoder_seconds(parts: VocoderParts, vocoder: AnyVocoder) -> float:
    """Geometric mean of a first chunk's and a full row's time, graphs included."""
    device, bins = vocoder.device, parts.model.cfg.mel_bins
    count = max(1, min(8, parts.most_items, longest_row(parts.settings) // (_FULL_ROW + 20)))
    times = []
    for frames, items in ((_FIRST_CHUNK, 1), (_FULL_ROW, count)):
        generator = torch.Generator().manual_seed(11)
        mel = (2.0 * torch.randn(frames, bins, generator=generator) - 5.0).to(device)
        jobs = [VocoderJob(mel, None, True, number) for number in range(items)]
        times.append(_seconds(lambda jobs=jobs: vocoder.run(jobs), device))  # type: ignore[misc]
    return _mean(times)


def _row(vocoder: Vocoder, lengths: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """A packed row of speech-like mels: mel (1, 80, rows), source spectrum, mask (1, 1, rows) bool."""
    device, cfg = vocoder.conv_pre.weight.device, vocoder.cfg
    rows = bucket(rows_used(lengths))
    generator = torch.Generator().manual_seed(11)
    mel = (2.0 * torch.randn(1, cfg.mel_bins, rows, generator=generator) - 5.0).to(device)
    mask = torch.zeros(1, 1, rows, dtype=torch.bool, device=device)
    begin = GAP
    for length in lengths:
        mask[:, :, begin : begin + length] = True
        begin += length + GAP
    f0 = torch.full((1, rows), 150.0, device=device)
    source, _ = vocoder.source(f0, vocoder.from_start(mel))
    return mel, vocoder.fourier.transform(source[:, 0]), mask


def _convolve(
    vocoder: Vocoder, generator: Generator, mel: Tensor, excitation: Tensor, mask: Tensor
) -> Tensor:
    """As `PackedVocoder` calls it."""
    dtype = next(generator.conv_pre.parameters()).dtype
    masks: list[Tensor | None] = [mask]
    scale = 1
    for rate in vocoder.cfg.upsample_rates:
        scale *= rate
        masks.append(mask.repeat_interleave(scale, dim=2))
    fine = mask.repeat_interleave(scale, dim=2)
    late, early = F.pad(fine, (1, 0)), F.pad(fine, (0, 1))
    masks[-1] = late | early
    first = early & ~late

    def lengthen(x: Tensor) -> Tensor:
        return torch.where(first, F.pad(x[:, :, 1:], (0, 2)), F.pad(x, (1, 0)))

    return generator.convolve(mel.to(dtype), excitation.to(dtype), masks, lengthen)


# --------------------------------------------------------------------------------------------------- flow
@torch.inference_mode()
def solver_soundness(parts: FlowParts, solver: PackedSolver) -> Soundness:
    """Mels of causal and whole items beside the float32 packed solver's."""
    lengths = (130, 128, 127, 126)[: parts.packed.most_items]
    found = _solved(parts, solver, lengths)
    flow, device = parts.packed.flow, parts.packed.device
    network = flow.decoder.estimator
    if network.final_proj.weight.dtype != torch.float32:
        network = copy.deepcopy(network).float()
    attention = choose_attention(device, torch.float32, flow.cfg.estimator.attention_head_dim)
    step = PackedVelocity(network, flow.cfg, attention)
    exact = PackedSolver(step, flow.cfg, torch.float32, device, graphs=False)
    return Soundness.of(found, _solved(parts, exact, lengths))


@torch.inference_mode()
def solver_seconds(parts: FlowParts, solver: PackedSolver) -> float:
    """Geometric mean of a solve for one sentence and for eight, graphs included."""
    device = parts.packed.device
    loads = (_SENTENCE, _SENTENCES[: parts.packed.most_items])
    return _mean([_seconds(lambda given=given: _solved(parts, solver, given), device) for given in loads])  # type: ignore[misc]


def _solved(parts: FlowParts, solver: PackedSolver, lengths: Sequence[int]) -> Tensor:
    """Mels (frames of all items, 80), every second item causal."""
    items = [PackedMel(length, causal=number % 2 == 0) for number, length in enumerate(lengths)]
    pack = FramePack(items, parts.packed.most_items, parts.packed.flow.cfg.estimator.chunk_frames)
    buffers = solver.begin(pack)
    static = torch.randn(buffers.static.shape[1:], generator=torch.Generator().manual_seed(12))
    bins = static.shape[1] // 3
    static[:, bins : 2 * bins] = static[:1, bins : 2 * bins]  # an item has one speaker
    buffers.static[0].copy_(static)
    mels = solver.solve()
    ends = zip(pack.starts.tolist(), lengths)
    return torch.cat([mels[start : start + length] for start, length in ends])


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()

    for _ in range(2):  # seen, captured
        work()
    return best_seconds(work, wait)


def _mean(times: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, times)) / len(times))

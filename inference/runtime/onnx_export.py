"""ONNX files of the vocoder's generator and of the velocity network, for ONNX Runtime and TensorRT.

Batch and length are dynamic. `dtype` float16 gives a typed file: weights, inputs and outputs in half precision but for
what says otherwise below (TensorRT from 11.x on takes types from the file alone). Needs the package `onnx`.
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from inference.models.velocity import VelocityNetwork
from inference.models.vocoder import Vocoder
from inference.runtime.packed_vocoder import half_generator

OPSET = 17  # the newest that TensorRT 8.6 reads and torch's TorchScript exporter writes
_UNSEEN = -1e4  # within half precision, and nothing is left of it behind the softmax
_TRACED_BATCH, _TRACED_FRAMES = 2, 12


@dataclass(frozen=True)
class GraphInput:
    """Name, and which axes are dynamic: {axis: name}."""

    name: str
    axes: dict[int, str]


SPECTRUM_INPUTS = (
    GraphInput("mel", {0: "batch", 2: "frames"}),
    GraphInput("excitation", {0: "batch", 2: "bins"}),
)
VELOCITY_INPUTS = (
    GraphInput("x", {0: "batch", 2: "frames"}),
    GraphInput("mask", {0: "batch", 2: "frames"}),
    GraphInput("mu", {0: "batch", 2: "frames"}),
    GraphInput("t", {0: "batch"}),
    GraphInput("spks", {0: "batch"}),
    GraphInput("cond", {0: "batch", 2: "frames"}),
    GraphInput("chunks", {0: "frames"}),
)


class SpectrumGraph(nn.Module):
    """mel (B, 80, T), source spectrum (B, 18, 120*T + 1) → spectrum before the inverse STFT, float32 always.

    All items of a batch have the same length. Snake and the folded weights are inside; F0, source and inverse outside.
    """

    def __init__(self, vocoder: Vocoder) -> None:
        super().__init__()
        self.vocoder = vocoder
        self._stages = len(vocoder.cfg.upsample_rates)

    def forward(self, mel: Tensor, excitation: Tensor) -> Tensor:
        # A one-sample mirror as a slice: 1-D reflection is no operator of every runtime.
        return self.vocoder.convolve(
            mel, excitation, [None] * (self._stages + 1), lambda x: torch.cat((x[:, :, 1:2], x), dim=2)
        )


class VelocityGraph(nn.Module):
    """`VelocityNetwork.forward` with the attention's chunks as an input.

    x, mu, cond (B, 80, T); mask (B, 1, T), 1 = real frame; t (B,) float32; spks (B, 80); chunks (T,) float32, the
    number of each frame's chunk (see `chunk_numbers`): a frame sees those of its own chunk and of earlier ones.
    """

    def __init__(self, network: VelocityNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(
        self, x: Tensor, mask: Tensor, mu: Tensor, t: Tensor, spks: Tensor, cond: Tensor, chunks: Tensor
    ) -> Tensor:
        valid = mask[:, 0] > 0
        # No row without a key, which would be NaN: the first frame is always seen.
        first = torch.ones_like(valid[:, :1])
        valid = torch.cat((first, valid[:, 1:]), dim=1)
        seen = (chunks[None, :] <= chunks[:, None])[None, None] & valid[:, None, None]
        # Added in the weights' type: the exporter turns a bool mask into a float32 one, which a half file cannot hold.
        bias = torch.where(seen, 0.0, _UNSEEN).to(mask.dtype)
        network = self.network
        static = network._static_inputs(mu, spks, cond)
        return network._evaluate(x, static, mask.transpose(1, 2), bias, network.time_shifts(t))


def chunk_numbers(frames: int, chunk_frames: int | None, device: torch.device | None = None) -> Tensor:
    """(frames,) float32 for `VelocityGraph`; chunk_frames None: full attention."""
    if chunk_frames is None:
        return torch.zeros(frames, device=device)
    return torch.arange(frames, device=device).div(chunk_frames, rounding_mode="floor").float()


def export_spectrum(vocoder: Vocoder, path: Path, dtype: torch.dtype = torch.float32) -> None:
    """Write `SpectrumGraph`. Half: inputs float16, Snake's slopes, the last layer and the output float32."""
    source = vocoder if dtype == torch.float32 else half_generator(vocoder, dtype)
    cfg = vocoder.cfg
    mel = torch.zeros(_TRACED_BATCH, cfg.mel_bins, _TRACED_FRAMES, dtype=dtype)
    frames = _TRACED_FRAMES * (cfg.hop // cfg.istft_hop) + 1
    excitation = torch.zeros(_TRACED_BATCH, cfg.istft_n_fft + 2, frames, dtype=dtype)
    _export(
        SpectrumGraph(source),
        (mel, excitation),
        path,
        SPECTRUM_INPUTS,
        GraphInput("spectrum", {0: "batch", 2: "bins"}),
    )


def export_velocity(network: VelocityNetwork, path: Path, dtype: torch.dtype = torch.float32) -> None:
    """Write `VelocityGraph`. Half: everything but `t` and `chunks`."""
    source = network if dtype == torch.float32 else copy.deepcopy(network).to(dtype)
    shape = (_TRACED_BATCH, network.cfg.out_channels, _TRACED_FRAMES)
    mel, speaker = torch.zeros(shape, dtype=dtype), torch.zeros(shape[:2], dtype=dtype)
    mask = torch.ones(_TRACED_BATCH, 1, _TRACED_FRAMES, dtype=dtype)
    example = (mel, mask, mel, torch.zeros(_TRACED_BATCH), speaker, mel, chunk_numbers(_TRACED_FRAMES, 5))
    _export(
        VelocityGraph(source),
        example,
        path,
        VELOCITY_INPUTS,
        GraphInput("velocity", {0: "batch", 2: "frames"}),
    )


def _export(
    graph: nn.Module,
    example: tuple[Tensor, ...],
    path: Path,
    inputs: tuple[GraphInput, ...],
    output: GraphInput,
) -> None:
    with torch.no_grad(), warnings.catch_warnings():
        # The TorchScript exporter is deprecated, but takes 1 s where the new one takes 14 s, and TensorRT 8.6 reads it.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            graph.eval(),
            example,
            str(path),
            input_names=[entry.name for entry in inputs],
            output_names=[output.name],
            dynamic_axes={entry.name: entry.axes for entry in (*inputs, output)},
            opset_version=OPSET,
            dynamo=False,
        )

"""Vocoder generator and velocity network as pure functions of tensors: what is exported, compiled and built.

One graph serves ONNX Runtime, TensorRT and torch.compile. Batch and length are dynamic; items may be padded, packed
into one row with gaps between them, or neither: a mask input says which frames are inside of one.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inference.models.velocity import VelocityNetwork
from inference.models.vocoder import Vocoder
from inference.runtime.vocoder_generator import half_generator

UNSEEN = -1e4  # within half precision, and nothing is left of it behind the softmax


@dataclass(frozen=True)
class GraphInput:
    """Name, and which axes are dynamic: {axis: name}."""

    name: str
    axes: dict[int, str]


SPECTRUM_INPUTS = (
    GraphInput("mel", {0: "batch", 2: "frames"}),
    GraphInput("excitation", {0: "batch", 2: "bins"}),
    GraphInput("mask", {0: "batch", 2: "frames"}),
)
VELOCITY_INPUTS = (
    GraphInput("x", {0: "batch", 2: "frames"}),
    GraphInput("mask", {0: "batch", 2: "frames"}),
    GraphInput("mu", {0: "batch", 2: "frames"}),
    GraphInput("t", {0: "batch"}),
    GraphInput("spks", {0: "batch"}),
    GraphInput("cond", {0: "batch", 2: "frames"}),
    GraphInput("chunks", {0: "batch", 1: "frames"}),
)
SPECTRUM_OUTPUT = GraphInput("spectrum", {0: "batch", 2: "bins"})
VELOCITY_OUTPUT = GraphInput("velocity", {0: "batch", 2: "frames"})


class SpectrumGraph(nn.Module):
    """mel (B, 80, T), source spectrum (B, 18, 120*T + 1) → spectrum before the inverse STFT, float32 always.

    mask (B, 1, T), 1 inside of an item and 0 elsewhere; it may hold several items a row, two frames or more apart (as
    `vocoder_pack` lays them out). None: all is inside, which is faster. The result is arbitrary outside of the items.
    Snake and the folded weights are in the graph; F0, source and inverse transform are not.
    """

    def __init__(self, vocoder: Vocoder) -> None:
        super().__init__()
        self.vocoder = vocoder
        self._rates = vocoder.cfg.upsample_rates

    def forward(self, mel: Tensor, excitation: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is None:
            # A one-sample mirror as a slice: 1-D reflection is no operator of every runtime.
            return self.vocoder.convolve(
                mel,
                excitation,
                [None] * (len(self._rates) + 1),
                lambda x: torch.cat((x[:, :, 1:2], x), dim=2),
            )
        masks, fine, scale = [mask > 0.5], mask, 1
        for rate in self._rates:
            scale *= rate
            fine = _spread(mask, scale)
            masks.append(fine > 0.5)
        late, early = F.pad(fine, (1, 0)), F.pad(fine, (0, 1))
        masks[-1] = (late + early) > 0.5  # an item has one position more than samples
        first = (early - late) > 0.5

        def lengthen(x: Tensor) -> Tensor:
            return torch.where(first, F.pad(x[:, :, 1:], (0, 2)), F.pad(x, (1, 0)))

        return self.vocoder.convolve(mel, excitation, masks, lengthen)


def _spread(mask: Tensor, times: int) -> Tensor:
    """(B, 1, T) → (B, 1, times*T)."""
    return mask[..., None].expand(-1, -1, -1, times).flatten(2)


class VelocityGraph(nn.Module):
    """`VelocityNetwork.forward` with the attention's chunks as an input.

    x, mu, cond (B, 80, T); mask (B, 1, T), 1 = real frame; t (B,) float32; spks (B, 80); chunks (B, T) float32, the
    number of each frame's chunk (see `chunk_numbers`): a frame sees those of its own chunk and of earlier ones.
    """

    def __init__(self, network: VelocityNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(
        self, x: Tensor, mask: Tensor, mu: Tensor, t: Tensor, spks: Tensor, cond: Tensor, chunks: Tensor
    ) -> Tensor:
        # Inside for sure: the first frame, so that no row is without a key, which would be NaN.
        valid = torch.cat((torch.ones_like(mask[:, 0, :1]), mask[:, 0, 1:]), dim=1) > 0
        seen = (chunks[:, None, :] <= chunks[:, :, None]) & valid[:, None]
        # Added in the weights' type: the exporter turns a bool mask into a float32 one, which a half file cannot hold.
        bias = torch.where(seen, 0.0, UNSEEN).to(mask.dtype)[:, None]
        network = self.network
        static = network._static_inputs(mu, spks, cond)
        return network._evaluate(x, static, mask.transpose(1, 2), bias, network.time_shifts(t))


def chunk_numbers(frames: int, chunk_frames: int | None, device: torch.device | None = None) -> Tensor:
    """(frames,) float32 for one item of a `VelocityGraph`; chunk_frames None: full attention."""
    if chunk_frames is None:
        return torch.zeros(frames, device=device)
    return torch.arange(frames, device=device).div(chunk_frames, rounding_mode="floor").float()


def spectrum_graph(vocoder: Vocoder, dtype: torch.dtype = torch.float32) -> SpectrumGraph:
    """In half precision: inputs half, Snake's slopes, the last layer and the output float32 (weights are copied)."""
    return SpectrumGraph(vocoder if dtype == torch.float32 else half_generator(vocoder, dtype)).eval()


def velocity_graph(network: VelocityNetwork, dtype: torch.dtype = torch.float32) -> VelocityGraph:
    """In half precision: everything but `t` and `chunks`."""
    same = network.final_proj.weight.dtype == dtype
    return VelocityGraph(network if same else copy.deepcopy(network).to(dtype)).eval()


def spectrum_example(vocoder: Vocoder, batch: int, frames: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Inputs of a `SpectrumGraph`, mask included, on the vocoder's device."""
    cfg, device = vocoder.cfg, vocoder.conv_pre.weight.device
    bins = frames * (cfg.hop // cfg.istft_hop) + 1
    return (
        torch.zeros(batch, cfg.mel_bins, frames, dtype=dtype, device=device),
        torch.zeros(batch, cfg.istft_n_fft + 2, bins, dtype=dtype, device=device),
        torch.ones(batch, 1, frames, dtype=dtype, device=device),
    )


def velocity_example(
    network: VelocityNetwork, batch: int, frames: int, dtype: torch.dtype
) -> tuple[Tensor, ...]:
    """Inputs of a `VelocityGraph` on the network's device."""
    device, bins = network.final_proj.weight.device, network.cfg.out_channels
    mel = torch.zeros(batch, bins, frames, dtype=dtype, device=device)
    mask = torch.ones(batch, 1, frames, dtype=dtype, device=device)
    chunks = chunk_numbers(frames, network.cfg.chunk_frames, device).expand(batch, -1)
    times = torch.zeros(batch, device=device)
    return mel, mask, mel, times, mel[:, :, 0].contiguous(), mel, chunks

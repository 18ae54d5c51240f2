"""The vocoder's convolutions as matrices for `vocoder_kernels`: taps one under the other, half precision.

Channels are padded with zeros, also in biases and slopes, so that padded channels are zero all the way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from inference.models.vocoder import ResBlock, Snake, Vocoder

CHANNEL_STEP = 32  # channel counts are padded to multiples of it
DOWN_STEP = 64  # inputs of the flattened source convolutions, likewise
SOURCE_PITCH = 24  # channels of the source's spectrum, padded so that rows are aligned


@dataclass(frozen=True)
class ConvPack:
    """Up to three parallel convolutions, or one.

    weight (rows, columns): for each branch and tap `inner` rows. `taps`, `centers`: of three branches, see `conv_rows`.
    bias (branches, width) float32. `reach`: the dilation.
    """

    weight: Tensor
    bias: Tensor
    taps: tuple[int, int, int]
    centers: tuple[int, int, int]
    inner: int
    inner_real: int
    pitch: int
    wrap: int
    columns: int
    width: int
    branches: int = 1
    dilation: int = 1
    row_step: int = 1
    rate: int = 1
    pair: bool = False


@dataclass(frozen=True)
class Pair:
    """A layer of parallel residual blocks: two convolutions, and the slopes behind the first and behind the second
    (None: it is the last); (branches, 2, width) float32. `*_paired` make two rows at a time (None: not wanted)."""

    dilated: ConvPack
    plain: ConvPack
    middle: Tensor
    after: Tensor | None
    dilated_paired: ConvPack | None
    plain_paired: ConvPack | None


@dataclass(frozen=True)
class StagePack:
    """One upsampling stage. `down_slopes` (1, 2, width) and `up_slopes` (3, 2, width): see `Pair`."""

    width: int
    down: ConvPack
    down_slopes: Tensor
    source: list[Pair]
    up: ConvPack
    up_slopes: Tensor
    blocks: list[Pair]


def padded(channels: int, step: int = CHANNEL_STEP) -> int:
    """The next multiple of `step`."""
    return -(-channels // step) * step


def pack_stage(vocoder: Vocoder, stage: int, dtype: torch.dtype, pair_width: int) -> StagePack:
    """Everything of one stage; `paired` convolutions for widths up to `pair_width`."""
    count = len(vocoder.cfg.resblock_kernel_sizes)
    blocks = [cast(ResBlock, block) for block in vocoder.resblocks[stage * count : (stage + 1) * count]]
    source = [cast(ResBlock, vocoder.source_resblocks[stage])]
    down = cast(nn.Conv1d, vocoder.source_downs[stage])
    up = cast(nn.ConvTranspose1d, vocoder.ups[stage])
    width = padded(down.out_channels)
    return StagePack(
        width=width,
        down=pack_flat(down, SOURCE_PITCH, dtype),
        down_slopes=_slopes([source[0].activations1[0]], width),
        source=_pairs(source, width, dtype, width <= pair_width),
        up=pack_upsampling(up, dtype),
        up_slopes=_slopes([block.activations1[0] for block in blocks], width),
        blocks=_pairs(blocks, width, dtype, width <= pair_width),
    )


def _pairs(blocks: Sequence[ResBlock], width: int, dtype: torch.dtype, paired: bool) -> list[Pair]:
    found = []
    layers = len(blocks[0].convs1)
    for layer in range(layers):
        first = [cast(nn.Conv1d, block.convs1[layer]) for block in blocks]
        second = [cast(nn.Conv1d, block.convs2[layer]) for block in blocks]
        last = layer == layers - 1
        found.append(
            Pair(
                dilated=pack_parallel(first, dtype),
                plain=pack_parallel(second, dtype, total=last),
                middle=_slopes([block.activations2[layer] for block in blocks], width),
                after=None if last else _slopes([block.activations1[layer + 1] for block in blocks], width),
                dilated_paired=pack_parallel(first, dtype, pair=True) if paired else None,
                plain_paired=pack_parallel(second, dtype, pair=True, total=last) if paired else None,
            )
        )
    return found


def pack_parallel(
    convs: Sequence[nn.Conv1d], dtype: torch.dtype, *, pair: bool = False, total: bool = False
) -> ConvPack:
    """Convolutions of one width that keep the length. `total`: they are summed, so their biases are too."""
    inner, width = padded(convs[0].in_channels), padded(convs[0].out_channels)
    dilations = {int(conv.dilation[0]) for conv in convs}
    if len(dilations) != 1 or len(convs) > 3:
        raise ValueError("parallel convolutions must have one dilation")
    parts: list[Tensor] = []
    taps: list[int] = []
    centers: list[int] = []
    for conv in convs:
        weight = _taps_first(conv.weight, inner, width)
        centers.append(sum(taps) + len(weight) // 2)
        if pair:
            edge = weight.new_zeros(1, inner, width)
            weight = torch.cat((torch.cat((weight, edge)), torch.cat((edge, weight))), dim=2)
        taps.append(len(weight))
        parts.append(weight.flatten(0, 1))
    joined = torch.cat(parts).to(dtype).contiguous()
    bias = torch.stack([_padded_vector(conv.bias, width) for conv in convs])
    return ConvPack(
        weight=joined,
        bias=bias.sum(dim=0, keepdim=True) if total else bias,
        taps=_three(taps, 0),
        centers=_three(centers, centers[-1]),
        inner=inner,
        inner_real=inner,
        pitch=inner,
        wrap=inner,
        columns=joined.shape[1],
        width=width,
        branches=len(convs),
        dilation=dilations.pop(),
        pair=pair,
    )


def pack_flat(conv: nn.Conv1d, pitch: int, dtype: torch.dtype) -> ConvPack:
    """A (strided) convolution of few channels: a window of its rows, `pitch` values each, is one long tap."""
    weight = conv.weight.detach()
    size, width = weight.shape[2], padded(weight.shape[0])
    real = size * pitch
    table = weight.new_zeros(size, pitch, width)
    table[:, : weight.shape[1], : weight.shape[0]] = weight.permute(2, 1, 0)
    inner = padded(real, DOWN_STEP)
    joined = weight.new_zeros(inner, width)
    joined[:real] = table.flatten(0, 1)
    return ConvPack(
        weight=joined.to(dtype),
        bias=_padded_vector(conv.bias, width)[None],
        taps=(1, 0, 0),
        centers=(int(conv.padding[0]),) * 3,
        inner=inner,
        inner_real=real,
        pitch=pitch,
        wrap=inner,
        columns=width,
        width=width,
        row_step=int(conv.stride[0]),
    )


def pack_upsampling(conv: nn.ConvTranspose1d, dtype: torch.dtype) -> ConvPack:
    """A transposed convolution of rate s: s rows at once from the rows before, at and behind one input row."""
    weight = conv.weight.detach()  # (in, out, size)
    rate, padding, size = int(conv.stride[0]), int(conv.padding[0]), weight.shape[2]
    inner, width = padded(weight.shape[0]), padded(weight.shape[1])
    before = (size - 1 - padding) // rate  # input rows that reach the first output row, or further ones
    behind = (rate - 1 + padding) // rate
    table = weight.new_zeros(before + behind + 1, inner, rate, width)
    for tap in range(before + behind + 1):
        for phase in range(rate):
            place = phase + padding - (tap - before) * rate
            if 0 <= place < size:
                table[tap, : weight.shape[0], phase, : weight.shape[1]] = weight[:, :, place]
    return ConvPack(
        weight=table.view(-1, rate * width).to(dtype).contiguous(),
        bias=_padded_vector(conv.bias, width)[None],
        taps=(before + behind + 1, 0, 0),
        centers=(before, before, before),
        inner=inner,
        inner_real=inner,
        pitch=inner,
        wrap=inner,
        columns=rate * width,
        width=width,
        rate=rate,
    )


def pack_wide(conv: nn.Conv1d, halves: int, dtype: torch.dtype = torch.float16) -> tuple[ConvPack, float]:
    """A convolution whose input is the sum of two half-precision numbers, as are its weights, times a power of two.

    Input rows hold the high halves of `halves` channels, then the low ones. high·high + low·high + high·low is as
    good as float32. Returns it and what the sums must be multiplied with.
    """
    weight = _taps_first(conv.weight.float(), halves, padded(conv.out_channels))
    power = 2.0 ** (6 - math.frexp(float(weight.abs().max().clamp_min(1e-30)))[1])
    high, low = split_halves(weight * power, dtype)
    joined = torch.cat((high, high, low), dim=1).flatten(0, 1).contiguous()
    return ConvPack(
        weight=joined,
        bias=_padded_vector(conv.bias, padded(conv.out_channels))[None],
        taps=(len(weight), 0, 0),
        centers=(len(weight) // 2,) * 3,
        inner=3 * halves,
        inner_real=3 * halves,
        pitch=2 * halves,
        wrap=2 * halves,
        columns=joined.shape[1],
        width=joined.shape[1],
    ), 1.0 / power


def split_halves(values: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Two numbers of `dtype` whose sum is nearly each of `values`."""
    high = values.to(dtype)
    return high, (values - high.to(values.dtype)).to(dtype)


def _taps_first(weight: Tensor, inner: int, width: int) -> Tensor:
    """(out, in, taps) → (taps, inner, width)."""
    table = weight.detach().new_zeros(weight.shape[2], inner, width)
    table[:, : weight.shape[1], : weight.shape[0]] = weight.detach().permute(2, 1, 0)
    return table


def _padded_vector(values: Tensor | None, width: int) -> Tensor:
    if values is None:
        raise ValueError("a convolution without a bias")
    found = values.detach().new_zeros(width, dtype=torch.float32)
    found[: len(values)] = values.detach()
    return found


def _slopes(activations: Sequence[nn.Module], width: int) -> Tensor:
    rows = []
    for activation in activations:
        alpha = cast(Snake, activation).alpha.detach().float()
        rows.append(
            torch.stack((_padded_vector(alpha / math.pi, width), _padded_vector(1.0 / (alpha + 1e-9), width)))
        )
    return torch.stack(rows).contiguous()


def _three(values: Sequence[int], rest: int) -> tuple[int, int, int]:
    first, second, third = [*values, rest, rest][:3]
    return first, second, third

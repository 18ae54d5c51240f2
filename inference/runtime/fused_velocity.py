"""The flow's velocity network for whole segments on the CPU, in few and large operations (`FusedVelocity`).

Same arithmetic as `VelocityNetwork`, to about 1e-6. The halves of the guidance pair are computed apart: an activation
of ten seconds then fits into a core's cache, and two cores can share a segment where one would be idle. Convolutions
are matrix products over three neighbouring frames; what the first stage makes of the conditions is computed once a
solve. One core, bundled model, 10 s of sound behind a clip of 4 s: 1.5 s for the flow where the modules take 2.3.
"""

from __future__ import annotations

from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inference.models.velocity import (
    Attention,
    CausalBlock,
    Projection,
    ResnetBlock,
    TransformerBlock,
    VelocityNetwork,
)
from inference.runtime.flow_solver import VelocityStep
from inference.runtime.onnx_attention import FullAttention
from inference.runtime.packed_linear import PackedLinear
from inference.runtime.spare_cores import each
from inference.runtime.vector_math import mish

_TAPS = 3


class FusedVelocity:
    """A `VelocityBackend` with copies of a network's weights; masks and chunks are left to the network itself.

    Keeps no state between calls; may be used from several threads.
    """

    def __init__(self, network: VelocityNetwork) -> None:
        self._network = network
        bins = network.cfg.out_channels
        stages = [*network.down_blocks, *network.mid_blocks, *network.up_blocks]
        first, *others = (cast(nn.ModuleList, stage) for stage in stages)
        self._first = _First(cast(ResnetBlock, first[0]), bins)
        self._resnets = [_Resnet(cast(ResnetBlock, stage[0])) for stage in others]
        self._transformers = [
            [_Transformer(cast(TransformerBlock, block)) for block in cast(nn.ModuleList, stage[1])]
            for stage in (first, *others)
        ]
        self._closing = [_Taps(stage[2]) if len(stage) == 3 else None for stage in (first, *others)]
        self._final_block = _Block(network.final_block)
        self._final_proj = _pointwise(network.final_proj)

    def bind(
        self, mask: Tensor | None, mu: Tensor, spks: Tensor, cond: Tensor, times: Tensor, *, streaming: bool
    ) -> VelocityStep:
        """See `VelocityNetwork.bind`."""
        if mask is not None or streaming or mu.dtype != torch.float32:
            return self._network.bind(mask, mu, spks, cond, times, streaming=streaming)
        speakers = spks[:, None].expand(-1, mu.shape[2], -1)
        conditions = torch.cat((mu.transpose(1, 2), speakers, cond.transpose(1, 2)), dim=2)
        known = [self._first.prepare(rows) for rows in conditions]
        shifts = self._network.time_shifts(times)

        def step(x: Tensor, k: int) -> Tensor:
            return torch.stack(self._all(x, known, shifts[:, k]))

        return step

    def _all(self, x: Tensor, known: list[tuple[Tensor, Tensor]], shifts: Tensor) -> list[Tensor]:
        """x (B, 80, T) → B times (80, T), item by item."""
        return each([partial(self._evaluate, *item, shifts) for item in zip(x, known)])

    def _evaluate(self, x: Tensor, known: tuple[Tensor, Tensor], shifts: Tensor) -> Tensor:
        """x (80, T), what the first stage knows, shifts (stages, C) → (80, T)."""
        hidden = skip = self._stage(self._first(x.t().contiguous(), known, shifts[0]), 0)
        hidden = self._close(hidden, 0)
        last = len(self._resnets)
        for index, resnet in enumerate(self._resnets, 1):
            if index == last:
                hidden = torch.cat((hidden, skip), dim=1)
            hidden = self._close(self._stage(resnet(hidden, shifts[index]), index), index)
        return self._final_proj(self._final_block(hidden)).t()

    def _stage(self, x: Tensor, index: int) -> Tensor:
        for transformer in self._transformers[index]:
            x = transformer(x)
        return x

    def _close(self, x: Tensor, index: int) -> Tensor:
        conv = self._closing[index]
        return x if conv is None else conv(x)


class _Taps:
    """A causal convolution over three frames as a product: (T, C) → (T, C')."""

    def __init__(self, conv: nn.Module, inputs: slice = slice(None), biased: bool = True) -> None:
        weight, bias = cast(Tensor, conv.weight).detach()[:, inputs], cast("Tensor | None", conv.bias)
        self._linear = PackedLinear(weight.transpose(1, 2).flatten(1).contiguous(), bias if biased else None)

    def __call__(self, x: Tensor, plus: Tensor | None = None) -> Tensor:
        frames, channels = x.shape
        taps = x.new_empty(frames, _TAPS, channels)
        for back in range(_TAPS):
            column = taps[:, _TAPS - 1 - back]
            column[:back].zero_()
            column[back:] = x[: max(0, frames - back)]
        return self._linear(taps.flatten(1), plus)


class _Block:
    """A `CausalBlock` without padding."""

    def __init__(self, block: CausalBlock, inputs: slice = slice(None), biased: bool = True) -> None:
        self._taps = _Taps(block.block["0"], inputs, biased)
        self._norm = _Norm(block.block["2"])

    def __call__(self, x: Tensor, plus: Tensor | None = None) -> Tensor:
        """A new tensor; `plus` is added before the norm."""
        return mish(self._norm(self._taps(x, plus)))


class _Resnet:
    """A `ResnetBlock` without padding."""

    def __init__(self, resnet: ResnetBlock) -> None:
        self._block1, self._block2 = _Block(resnet.block1), _Block(resnet.block2)
        self._shortcut = _pointwise(resnet.res_conv)

    def __call__(self, x: Tensor, shift: Tensor) -> Tensor:
        """x (T, inputs), shift (C,) → (T, C)."""
        return self._shortcut(x, self._block2(self._block1(x).add_(shift)))


class _First:
    """The first `ResnetBlock`, whose input is x beside conditions that stay the same: both layers that see them are
    linear, and so the conditions' share is computed once."""

    def __init__(self, resnet: ResnetBlock, bins: int) -> None:
        moving, fixed = slice(0, bins), slice(bins, None)
        self._fixed_taps = _Taps(resnet.block1.block["0"], fixed)
        self._block1 = _Block(resnet.block1, moving, biased=False)
        self._block2 = _Block(resnet.block2)
        shortcut = resnet.res_conv.weight[:, :, 0]
        self._fixed_shortcut = PackedLinear(shortcut[:, fixed].contiguous(), resnet.res_conv.bias)
        self._shortcut = PackedLinear(shortcut[:, moving].contiguous())

    def prepare(self, conditions: Tensor) -> tuple[Tensor, Tensor]:
        """(T, 240) → what it adds to the first convolution and to the shortcut, (T, C) each."""
        return self._fixed_taps(conditions), self._fixed_shortcut(conditions)

    def __call__(self, x: Tensor, known: tuple[Tensor, Tensor], shift: Tensor) -> Tensor:
        """x (T, 80) → (T, C)."""
        hidden = self._block2(self._block1(x, known[0]).add_(shift))
        return hidden.add_(self._shortcut(x, known[1]))


class _Transformer:
    """A `TransformerBlock` in which everything sees everything."""

    def __init__(self, block: TransformerBlock) -> None:
        attention: Attention = block.attn1
        self._norm1, self._norm3 = _Norm(block.norm1), _Norm(block.norm3)
        self._parts = [_linear(linear) for linear in (attention.to_q, attention.to_k, attention.to_v)]
        self._attend = FullAttention(attention.heads, attention.to_q.out_features)
        self._out = _linear(attention.to_out[0])
        feed_forward = block.ff.net
        self._up = _linear(cast(Projection, feed_forward["0"]).proj)
        self._down = _linear(feed_forward["2"])

    def __call__(self, x: Tensor) -> Tensor:
        """(T, C) → (T, C)."""
        normed = self._norm1(x)
        x = self._out(self._attend(*(part(normed) for part in self._parts)), x)
        return self._down(self._up.gelu(self._norm3(x)), x)


class _Norm:
    def __init__(self, norm: nn.Module) -> None:
        norm = cast(nn.LayerNorm, norm)
        self._shape, self._eps = norm.normalized_shape, norm.eps
        self._weight, self._bias = norm.weight.detach(), norm.bias.detach()

    def __call__(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self._shape, self._weight, self._bias, self._eps)


def _linear(module: nn.Module) -> PackedLinear:
    module = cast(nn.Linear, module)
    return PackedLinear(module.weight, module.bias)


def _pointwise(conv: nn.Conv1d) -> PackedLinear:
    return PackedLinear(conv.weight[:, :, 0], conv.bias)

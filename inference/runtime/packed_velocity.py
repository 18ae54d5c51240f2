"""The velocity network on a packed row: the weights of `VelocityNetwork`, laid out for few and large matrix products.

Both guidance halves are computed at once: activations are (2, rows, channels). Convolutions are products over three
neighbouring rows, query, key and value one product. Frames between the items are set to zero where a convolution would
see them; nothing else crosses from row to row but attention, which stays within its blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inference.models.velocity import (
    CausalBlock,
    CausalConv,
    PointwiseConv,
    ResnetBlock,
    TransformerBlock,
    VelocityNetwork,
)
from inference.runtime.frame_pack import Blocks, DeviceLayout
from inference.runtime.fused import Fused
from inference.runtime.packed_attention import PackedAttention


class Affine(NamedTuple):
    """Weight and bias of a linear layer, a convolution (taps before channels) or a norm."""

    weight: Tensor
    bias: Tensor | None


class BlockWeights(NamedTuple):
    """A causal block: convolution, norm."""

    conv: Affine
    norm: Affine


class ResnetWeights(NamedTuple):
    first: BlockWeights
    second: BlockWeights
    shortcut: Affine


class TransformerWeights(NamedTuple):
    norm1: Affine
    qkv: Tensor
    out: Affine
    norm3: Affine
    up: Affine
    down: Affine


class Stage(NamedTuple):
    resnet: ResnetWeights
    blocks: tuple[TransformerWeights, ...]
    conv: Affine | None


def _affine(layer: nn.Module) -> Affine:
    weight, bias = cast(Tensor, layer.weight).detach(), cast("Tensor | None", layer.bias)
    if isinstance(layer, PointwiseConv):
        weight = weight[:, :, 0]
    elif isinstance(layer, CausalConv):
        weight = weight.transpose(1, 2).flatten(1).contiguous()
    return Affine(weight, None if bias is None else bias.detach())


def _causal_block(module: CausalBlock) -> BlockWeights:
    return BlockWeights(_affine(module.block["0"]), _affine(module.block["2"]))


def _resnet(module: ResnetBlock) -> ResnetWeights:
    return ResnetWeights(_causal_block(module.block1), _causal_block(module.block2), _affine(module.res_conv))


def _transformer(module: TransformerBlock) -> TransformerWeights:
    attention, net = module.attn1, module.ff.net
    qkv = torch.cat([layer.weight.detach() for layer in (attention.to_q, attention.to_k, attention.to_v)])
    up = cast(nn.Module, net["0"].proj)
    return TransformerWeights(
        _affine(module.norm1),
        qkv,
        _affine(attention.to_out[0]),
        _affine(module.norm3),
        _affine(up),
        _affine(net["2"]),
    )


def _stage(parts: nn.ModuleList) -> Stage:
    blocks = tuple(_transformer(block) for block in cast("list[TransformerBlock]", parts[1]))
    return Stage(_resnet(cast(ResnetBlock, parts[0])), blocks, _affine(parts[2]) if len(parts) == 3 else None)


def _norm(x: Tensor, norm: Affine) -> Tensor:
    return F.layer_norm(x, norm.weight.shape, norm.weight, norm.bias)


def _causal_conv(x: Tensor, conv: Affine, inside: Tensor) -> Tensor:
    """x (2, rows, C), inside (rows, 1) → (2, rows, C'): each row from itself and the two before it."""
    padded = F.pad(torch.where(inside, x, 0.0), (0, 0, 2, 0))
    rows = x.shape[1]
    neighbours = torch.cat((padded[:, :rows], padded[:, 1 : rows + 1], padded[:, 2:]), dim=2)
    return F.linear(neighbours, conv.weight, conv.bias)


def _conv_norm_mish(x: Tensor, weights: BlockWeights, inside: Tensor) -> Tensor:
    return F.mish(_norm(_causal_conv(x, weights.conv, inside), weights.norm))


def resnet(x: Tensor, weights: ResnetWeights, inside: Tensor, shift: Tensor) -> Tensor:
    """x (2, rows, C), shift (1, 1, C')."""
    hidden = _conv_norm_mish(x, weights.first, inside) + shift
    return _conv_norm_mish(hidden, weights.second, inside) + F.linear(x, *weights.shortcut)


def before_attention(x: Tensor, weights: TransformerWeights, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, (2 * rows, heads, head size) each."""
    joined = F.linear(_norm(x, weights.norm1), weights.qkv).flatten(0, 1)
    q, k, v = joined.unflatten(1, (3, heads, -1)).unbind(1)
    return q, k, v


def after_attention(x: Tensor, mixed: Tensor, weights: TransformerWeights) -> Tensor:
    """x (2, rows, C), mixed (2 * rows, heads, head size) → (2, rows, C)."""
    x = x + F.linear(mixed.flatten(1), *weights.out).view_as(x)
    return x + F.linear(F.gelu(F.linear(_norm(x, weights.norm3), *weights.up)), *weights.down)


class PackedVelocity:
    """`VelocityNetwork` for packed rows, with that network's weights. `compiled`: fuse the small operations."""

    def __init__(
        self, network: VelocityNetwork, attention: PackedAttention, *, compiled: bool = False
    ) -> None:
        self.cfg = network.cfg
        self.network = network
        self._attention = attention
        stages = [*network.down_blocks, *network.mid_blocks, *network.up_blocks]
        self._stages = [_stage(parts) for parts in cast("list[nn.ModuleList]", stages)]
        self._final = _causal_block(network.final_block)
        self._output = _affine(network.final_proj)
        self._resnet: Callable[..., Tensor] = Fused(resnet) if compiled else resnet
        self._before: Callable[..., tuple[Tensor, Tensor, Tensor]] = (
            Fused(before_attention) if compiled else before_attention
        )
        self._after: Callable[..., Tensor] = Fused(after_attention) if compiled else after_attention

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and activations."""
        return self._output.weight.dtype

    def shifts(self, times: Tensor) -> Tensor:
        """times (K,) → (K, stages, C): all that depends on the time."""
        return self.network.time_shifts(times).transpose(0, 1).contiguous()

    def __call__(self, x: Tensor, static: Tensor, layout: DeviceLayout, shifts: Tensor) -> Tensor:
        """x (rows, 80) float32, static (2, rows, 240): what stays the same in all steps, shifts (stages, C).

        Returns the velocities (2, rows, 80), with the conditions and without; arbitrary between the items.
        """
        inside = layout.inside[:, None]
        hidden = torch.cat((x.to(static.dtype).expand(2, -1, -1), static), dim=2)
        skip = hidden
        last = len(self._stages) - 1
        for index, stage in enumerate(self._stages):
            if index == last:
                hidden = torch.cat((hidden, skip), dim=2)
            hidden = self._resnet(hidden, stage.resnet, inside, shifts[None, index : index + 1])
            hidden = self._transformers(hidden, stage.blocks, layout.blocks)
            if index == 0:
                skip = hidden
            if stage.conv is not None:
                hidden = _causal_conv(hidden, stage.conv, inside)
        return F.linear(_conv_norm_mish(hidden, self._final, inside), *self._output)

    def _transformers(self, x: Tensor, blocks: tuple[TransformerWeights, ...], where: Blocks) -> Tensor:
        for weights in blocks:
            q, k, v = self._before(x, weights, self.cfg.num_heads)
            x = self._after(x, self._attention(q, k, v, where), weights)
        return x

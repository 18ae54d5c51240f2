"""The velocity network's weights, laid out for products over rows: a causal convolution's taps side by side, query, key
and value as one matrix."""

from __future__ import annotations

from typing import NamedTuple, cast

from torch import Tensor, nn

from inference.models.velocity import (
    CausalBlock,
    CausalConv,
    PointwiseConv,
    ResnetBlock,
    TransformerBlock,
    VelocityNetwork,
)
from inference.runtime.joined import joined


class Affine(NamedTuple):
    """Weight and bias of a linear layer, a convolution (taps before channels) or a norm."""

    weight: Tensor
    bias: Tensor | None


class BlockWeights(NamedTuple):
    """A causal block: convolution, norm."""

    conv: Affine
    norm: Affine


class ResnetWeights(NamedTuple):
    """Two causal blocks and the linear shortcut around them."""

    first: BlockWeights
    second: BlockWeights
    shortcut: Affine


class TransformerWeights(NamedTuple):
    """Attention and feed-forward, each behind its norm."""

    norm1: Affine
    qkv: Affine
    out: Affine
    norm3: Affine
    up: Affine
    down: Affine


class Stage(NamedTuple):
    """A resnet, transformer blocks and, in the outer stages, a closing convolution."""

    resnet: ResnetWeights
    blocks: tuple[TransformerWeights, ...]
    conv: Affine | None


class NetworkWeights(NamedTuple):
    """All of the network but what depends on the time only."""

    stages: tuple[Stage, ...]
    final: BlockWeights
    output: Affine


def network_weights(network: VelocityNetwork) -> NetworkWeights:
    """Views of the network's parameters where the layout allows it, copies elsewhere. Those of queries, keys and values
    become views themselves."""
    stages = [*network.down_blocks, *network.mid_blocks, *network.up_blocks]
    return NetworkWeights(
        tuple(_stage(parts) for parts in cast("list[nn.ModuleList]", stages)),
        _causal_block(network.final_block),
        affine(network.final_proj),
    )


def affine(layer: nn.Module) -> Affine:
    """A linear layer, a convolution or a norm."""
    weight, bias = cast(Tensor, layer.weight).detach(), cast("Tensor | None", layer.bias)
    if isinstance(layer, PointwiseConv):
        weight = weight[:, :, 0]
    elif isinstance(layer, CausalConv):
        weight = weight.transpose(1, 2).flatten(1).contiguous()
    return Affine(weight, None if bias is None else bias.detach())


def resnet_weights(module: ResnetBlock) -> ResnetWeights:
    """Of one resnet block."""
    return ResnetWeights(_causal_block(module.block1), _causal_block(module.block2), affine(module.res_conv))


def transformer_weights(module: TransformerBlock) -> TransformerWeights:
    """Of one transformer block."""
    attention, net = module.attn1, module.ff.net
    qkv = joined([layer.weight for layer in (attention.to_q, attention.to_k, attention.to_v)])
    up = cast(nn.Module, net["0"].proj)
    return TransformerWeights(
        affine(module.norm1),
        Affine(qkv, None),
        affine(attention.to_out[0]),
        affine(module.norm3),
        affine(up),
        affine(net["2"]),
    )


def _causal_block(module: CausalBlock) -> BlockWeights:
    return BlockWeights(affine(module.block["0"]), affine(module.block["2"]))


def _stage(parts: nn.ModuleList) -> Stage:
    blocks = tuple(transformer_weights(block) for block in cast("list[TransformerBlock]", parts[1]))
    conv = affine(parts[2]) if len(parts) == 3 else None
    return Stage(resnet_weights(cast(ResnetBlock, parts[0])), blocks, conv)

"""The velocity network and the Euler step on a packed row, out of PyTorch's operations: on any device, in any dtype.

Both guidance halves are computed at once: activations are (2, rows, channels). Convolutions are products over three
neighbouring rows, query, key and value one product. Frames between the items are set to zero where a convolution would
see them; nothing else crosses from row to row but attention, which stays within its blocks.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from inference.models.config import FlowConfig
from inference.models.velocity import VelocityNetwork
from inference.runtime.flow_solver import time_grid
from inference.runtime.frame_pack import Blocks, DeviceLayout
from inference.runtime.fused import Fused
from inference.runtime.packed_attention import PackedAttention
from inference.runtime.packed_state import SolverBuffers
from inference.runtime.velocity_weights import (
    Affine,
    BlockWeights,
    ResnetWeights,
    TransformerWeights,
    network_weights,
)


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
    joined = F.linear(_norm(x, weights.norm1), weights.qkv.weight).flatten(0, 1)
    q, k, v = joined.unflatten(1, (3, heads, -1)).unbind(1)
    return q, k, v


def after_attention(x: Tensor, mixed: Tensor, weights: TransformerWeights) -> Tensor:
    """x (2, rows, C), mixed (2 * rows, heads, head size) → (2, rows, C)."""
    x = x + F.linear(mixed.flatten(1), *weights.out).view_as(x)
    return x + F.linear(F.gelu(F.linear(_norm(x, weights.norm3), *weights.up)), *weights.down)


class PackedVelocity:
    """`VelocityNetwork` for packed rows, with that network's weights, as a `PackedStep`.

    `compiled`: fuse the small operations.
    """

    def __init__(
        self, network: VelocityNetwork, cfg: FlowConfig, attention: PackedAttention, *, compiled: bool = False
    ) -> None:
        self.heads = network.cfg.num_heads
        self.rate = cfg.cfg_rate
        self.weights = network_weights(network)
        device = self.weights.output.weight.device
        times, sizes = time_grid(cfg.n_timesteps)
        with torch.no_grad():
            shifts = network.time_shifts(torch.tensor(times, device=device))
        self.shifts = shifts.transpose(0, 1).contiguous()  # (steps, stages, C): all that depends on the time
        self.sizes = torch.tensor(sizes, device=device)
        self._attention = attention
        self._resnet: Callable[..., Tensor] = Fused(resnet) if compiled else resnet
        self._before: Callable[..., tuple[Tensor, Tensor, Tensor]] = (
            Fused(before_attention) if compiled else before_attention
        )
        self._after: Callable[..., Tensor] = Fused(after_attention) if compiled else after_attention

    def on_failure(self, tell: Callable[[Exception], None]) -> None:
        """`tell` hears of the first part that cannot be compiled and runs as it is."""
        parts = [part for part in (self._resnet, self._before, self._after) if isinstance(part, Fused)]

        def once(error: Exception) -> None:
            for part in parts:
                part.on_failure = lambda error: None
            tell(error)

        for part in parts:
            part.on_failure = once

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and activations."""
        return self.weights.output.weight.dtype

    def advance(self, buffers: SolverBuffers) -> None:
        """See `PackedStep`."""
        shifts = self.shifts.index_select(0, buffers.step)[0]
        size = self.sizes.index_select(0, buffers.step)
        guided, free = self(buffers.inputs, buffers.layout, shifts).float()
        buffers.x.add_(size * ((1.0 + self.rate) * guided - self.rate * free))
        buffers.inputs[:, :, : buffers.x.shape[1]] = buffers.x
        buffers.step.add_(1)

    def __call__(self, inputs: Tensor, layout: DeviceLayout, shifts: Tensor) -> Tensor:
        """inputs (2, rows, 320), shifts (stages, C).

        Returns the velocities (2, rows, 80), with the conditions and without; arbitrary between the items.
        """
        inside = layout.inside[:, None]
        hidden = skip = inputs
        last = len(self.weights.stages) - 1
        for index, stage in enumerate(self.weights.stages):
            if index == last:
                hidden = torch.cat((hidden, skip), dim=2)
            hidden = self._resnet(hidden, stage.resnet, inside, shifts[None, index : index + 1])
            hidden = self._transformers(hidden, stage.blocks, layout.blocks)
            if index == 0:
                skip = hidden
            if stage.conv is not None:
                hidden = _causal_conv(hidden, stage.conv, inside)
        return F.linear(_conv_norm_mish(hidden, self.weights.final, inside), *self.weights.output)

    def _transformers(self, x: Tensor, blocks: tuple[TransformerWeights, ...], where: Blocks) -> Tensor:
        for weights in blocks:
            q, k, v = self._before(x, weights, self.heads)
            x = self._after(x, self._attention(q, k, v, where), weights)
        return x

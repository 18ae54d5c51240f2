"""The row operations of `velocity_ops` with PyTorch alone: for float32, and where its kernels cannot be used."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from inference.runtime.velocity_weights import Affine, BlockWeights, TransformerWeights

EPS = 1e-5
Time = tuple[Tensor, Tensor, int]  # table (steps, stages, C), step (1,), stage


def _norm(x: Tensor, norm: Affine) -> Tensor:
    return F.layer_norm(x, norm.weight.shape, norm.weight, norm.bias, EPS)


def norm_linear(x: Tensor, norm: Affine, linear: Affine, output: Tensor) -> None:
    """output = LayerNorm(x) @ Wᵀ + b."""
    output.copy_(F.linear(_norm(x, norm), *linear))


def after_attention(x: Tensor, mixed: Tensor, weights: TransformerWeights, hidden: Tensor) -> None:
    """x (rows, C) in place: + attention's projection of `mixed` (rows, inner), + feed-forward."""
    x.add_(F.linear(mixed, *weights.out))
    hidden.copy_(F.gelu(F.linear(_norm(x, weights.norm3), *weights.up)))
    x.add_(F.linear(hidden, *weights.down))


def causal_conv(
    x: Tensor,
    past: Tensor,
    weights: BlockWeights | Affine,
    output: Tensor,
    *,
    tails: Tensor | None = None,
    shift: Time | None = None,
    shortcut: tuple[Tensor, Affine] | None = None,
) -> None:
    """See `velocity_ops.causal_conv`."""
    parts = [x, x.new_zeros(1, x.shape[1])] + ([] if tails is None else [tails])
    rows = torch.where(
        past >= 0, past, len(x) - 1 - past
    )  # -1 is the row of zeros, -2 the first of the tails
    before, earlier = (torch.cat(parts).index_select(0, where) for where in rows.unbind(1))
    conv = weights.conv if isinstance(weights, BlockWeights) else weights
    found = F.linear(torch.cat((earlier, before, x), dim=1), *conv)
    if isinstance(weights, BlockWeights):
        found = F.mish(_norm(found, weights.norm))
    if shift is not None:
        table, step, stage = shift
        found = found + table[:, stage].index_select(0, step)
    if shortcut is not None:
        found = found + F.linear(shortcut[0], *shortcut[1])
    output.copy_(found)


def guided_step(
    hidden: Tensor,
    linear: Affine,
    x: Tensor,
    inputs: Tensor,
    sizes: Tensor,
    step: Tensor,
    group: int,
    rate: float,
) -> None:
    """See `velocity_ops.guided_step`; `group` is the number of frames: the free half lies behind the guided one."""
    guided, free = F.linear(hidden, *linear).float().split(group)
    x.add_(sizes.index_select(0, step) * ((1.0 + rate) * guided - rate * free))
    inputs.unflatten(0, (2, group))[:, :, : x.shape[1]] = x.to(inputs.dtype)

"""The velocity network of the flow model: one Euler step's direction (SPEC 5.1).

Parameter names are those of `flow.pt` below `decoder.estimator.`. Inside, activations are (B, T, C), so that only the
convolutions transpose; the public tensors keep the (B, 80, T) of the recorded interface.
"""

from __future__ import annotations

import math
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inference.models.config import EstimatorConfig
from inference.models.masks import Visibility
from inference.runtime.flow_solver import VelocityStep


def time_sinusoid(t: Tensor, dim: int) -> Tensor:
    """(N,) times in 0..1 → (N, dim) float32: sines, then cosines, of 1000 t at `dim / 2` rates (SPEC 5.1)."""
    half = dim // 2
    rates = torch.exp(
        torch.arange(half, dtype=torch.float32, device=t.device) * -(math.log(10000.0) / (half - 1))
    )
    angles = 1000.0 * t.float()[:, None] * rates
    return torch.cat((torch.sin(angles), torch.cos(angles)), dim=1)


class CausalConv(nn.Conv1d):
    """Convolution over time that sees the present and the past only: (B, T, C) → (B, T, C')."""

    def forward(self, x: Tensor) -> Tensor:
        past = F.pad(x.transpose(1, 2), (self.kernel_size[0] - 1, 0))
        return super().forward(past).transpose(1, 2)


class PointwiseConv(nn.Conv1d):
    """A kernel-1 convolution computed as a linear layer on (B, T, C)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight[:, :, 0], self.bias)


def _masked(x: Tensor, keep: Tensor | None) -> Tensor:
    return x if keep is None else x * keep


class CausalBlock(nn.Module):
    """Causal conv, layer norm over channels, Mish; padded frames in and out are zero. Keys `block.0`, `block.2`."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.block = nn.ModuleDict({"0": CausalConv(inputs, outputs, 3), "2": nn.LayerNorm(outputs)})

    def forward(self, x: Tensor, keep: Tensor | None) -> Tensor:
        hidden = self.block["0"](_masked(x, keep))
        return _masked(F.mish(self.block["2"](hidden)), keep)


class ResnetBlock(nn.Module):
    """Two causal blocks with the time embedding added between, and a linear shortcut."""

    def __init__(self, inputs: int, outputs: int, time_width: int) -> None:
        super().__init__()
        self.mlp = nn.ModuleDict({"1": nn.Linear(time_width, outputs)})
        self.block1 = CausalBlock(inputs, outputs)
        self.block2 = CausalBlock(outputs, outputs)
        self.res_conv = PointwiseConv(inputs, outputs, 1)

    def shift(self, embedded_time: Tensor) -> Tensor:
        """(N, time_width) after its Mish → (N, C): what is added between the two blocks."""
        return cast(Tensor, self.mlp["1"](embedded_time))

    def forward(self, x: Tensor, keep: Tensor | None, shift: Tensor) -> Tensor:
        """x (B, T, C), shift (B or 1, C)."""
        hidden = self.block1(x, keep) + shift[:, None]
        output: Tensor = self.block2(hidden, keep) + self.res_conv(_masked(x, keep))
        return output


class Attention(nn.Module):
    """Plain multi-head attention; q, k and v without bias."""

    def __init__(self, width: int, heads: int, head_dim: int) -> None:
        super().__init__()
        inner = heads * head_dim
        self.heads = heads
        self.to_q = nn.Linear(width, inner, bias=False)
        self.to_k = nn.Linear(width, inner, bias=False)
        self.to_v = nn.Linear(width, inner, bias=False)
        self.to_out = nn.ModuleList([nn.Linear(inner, width)])

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        query, key, value = (
            project(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for project in (self.to_q, self.to_k, self.to_v)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return cast(Tensor, self.to_out[0](mixed.transpose(1, 2).flatten(2)))


class Projection(nn.Module):
    """A linear layer under the key `proj`, followed by the exact GELU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.proj = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.proj(x))


class FeedForward(nn.Module):
    """Four times wider inside. Keys `net.0.proj`, `net.2`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.ModuleDict({"0": Projection(width, 4 * width), "2": nn.Linear(4 * width, width)})

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.net["2"](self.net["0"](x)))


class TransformerBlock(nn.Module):
    """Pre-norm attention and feed-forward."""

    def __init__(self, cfg: EstimatorConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(cfg.channels)
        self.attn1 = Attention(cfg.channels, cfg.num_heads, cfg.attention_head_dim)
        self.norm3 = nn.LayerNorm(cfg.channels)
        self.ff = FeedForward(cfg.channels)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = x + self.attn1(self.norm1(x), mask)
        output: Tensor = x + self.ff(self.norm3(x))
        return output


class TimeMlp(nn.Module):
    """The sinusoid of the time → the time embedding."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(inputs, width)
        self.linear_2 = nn.Linear(width, width)

    def forward(self, sinusoid: Tensor) -> Tensor:
        return cast(Tensor, self.linear_2(F.silu(self.linear_1(sinusoid.to(self.linear_1.weight.dtype)))))


def _stage(cfg: EstimatorConfig, inputs: int, with_conv: bool) -> nn.ModuleList:
    """[resnet, transformer blocks] and, in the outer stages, a closing causal convolution."""
    blocks = nn.ModuleList(TransformerBlock(cfg) for _ in range(cfg.n_blocks))
    parts: list[nn.Module] = [ResnetBlock(inputs, cfg.channels, 4 * cfg.channels), blocks]
    if with_conv:
        parts.append(CausalConv(cfg.channels, cfg.channels, 3))
    return nn.ModuleList(parts)


class VelocityNetwork(nn.Module):
    """dx/dt of the flow at (x, t), given mu, speaker and prompt mel (SPEC 5.1)."""

    def __init__(self, cfg: EstimatorConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.time_mlp = TimeMlp(cfg.in_channels, 4 * cfg.channels)
        self.down_blocks = nn.ModuleList([_stage(cfg, cfg.in_channels, with_conv=True)])
        self.mid_blocks = nn.ModuleList(
            _stage(cfg, cfg.channels, with_conv=False) for _ in range(cfg.num_mid_blocks)
        )
        self.up_blocks = nn.ModuleList([_stage(cfg, 2 * cfg.channels, with_conv=True)])
        self.final_block = CausalBlock(cfg.channels, cfg.channels)
        self.final_proj = PointwiseConv(cfg.channels, cfg.out_channels, 1)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None,
        mu: Tensor,
        t: Tensor,
        spks: Tensor,
        cond: Tensor,
        streaming: bool = False,
    ) -> Tensor:
        """One evaluation. x, mu, cond (B, 80, T); mask (B, 1, T), 1 = real frame, or None; t (B,); spks (B, 80).

        Returns (B, 80, T) in the dtype of the weights; padded frames are 0. `streaming` limits attention to chunks.
        """
        static = self._static_inputs(mu, spks, cond)
        keep, seen = self._masks(mask, x, streaming)
        return self._evaluate(x, static, keep, seen, self.time_shifts(t))

    def bind(
        self, mask: Tensor | None, mu: Tensor, spks: Tensor, cond: Tensor, times: Tensor, *, streaming: bool
    ) -> VelocityStep:
        """Fix everything but x: returns `step(x, k)`, the velocity at `times[k]` (times (K,), same for every item).

        Whatever depends on the time only, or on the conditions only, is computed here, once for all steps.
        """
        static = self._static_inputs(mu, spks, cond)
        keep, seen = self._masks(mask, mu, streaming)
        shifts = self.time_shifts(times)

        def step(x: Tensor, k: int) -> Tensor:
            return self._evaluate(x, static, keep, seen, shifts[:, k : k + 1])

        return step

    def time_shifts(self, t: Tensor) -> Tensor:
        """(N,) times → (stages, N, C): what each stage's resnet adds."""
        embedded = F.mish(self.time_mlp(time_sinusoid(t, self.cfg.in_channels)))
        return torch.stack([cast(ResnetBlock, stage[0]).shift(embedded) for stage in self._stages()])

    def _stages(self) -> list[nn.ModuleList]:
        stages = [*self.down_blocks, *self.mid_blocks, *self.up_blocks]
        return cast("list[nn.ModuleList]", stages)

    def _static_inputs(self, mu: Tensor, spks: Tensor, cond: Tensor) -> Tensor:
        """(B, T, 240): mu, speaker and prompt side by side, in the dtype of the weights."""
        speaker = spks[:, :, None].expand(-1, -1, mu.shape[2])
        joined = torch.cat((mu, speaker.to(mu.dtype), cond.to(mu.dtype)), dim=1)
        return joined.transpose(1, 2).to(self.final_proj.weight.dtype)

    def _masks(
        self, mask: Tensor | None, like: Tensor, streaming: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        """Multiplicative frame mask (B, T, 1) and attention mask, each None when it would change nothing."""
        frames = like.shape[2]
        valid = None
        keep = None
        if mask is not None:
            valid = mask[:, 0] > 0
            keep = mask.transpose(1, 2).to(self.final_proj.weight.dtype)
            valid = valid | (torch.arange(frames, device=mask.device) == 0)  # no row without a key
        seen = Visibility(frames, self.cfg.chunk_frames if streaming else None, valid)
        return keep, seen.full_mask(like.device)

    def _evaluate(
        self, x: Tensor, static: Tensor, keep: Tensor | None, seen: Tensor | None, shifts: Tensor
    ) -> Tensor:
        hidden = torch.cat((x.transpose(1, 2).to(static.dtype), static), dim=2)
        skip = hidden
        stages = self._stages()
        for index, stage in enumerate(stages):
            if index == len(stages) - 1:
                hidden = torch.cat((hidden, skip), dim=2)
            hidden = stage[0](hidden, keep, shifts[index])
            for block in cast(nn.ModuleList, stage[1]):
                hidden = block(hidden, seen)
            if index == 0:
                skip = hidden
            if len(stage) == 3:
                hidden = stage[2](_masked(hidden, keep))
        velocity = self.final_proj(self.final_block(hidden, keep))
        return _masked(velocity, keep).transpose(1, 2)

"""Inputs of the velocity network's parts, with PyTorch's way to compute each and the kernel's, for the benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from inference.models.flow import FlowModel
from inference.runtime.frame_pack import FramePack, PackedMel
from inference.runtime.packed_attention import choose_attention
from inference.runtime.packed_state import SolverBuffers
from inference.runtime.packed_velocity import PackedVelocity, _conv_norm_mish
from inference.runtime.velocity_tiles import FEW, AttentionTiles, FeedForwardTiles, LinearTiles
from inference.runtime.velocity_weights import Affine, BlockWeights

# PyTorch's result for a dtype, the kernel's for tiles, which rows count (None: all).
Part = tuple[Callable[[torch.dtype], Tensor], Callable[[Any], Tensor], "Tensor | None"]
SHAPES = {  # items: frames, chunk by chunk?
    "1 first chunk": [(252, True)],
    "1 x 10 s": [(700, False)],
    "8 x 10 s": [(700, False)] * 8,
    "32 first chunks": [(252, True)] * 32,
    "32 x 10 s": [(700, False)] * 32,
}


class Inputs:
    """Inputs of one shape."""

    def __init__(self, shape: str, flow: FlowModel) -> None:
        self.shape = shape
        device, dtype = flow.encoder_proj.weight.device, flow.encoder_proj.weight.dtype
        cfg = flow.cfg.estimator
        items = [PackedMel(*item) for item in SHAPES[shape]]
        self.pack = FramePack(items, 32, cfg.chunk_frames)
        self.buffers = SolverBuffers.make(self.pack.rows, self.pack.blocks, 80, dtype, device)
        self.buffers.lay_out(self.pack)
        self.buffers.static[0].normal_()
        self.attend = choose_attention(device, dtype, cfg.attention_head_dim)
        self.plain = PackedVelocity(flow.decoder.estimator, flow.cfg, self.attend)
        self.rows = 2 * self.pack.rows
        self.heads, self.width = cfg.num_heads, cfg.channels
        inner = cfg.num_heads * cfg.attention_head_dim
        self.x = torch.randn(self.rows, 2 * self.width, device=device).to(dtype)[:, : self.width]
        self.mixed = torch.randn(self.rows, inner, device=device).to(dtype)
        self.wide = torch.randn(self.rows, 4 * self.width, device=device).to(dtype)
        self.joined = torch.randn(self.rows, 3 * inner, device=device).to(dtype)
        self.weights = self.plain.weights.stages[1].blocks[0]
        self.resnet = self.plain.weights.stages[1].resnet

    def qkv(self) -> Part:
        """Norm and the product that makes queries, keys and values."""
        from inference.runtime import velocity_ops as ops

        w = self.weights

        def plain(dtype: torch.dtype) -> Tensor:
            return F.linear(_norm(self.x, w.norm1, dtype), w.qkv.weight.to(dtype))

        def kernel(tiles: LinearTiles) -> Tensor:
            ops.norm_linear(self.x, w.norm1, w.qkv, self.joined, tiles=tiles)
            return self.joined

        return plain, kernel, None

    def up(self) -> Part:
        """Norm, product and GELU."""
        from inference.runtime import velocity_ops as ops

        w = self.weights
        output = torch.empty_like(self.wide)

        def plain(dtype: torch.dtype) -> Tensor:
            return F.gelu(F.linear(_norm(self.x, w.norm3, dtype), *_to(w.up, dtype)))

        def kernel(tiles: LinearTiles) -> Tensor:
            ops.norm_linear(self.x, w.norm3, w.up, output, gelu=True, tiles=tiles)
            return output

        return plain, kernel, None

    def out(self) -> Part:
        """The attention's projection."""
        return self._residual(self.mixed, self.weights.out)

    def down(self) -> Part:
        """The feed-forward's second product."""
        return self._residual(self.wide, self.weights.down)

    def _residual(self, source: Tensor, linear: Affine) -> Part:
        from inference.runtime import velocity_ops as ops

        output = torch.empty_like(self.x)

        def plain(dtype: torch.dtype) -> Tensor:
            return self.x.to(dtype) + F.linear(source.to(dtype), *_to(linear, dtype))

        def kernel(tiles: LinearTiles) -> Tensor:
            ops.linear_residual(source, linear, self.x, output, tiles=tiles)
            return output

        return plain, kernel, None

    def ff(self) -> Part:
        """The whole feed-forward."""
        from inference.runtime import velocity_ops as ops

        w = self.weights
        kept = self.x.clone()
        x = torch.empty_like(self.x)

        def plain(dtype: torch.dtype) -> Tensor:
            hidden = F.gelu(F.linear(_norm(kept, w.norm3, dtype), *_to(w.up, dtype)))
            return kept.to(dtype) + F.linear(hidden, *_to(w.down, dtype))

        def kernel(tiles: FeedForwardTiles) -> Tensor:
            ops.feed_forward(x, w, tiles)
            return x

        def checked(tiles: FeedForwardTiles) -> Tensor:
            x.copy_(kept)
            return kernel(tiles).clone()

        setattr(checked, "timed", kernel)  # noqa: B010 - without the copies
        return plain, checked, None

    def conv(self) -> Part:
        """A resnet's second convolution and its shortcut."""
        from inference.runtime import velocity_ops as ops

        x = self.x.contiguous()
        output = torch.empty_like(x)
        inside = self.buffers.layout.inside
        past = self.buffers.past.flatten(0, 1)

        def plain(dtype: torch.dtype) -> Tensor:
            block = BlockWeights(*(Affine(*_to(part, dtype)) for part in self.resnet.second))
            halves = x.to(dtype).unflatten(0, (2, -1))
            found = _conv_norm_mish(halves, block, inside[:, None]).flatten(0, 1)
            return found + F.linear(x.to(dtype), *_to(self.resnet.shortcut, dtype))

        def kernel(tiles: LinearTiles) -> Tensor:
            ops.causal_conv(
                x, past, self.resnet.second, output, shortcut=(x, self.resnet.shortcut), tiles=tiles
            )
            return output

        return plain, kernel, torch.cat((inside, inside))

    def final(self) -> Part:
        """The last projection and the Euler step."""
        from inference.runtime import velocity_ops as ops

        b, p = self.buffers, self.plain
        hidden = self.x.contiguous()

        def plain(dtype: torch.dtype) -> Tensor:
            guided, free = F.linear(hidden.to(dtype), *_to(p.weights.output, dtype)).float().chunk(2)
            return p.sizes[0] * ((1.0 + p.rate) * guided - p.rate * free)

        def kernel(tiles: LinearTiles) -> Tensor:
            b.x.zero_()
            inputs = b.inputs.flatten(0, 1)
            ops.guided_step(
                hidden, p.weights.output, b.x, inputs, p.sizes, b.step, b.rows, p.rate, tiles=tiles
            )
            return b.x

        return plain, kernel, None

    def attention(self) -> Part:
        """Attention over the blocks."""
        from inference.runtime import velocity_ops as ops

        output = torch.empty_like(self.mixed)
        inside = self.buffers.layout.inside
        blocks = self.buffers.layout.blocks

        def plain(dtype: torch.dtype) -> Tensor:
            q, k, v = self.joined.unflatten(1, (3, self.heads, -1)).unbind(1)
            return self.attend(q, k, v, blocks).flatten(1).to(dtype)

        def kernel(tiles: AttentionTiles) -> Tensor:
            ops.attend_blocks(self.joined, output, blocks, self.heads, plan=replace(FEW, attention=tiles))
            return output

        return plain, kernel, torch.cat((inside, inside))


def _norm(x: Tensor, norm: Any, dtype: torch.dtype) -> Tensor:
    return F.layer_norm(x.to(dtype), norm.weight.shape, *_to(norm, dtype))


def _to(part: Any, dtype: torch.dtype) -> Any:
    return [None if value is None else value.to(dtype) for value in part]

"""The velocity network and the Euler step of packed rows out of Triton kernels (`velocity_ops`)."""

from __future__ import annotations

import torch
from torch import Tensor

from inference.runtime import velocity_ops as ops
from inference.runtime.packed_state import SolverBuffers
from inference.runtime.velocity_tiles import Plan
from inference.runtime.velocity_weights import NetworkWeights, Stage


class _Space:
    """Where a step's activations go: columns of a few wide tensors, so that what is concatenated lies side by side."""

    def __init__(self, like: Tensor, rows: int, channels: int, inner: int) -> None:
        self.joined = like.new_empty(rows, 2 * channels)
        self.hidden, self.skip = self.joined.split(channels, dim=1)
        self.one, self.other = like.new_empty(rows, 2 * channels).split(channels, dim=1)
        self.qkv = like.new_empty(rows, 3 * inner)
        self.mixed = like.new_empty(rows, inner)
        self.wide = like.new_empty(rows, 4 * channels)  # hidden values of a feed-forward
        self.middle = self.wide[:, :channels]  # of a resnet: never needed at the same time


class KernelStep:
    """`PackedStep` for float16 and bfloat16 on CUDA.

    shifts (steps, stages, C): what the time adds; sizes (steps,) float32: of the Euler steps; `rate` of the guidance.
    `plan`: the tiles to use, whatever the number of rows.
    """

    def __init__(
        self,
        weights: NetworkWeights,
        heads: int,
        shifts: Tensor,
        sizes: Tensor,
        rate: float,
        plan: Plan | None = None,
    ) -> None:
        self.weights = weights
        self._heads = heads
        self._shifts = shifts
        self._sizes = sizes
        self._rate = rate
        self._plan = plan
        first = weights.stages[0]
        self._channels = first.resnet.first.conv.weight.shape[0]
        self._inner = first.blocks[0].out.weight.shape[1]

    @torch.no_grad()
    def advance(self, buffers: SolverBuffers) -> None:
        """See `PackedStep`."""
        plan = self._plan or ops.plan_of(2 * buffers.rows, buffers.x.device)
        past, source = buffers.past.flatten(0, 1), buffers.inputs.flatten(0, 1)
        space = _Space(source, len(source), self._channels, self._inner)
        stages = self.weights.stages
        for index, stage in enumerate(stages):
            ends = self._outputs(index, source, space)
            shift = ops.Shift(self._shifts, buffers.step, index)
            ops.resnet(source, past, stage.resnet, space.middle, ends[0], shift, tiles=plan.conv)
            self._transformers(ends[0], stage, buffers, space, plan)
            source = ends[0]
            if stage.conv is not None:
                ops.causal_conv(source, past, stage.conv, ends[1], tiles=plan.conv)
                source = ends[1]
            if index == len(stages) - 2:
                source = space.joined
        final = space.middle
        ops.causal_conv(source, past, self.weights.final, final, tiles=plan.conv)
        ops.guided_step(
            final, self.weights.output, buffers.x, buffers.inputs.flatten(0, 1), self._sizes, buffers.step,
            buffers.rows, self._rate, tiles=plan.final,
        )  # fmt: skip
        buffers.step.add_(1)

    def _outputs(self, index: int, source: Tensor, space: _Space) -> tuple[Tensor, Tensor]:
        """Where a stage's blocks and its closing convolution write: never where they read."""
        last = len(self.weights.stages) - 1
        if index == 0:
            return space.skip, space.hidden if last == 1 else space.one
        if index == last:
            return space.one, space.other
        if index == last - 1:
            return space.hidden, space.other
        same = source.data_ptr() == space.one.data_ptr()
        return (space.other, space.one) if same else (space.one, space.other)

    def _transformers(
        self, x: Tensor, stage: Stage, buffers: SolverBuffers, space: _Space, plan: Plan
    ) -> None:
        where = buffers.layout.blocks
        for weights in stage.blocks:
            ops.norm_linear(x, weights.norm1, weights.qkv, space.qkv, tiles=plan.qkv)
            ops.attend_blocks(space.qkv, space.mixed, where, self._heads, plan=plan)
            ops.after_attention(x, space.mixed, weights, space.wide, plan)

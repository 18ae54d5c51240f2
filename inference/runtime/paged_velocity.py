"""Euler steps of a row of streams: the velocity network on new frames alone, with earlier ones in pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from inference.models.flow import FlowModel
from inference.runtime import plain_rows
from inference.runtime.flow_pages import PAIR
from inference.runtime.flow_solver import time_grid
from inference.runtime.paged_layout import DeviceRow, TableSizes, empty_table
from inference.runtime.paged_ops import PageOps
from inference.runtime.scratch import Scratch
from inference.runtime.velocity_weights import NetworkWeights, Stage, network_weights


@dataclass
class RowBuffers:
    """What a step reads and writes; addresses stay the same from run to run."""

    table: Tensor  # int64, see `RowLayout`
    past: Tensor  # (2 · rows, 2) int32, likewise
    inputs: (
        Tensor  # (2 · rows, 320): state, mu, speaker, prompt mel; for the free half zeros behind the state
    )
    x: Tensor  # (rows, 80) float32, the state
    step: Tensor  # (1,) int64, counts the steps
    sizes: TableSizes


class PagedVelocity:
    """Steps with a flow model's own weights. `rows`: row operations, `velocity_ops` or `plain_rows`; `weights`: the
    network's, where somebody has laid them out already."""

    def __init__(
        self, flow: FlowModel, pages: PageOps, rows: Any = plain_rows, weights: NetworkWeights | None = None
    ) -> None:
        network = flow.decoder.estimator
        self._weights = weights or network_weights(network)
        self._pages, self._rows = pages, rows
        self._heads = network.cfg.num_heads
        self._inner = network.cfg.num_heads * network.cfg.attention_head_dim
        self._rate = flow.cfg.cfg_rate
        weight = network.final_proj.weight
        self.dtype, self._device = weight.dtype, weight.device
        times, sizes = time_grid(flow.cfg.n_timesteps)
        shifts = network.time_shifts(torch.tensor(times, device=weight.device))
        self._shifts = shifts.transpose(0, 1).contiguous()  # (steps, stages, C)
        self._sizes = torch.tensor(sizes, device=weight.device)

    @property
    def steps(self) -> int:
        """Euler steps of a solve."""
        return len(self._sizes)

    def __call__(self, buffers: RowBuffers) -> None:
        """One Euler step of `buffers.x`."""
        _Step(self, buffers).run()


class _Step:
    """One evaluation. Convolutions take their tails in the order of use."""

    def __init__(self, owner: PagedVelocity, buffers: RowBuffers) -> None:
        self._owner, self._buffers = owner, buffers
        self._row = DeviceRow.of(buffers.table, buffers.sizes)
        self._tails = owner._pages.tails(self._row, buffers.step)
        self._channel = self._layer = 0
        rows = len(buffers.inputs)
        self._qkv = self._empty(rows, 3 * owner._inner)
        self._mixed = self._empty(
            rows, owner._inner
        )  # rows of nobody stay as they are: nobody reads them either
        self._hidden = self._empty(rows, self._wide(owner._weights.stages[0]))

    def run(self) -> None:
        owner, b = self._owner, self._buffers
        stages = owner._weights.stages
        channels = stages[0].resnet.shortcut.weight.shape[0]
        joined = self._empty(len(b.inputs), 2 * channels)  # the last stage's input: what came, then the skip
        x = b.inputs
        for index, stage in enumerate(stages):
            before_last = index == len(stages) - 2
            output = joined[:, channels:] if index == 0 else None
            if before_last and stage.conv is None:
                output = joined[:, :channels]
            x = self._resnet(x, stage, index, output)
            self._transformers(x, stage)
            if stage.conv is not None:
                target = joined[:, :channels] if before_last else self._empty(len(x), channels)
                self._conv(x, stage.conv, target)
                x = target
            if before_last:
                x = joined
        final = self._empty(len(x), channels)
        self._conv(x, owner._weights.final, final)
        owner._rows.guided_step(
            final, owner._weights.output, b.x, b.inputs, owner._sizes, b.step, len(b.x), owner._rate
        )
        b.step.add_(1)

    def _resnet(self, x: Tensor, stage: Stage, index: int, output: Tensor | None) -> Tensor:
        owner, weights = self._owner, stage.resnet
        channels = weights.shortcut.weight.shape[0]
        middle = self._empty(len(x), channels)
        shift = (owner._shifts, self._buffers.step, index)
        self._conv(x, weights.first, middle, shift=shift)
        # As wide apart as a slice of the joined tensor: kernels are compiled for one distance only.
        output = self._empty(len(x), 2 * channels)[:, :channels] if output is None else output
        self._conv(middle, weights.second, output, shortcut=(x, weights.shortcut))
        return output

    def _transformers(self, x: Tensor, stage: Stage) -> None:
        owner = self._owner
        for weights in stage.blocks:
            owner._rows.norm_linear(x, weights.norm1, weights.qkv, self._qkv)
            owner._pages.attend(self._qkv, self._layer, self._row, self._buffers.step, self._mixed)
            owner._rows.after_attention(x, self._mixed, weights, self._hidden)
            self._layer += 1

    def _conv(self, x: Tensor, weights: Any, output: Tensor, **more: Any) -> None:
        owner, channels = self._owner, x.shape[1]
        tails = self._tails[:, self._channel : self._channel + channels]
        owner._pages.keep(x, self._channel, self._row, self._buffers.step)
        owner._rows.causal_conv(x, self._buffers.past, weights, output, tails=tails, **more)
        self._channel += channels

    def _empty(self, *size: int) -> Tensor:
        return torch.empty(size, dtype=self._owner.dtype, device=self._owner._device)

    @staticmethod
    def _wide(stage: Stage) -> int:
        return int(stage.blocks[0].up.weight.shape[0])


def row_operations(kernels: bool) -> Any:
    """The module of Triton kernels, or the one of PyTorch's operations."""
    if not kernels:
        return plain_rows
    from inference.runtime import velocity_ops

    return velocity_ops


def make_buffers(
    sizes: TableSizes, bins: int, dtype: torch.dtype, device: torch.device, scratch: Scratch | None = None
) -> RowBuffers:
    """Buffers of a row with nothing in it; of `scratch`, until it is another's turn."""
    rows, scratch = sizes.rows, scratch or Scratch(device)
    table = scratch.zeros("table", sizes.table, dtype=torch.int64)
    return RowBuffers(
        table=table.copy_(torch.from_numpy(empty_table(sizes))),
        past=scratch.zeros("past", PAIR * rows, 2, dtype=torch.int32).fill_(-1),
        inputs=scratch.zeros("inputs", PAIR * rows, 4 * bins, dtype=dtype),
        x=scratch.zeros("x", rows, bins),
        step=torch.zeros(1, dtype=torch.int64, device=device),
        sizes=sizes,
    )

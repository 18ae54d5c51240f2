"""Rows of streams from noise to mel: one captured graph for each length of a row, whatever the streams are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from inference.models.flow import FlowModel
from inference.runtime.captured import Programs, Tail
from inference.runtime.flow_pages import PAIR
from inference.runtime.flow_solver import fixed_noise
from inference.runtime.frame_pack import Ints, upload
from inference.runtime.packed_flow import FlowJob
from inference.runtime.paged_layout import DeviceRow, RowItem, RowLayout, TableSizes, most_items, row_ladder
from inference.runtime.paged_ops import PageOps
from inference.runtime.paged_velocity import PagedVelocity, RowBuffers, make_buffers, row_operations
from inference.runtime.velocity_weights import NetworkWeights

_KEPT = 40
_COMMON = 1024  # rows: rather a graph so much too long than kernels launched one by one


class PagedSolver:
    """Integrates rows of streams of one network. Used from one thread, on one stream.

    `kernels`: compute rows with the Triton kernels of `velocity_ops`; `weights`: see `PagedVelocity`.
    """

    def __init__(
        self,
        flow: FlowModel,
        pages: PageOps,
        most_items: int,
        *,
        graphs: bool,
        kernels: bool,
        weights: NetworkWeights | None = None,
    ) -> None:
        self.tail = Tail()
        self._cfg = flow.cfg
        self._most_items = most_items
        self._chunk = flow.cfg.encoder.chunk_tokens * flow.cfg.token_mel_ratio
        self._velocity = PagedVelocity(flow, pages, row_operations(kernels), weights)
        self._device = flow.encoder_proj.weight.device
        self._noise = fixed_noise(self._device, flow.cfg.mel_bins)[0].t().contiguous()  # (15000, 80)
        self.programs: Programs[RowBuffers] = Programs(self._device, _KEPT, graphs)

    @torch.inference_mode()
    def prepare(self, rows: int) -> None:
        """Capture the graph of one length of a row."""
        self.programs.prepare(rows, lambda: self._make(rows), self._velocity)

    @torch.inference_mode()
    def run(
        self, items: Sequence[RowItem], jobs: Sequence[FlowJob], mu: Tensor
    ) -> tuple[list[Tensor], Tensor]:
        """The wanted frames of each job, (M, 80) float32, and (n,) int32: above 0 where a mel is not finite.

        mu (B, T, 80): the encoder's result from frame 0. Nothing waits for the device.
        """
        rows = self._rows(sum(item.frames - item.first * self._chunk for item in items), len(items))
        program = self.programs.get(rows, lambda: self._make(rows), self._velocity)
        buffers = program.buffers
        layout = RowLayout(items, buffers.sizes)
        self._fill(buffers, layout, jobs, mu)
        program.run(self._velocity.steps, self.tail)
        row = DeviceRow.of(buffers.table, buffers.sizes)
        wrong = (row.inside > 0) & ~torch.isfinite(buffers.x).all(dim=1)
        count = torch.zeros(len(jobs), dtype=torch.int32, device=self._device)
        count.index_add_(0, row.item, wrong.int())
        return self._wanted(buffers.x, layout, jobs), count

    def _rows(self, needed: int, items: int) -> int:
        """The shortest row that is captured; without one, that of the ladder."""
        if items > self._most_items:
            raise ValueError(f"{items} streams at once; at most {self._most_items} were to be expected")
        while most_items(needed, self._most_items) < items:
            needed *= 2
        ladder = row_ladder(max(2 * needed, _COMMON))
        fitting = [rows for rows in ladder if rows >= needed]
        found = self.programs.ready(fitting)
        return found if isinstance(found, int) else fitting[0]

    def _make(self, rows: int) -> RowBuffers:
        sizes = TableSizes(rows, self._most_items, self._chunk)
        bins, scratch = self._cfg.mel_bins, self.programs.scratch
        return make_buffers(sizes, bins, self._velocity.dtype, self._device, scratch)

    def _fill(self, b: RowBuffers, layout: RowLayout, jobs: Sequence[FlowJob], mu: Tensor) -> None:
        both = np.concatenate((layout.past.ravel(), layout.table))
        table = upload(both, self._device)
        past = b.past.numel()
        b.past.view(-1).copy_(table[:past])
        b.table[: len(layout.table)].copy_(table[past:])
        row = DeviceRow.of(b.table, b.sizes)
        bins, rows = self._cfg.mel_bins, len(b.x)
        voices, numbers = _distinct([job.prompt_mel for job in jobs])
        lengths = np.array([len(voice) for voice in voices])
        begins = (np.cumsum(lengths) - lengths)[numbers]
        prompts = upload(np.stack((lengths[numbers], begins)), self._device)
        count, offset = prompts.index_select(1, row.item)
        mel = torch.cat([mu.new_zeros(1, bins), *voices])
        speakers = torch.stack([job.speaker for job in jobs])
        inputs = b.inputs.view(PAIR, rows, 4 * bins)
        conditions = (
            mu.flatten(0, 1).index_select(0, row.item * mu.shape[1] + row.place),
            speakers.index_select(0, row.item),
            mel.index_select(0, torch.where(row.place < count, offset + row.place + 1, 0)),
        )
        inputs[0, :, bins:].copy_(torch.cat(conditions, dim=1))
        inputs[1, :, bins:].zero_()
        torch.index_select(self._noise, 0, row.place, out=b.x)
        inputs[:, :, :bins].copy_(b.x)
        b.step.zero_()

    def _wanted(self, x: Tensor, layout: RowLayout, jobs: Sequence[FlowJob]) -> list[Tensor]:
        parts: list[Ints] = []
        for item, start, length, job in zip(layout.items, layout.starts.tolist(), layout.lengths, jobs):
            ahead = job.first - item.first * self._chunk
            parts.append(np.arange(start + ahead, start + length))
        rows = upload(np.concatenate(parts), self._device)
        return list(x.index_select(0, rows).split([len(part) for part in parts]))


def _distinct(tensors: Sequence[Tensor]) -> tuple[list[Tensor], Ints]:
    """Each tensor once, and for each place which of them stands there."""
    numbers: dict[int, int] = {}
    found: list[Tensor] = []
    places = np.zeros(len(tensors), dtype=np.int64)
    for place, tensor in enumerate(tensors):
        if id(tensor) not in numbers:
            numbers[id(tensor)] = len(found)
            found.append(tensor)
        places[place] = numbers[id(tensor)]
    return found, places

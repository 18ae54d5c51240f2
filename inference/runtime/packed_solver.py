"""The Euler solver on packed rows: one captured graph a bucket, nothing that waits for the device (SPEC 5.2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from inference.models.config import FlowConfig
from inference.runtime.captured import Programs
from inference.runtime.flow_solver import fixed_noise, time_grid
from inference.runtime.frame_pack import FramePack, device_layout, table_size, upload
from inference.runtime.packed_velocity import PackedVelocity

GRAPHS = 32  # buckets kept; each graph holds some thousand kernels, about 10 to 40 MB
# A graph of one step is recorded in a tenth of the time and memory of one of all ten, and its start costs nothing
# while the step before it still runs.
STEPS_PER_GRAPH = 1


@dataclass
class SolverBuffers:
    """What a solve reads and writes; addresses stay the same from run to run."""

    table: Tensor  # int32, see `FramePack`
    static: Tensor  # (2, rows, 240) in the network's dtype; the second half stays zero
    x: Tensor  # (rows, 80) float32, the state
    step: Tensor  # (1,) int64, counts the steps
    rows: int
    blocks: int


class PackedSolver:
    """Integrates packed mels of one network from the fixed noise."""

    def __init__(
        self, velocity: PackedVelocity, cfg: FlowConfig, device: torch.device, *, graphs: bool
    ) -> None:
        self._velocity = velocity
        self._cfg = cfg
        self._device = device
        self.programs: Programs[SolverBuffers] = Programs(device, GRAPHS, graphs)
        times, sizes = time_grid(cfg.n_timesteps)
        self._shifts = velocity.shifts(torch.tensor(times, device=device))  # (steps, stages, C)
        self._sizes = torch.tensor(sizes, device=device)
        self._noise = fixed_noise(device, cfg.mel_bins)[0].t().contiguous()  # (15000, 80)

    @torch.inference_mode()
    def begin(self, pack: FramePack) -> SolverBuffers:
        """Buffers of the batch with its layout in place; `static`'s first half is left to the caller to fill."""
        key = (pack.rows, pack.blocks)
        self._program = self.programs.get(key, lambda: self._make(*key), self._steps)
        buffers = self._program.buffers
        buffers.table.copy_(upload(pack.table, self._device), non_blocking=True)
        return buffers

    @torch.inference_mode()
    def solve(self) -> Tensor:
        """What `begin` began → mels (rows, 80) float32, prompt frames included, good until the next `begin`."""
        program = self._program
        buffers = program.buffers
        layout = device_layout(buffers.table, buffers.rows, buffers.blocks)
        torch.index_select(self._noise, 0, layout.place, out=buffers.x)
        buffers.step.zero_()
        program.run(self._cfg.n_timesteps // STEPS_PER_GRAPH)
        return buffers.x

    def _make(self, rows: int, blocks: int) -> SolverBuffers:
        bins = self._cfg.mel_bins
        return SolverBuffers(
            table=torch.zeros(table_size(rows, blocks), dtype=torch.int32, device=self._device),
            static=torch.zeros(2, rows, 3 * bins, dtype=self._velocity.dtype, device=self._device),
            x=torch.zeros(rows, bins, device=self._device),
            step=torch.zeros(1, dtype=torch.int64, device=self._device),
            rows=rows,
            blocks=blocks,
        )

    def _steps(self, buffers: SolverBuffers) -> None:
        layout = device_layout(buffers.table, buffers.rows, buffers.blocks)
        rate = self._cfg.cfg_rate
        for _ in range(STEPS_PER_GRAPH):
            shifts = self._shifts.index_select(0, buffers.step)[0]
            size = self._sizes.index_select(0, buffers.step)
            guided, free = self._velocity(buffers.x, buffers.static, layout, shifts).float()
            buffers.x.add_(size * ((1.0 + rate) * guided - rate * free))
            buffers.step.add_(1)

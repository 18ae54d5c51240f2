"""The Euler solver on packed rows: one captured graph a bucket, nothing that waits for the device (SPEC 5.2)."""

from __future__ import annotations

import torch
from torch import Tensor

from inference.models.config import FlowConfig
from inference.runtime.captured import Programs
from inference.runtime.flow_solver import fixed_noise
from inference.runtime.frame_pack import FramePack
from inference.runtime.packed_state import PackedStep, SolverBuffers

GRAPHS = 64  # buckets kept; each graph holds some hundred kernels, about 10 to 40 MB
# A graph of one step is recorded in a tenth of the time and memory of one of all ten, and its start costs nothing
# while the step before it still runs.
STEPS_PER_GRAPH = 1


class PackedSolver:
    """Integrates packed mels of one network from the fixed noise."""

    def __init__(
        self, velocity: PackedStep, cfg: FlowConfig, dtype: torch.dtype, device: torch.device, *, graphs: bool
    ) -> None:
        self._velocity = velocity
        self._cfg = cfg
        self._dtype = dtype
        self._device = device
        self.programs: Programs[SolverBuffers] = Programs(device, GRAPHS, graphs)
        self._noise = fixed_noise(device, cfg.mel_bins)[0].t().contiguous()  # (15000, 80)

    @torch.inference_mode()
    def begin(self, pack: FramePack) -> SolverBuffers:
        """Buffers of the batch with its layout in place; `static`'s first half is left to the caller to fill."""
        key = (pack.rows, pack.blocks)
        self._program = self.programs.get(key, lambda: self._make(*key), self._steps)
        self._program.buffers.lay_out(pack)
        return self._program.buffers

    @torch.inference_mode()
    def prepare(self, rows: int, blocks: int) -> None:
        """Capture the graph of a bucket."""
        self.programs.prepare((rows, blocks), lambda: self._make(rows, blocks), self._steps)

    @torch.inference_mode()
    def solve(self) -> Tensor:
        """What `begin` began → mels (rows, 80) float32, prompt frames included, good until the next `begin`."""
        buffers = self._program.buffers
        buffers.start(self._noise)
        self._program.run(self._cfg.n_timesteps // STEPS_PER_GRAPH)
        buffers.step.zero_()  # a capture runs a step more, which must be one that there is
        return buffers.x

    def _make(self, rows: int, blocks: int) -> SolverBuffers:
        return SolverBuffers.make(rows, blocks, self._cfg.mel_bins, self._dtype, self._device)

    def _steps(self, buffers: SolverBuffers) -> None:
        for _ in range(STEPS_PER_GRAPH):
            self._velocity.advance(buffers)

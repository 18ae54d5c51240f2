"""The Euler solver on packed rows: one captured graph a bucket, nothing that waits for the device (SPEC 5.2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from inference.models.config import FlowConfig
from inference.runtime.backend_spare import Spare, gives_way
from inference.runtime.captured import Program, Programs, Tail
from inference.runtime.flow_solver import fixed_noise
from inference.runtime.frame_pack import FramePack
from inference.runtime.packed_state import PackedStep, SolverBuffers

GRAPHS = 64  # buckets kept; each graph holds some hundred kernels, about 10 to 40 MB
# A graph of one step is recorded in a tenth of the time and memory of one of all ten, and its start costs nothing
# while the step before it still runs.
STEPS_PER_GRAPH = 1
T = TypeVar("T")


class PackedSolver:
    """Integrates packed mels of one network from the fixed noise.

    `spare` is what goes on, from the very solve on in which `velocity` raises something of its own.
    """

    def __init__(
        self,
        velocity: PackedStep,
        cfg: FlowConfig,
        dtype: torch.dtype,
        device: torch.device,
        *,
        graphs: bool,
        spare: Spare[PackedStep] | None = None,
    ) -> None:
        self._velocity = velocity
        self.spare = spare
        self.tail = Tail()
        self._cfg = cfg
        self._dtype = dtype
        self._device = device
        self.programs: Programs[SolverBuffers] = Programs(device, GRAPHS, graphs)
        self._begun: Program[SolverBuffers] | None = None
        self._noise = fixed_noise(device, cfg.mel_bins)[0].t().contiguous()  # (15000, 80)

    @torch.inference_mode()
    def begin(self, pack: FramePack) -> SolverBuffers:
        """Buffers of the batch with its layout in place; `static`'s first half is left to the caller to fill."""
        key = (pack.rows, pack.blocks)
        self._begun = self.programs.get(key, lambda: self._make(*key), self._steps)
        self._begun.buffers.lay_out(pack)
        return self._begun.buffers

    @torch.inference_mode()
    def prepare(self, rows: int, blocks: int) -> None:
        """Capture the graph of a bucket."""
        self._surely(
            lambda: self.programs.prepare((rows, blocks), lambda: self._make(rows, blocks), self._steps)
        )

    @torch.inference_mode()
    def solve(self) -> Tensor:
        """What `begin` began → mels (rows, 80) float32, prompt frames included, good until the next `begin`."""
        return self._surely(self._solve)

    def _solve(self) -> Tensor:
        buffers = self._program.buffers
        buffers.start(self._noise)
        self._program.run(self._cfg.n_timesteps // STEPS_PER_GRAPH, self.tail)
        buffers.step.zero_()  # a capture runs a step more, which must be one that there is
        return buffers.x

    def _surely(self, work: Callable[[], T]) -> T:
        """Done again with the spare step when it fails."""
        if self.spare is None:
            return work()
        try:
            return work()
        except Exception as error:  # Triton's errors share no base class
            if not gives_way(error):
                raise
            self._velocity, self.spare = self.spare.take_over(error), None
        self._forget_programs()
        return work()

    def _forget_programs(self) -> None:
        """Their graphs are of another step; the buffers of what was begun stay."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)  # a batch before this one may still run them
        self.programs.clear()
        if self._begun is not None:
            self._begun = Program(self._begun.buffers, self._steps)

    @property
    def _program(self) -> Program[SolverBuffers]:
        if self._begun is None:
            raise ValueError("nothing was begun")
        return self._begun

    def _make(self, rows: int, blocks: int) -> SolverBuffers:
        bins, scratch = self._cfg.mel_bins, self.programs.scratch
        return SolverBuffers.make(rows, blocks, bins, self._dtype, self._device, scratch)

    def _steps(self, buffers: SolverBuffers) -> None:
        for _ in range(STEPS_PER_GRAPH):
            self._velocity.advance(buffers)

"""Euler steps of joint blocks, captured once for each number of chunks, whatever the streams' lengths."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from inference.runtime.captured import Programs
from inference.runtime.flow_block import Block
from inference.runtime.flow_cached_velocity import CachedVelocity
from inference.runtime.flow_pages import PageStore
from inference.runtime.flow_solver import MAX_FRAMES

_KEPT = 40
_FINE = 8  # block sizes an octave: at most 12.5 % of a block is padding


def padded_count(chunks: int) -> int:
    """How many chunks a captured block of `chunks` ≥ 1 has."""
    step = max(1, (1 << (chunks - 1).bit_length()) // (2 * _FINE))
    return -(-chunks // step) * step


@dataclass
class StepBuffers:
    """What a step reads and writes; addresses stay the same from run to run."""

    x: Tensor  # (C, 2n, 80) float32, the state
    conditions: Tensor  # (C, pair, 2n, 240)
    block: Block
    step: Tensor  # (1,) int64, counts the steps


class StepGraphs:
    """Solves joint blocks of `padded_count` chunks on one store that keeps all steps. Used from one thread and stream.

    The velocity network's attention must take any width.
    """

    def __init__(
        self, velocity: CachedVelocity, store: PageStore, device: torch.device, graphs: bool
    ) -> None:
        self._velocity = velocity
        self._store = store
        self.programs: Programs[StepBuffers] = Programs(device, _KEPT, graphs)

    def solve(self, block: Block, conditions: Tensor) -> Tensor:
        """Mel (C, 2n, 80), good until the next call."""
        program = self.programs.get(len(conditions), lambda: self._make(block, conditions), self._step)
        buffers = program.buffers
        buffers.x.copy_(block.inputs.noise)
        buffers.conditions.copy_(conditions)
        kept, wide = buffers.block, block.pages.shape[1]
        kept.pages[:, :wide].copy_(block.pages)
        pairs = (
            (kept.written, block.written), (kept.counts, block.counts), (kept.tail_before, block.tail_before),
            (kept.tail_after, block.tail_after), (kept.follows, block.follows),
        )  # fmt: skip
        for target, source in pairs:
            if target is not None and source is not None:
                target.copy_(source)
        buffers.step.zero_()
        program.run(self._velocity.steps)
        return buffers.x

    def _make(self, block: Block, conditions: Tensor) -> StepBuffers:
        chunks, device = len(conditions), conditions.device
        most = -(-MAX_FRAMES // self._store.sizes.chunk_frames)
        pages = torch.zeros(chunks, most, dtype=torch.int64, device=device)

        def copy(source: Tensor | None) -> Tensor | None:
            return None if source is None else source.clone(memory_format=torch.contiguous_format)

        kept = replace(
            block,
            pages=pages,
            most=most * block.chunk,
            alike=False,
            written=block.written.contiguous().clone(),
            counts=block.counts.contiguous().clone(),
            tail_before=block.tail_before.contiguous().clone(),
            tail_after=copy(block.tail_after),
            follows=copy(block.follows),
        )
        step = torch.zeros(1, dtype=torch.int64, device=device)
        return StepBuffers(block.inputs.noise.clone(), conditions.clone(), kept, step)

    def _step(self, buffers: StepBuffers) -> None:
        place = self._velocity.device_place(buffers.step, self._store)
        buffers.x.copy_(
            self._velocity.advance(buffers.x, buffers.conditions, buffers.block, self._store, place)
        )
        buffers.step.add_(1)

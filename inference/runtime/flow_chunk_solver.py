"""Chunks of streams to mel, one after the other: the bits of each are independent of all others."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from inference.models.flow import FlowModel
from inference.runtime.flow_block import Chunk, single_block
from inference.runtime.flow_cached_encoder import CachedEncoder
from inference.runtime.flow_cached_velocity import CachedVelocity
from inference.runtime.flow_pages import PageSizes, PageStore


class ChunkSolver:
    """The arithmetic of one flow model and its pages."""

    def __init__(self, flow: FlowModel, pages: int) -> None:
        self.sizes = PageSizes.of(flow.cfg)
        weight = flow.encoder_proj.weight
        self._device, self._dtype = weight.device, weight.dtype
        self._lookahead = flow.cfg.pre_lookahead
        self._store = self._make_store(pages, self.sizes.steps)
        self._encoder = CachedEncoder(flow)
        self._velocity = CachedVelocity(flow)

    def _make_store(self, pages: int, kept_steps: int) -> PageStore:
        return PageStore(self.sizes, pages, self._dtype, self._device, kept_steps)

    def solve(self, chunks: Sequence[Chunk]) -> Tensor:
        """One stream's new chunks, at least one, to frames (n, 80); writes their pages."""
        return self._steps(chunks, self._store)

    def solve_without_pages(self, chunks: Sequence[Chunk]) -> Tensor:
        """All chunks of one stream, whose pages are 0, 1, …, in memory of their own: as `solve`, and given back.

        Step by step, so that the memory of one Euler step suffices.
        """
        return self._steps(chunks, self._make_store(len(chunks), kept_steps=1))

    def _steps(self, chunks: Sequence[Chunk], store: PageStore) -> Tensor:
        """Chunks behind each other (frames, 80); each may need those before it."""
        blocks = [single_block(chunk, store, self._lookahead) for chunk in chunks]
        velocity = self._velocity
        conditions = [velocity.conditions(self._encoder(block, store), block) for block in blocks]
        mels = [block.inputs.noise for block in blocks]
        for step in range(velocity.steps):
            place = velocity.place(step, store)
            for i, block in enumerate(blocks):
                mels[i] = velocity.advance(mels[i], conditions[i], block, store, place)
        return torch.cat([mel.flatten(0, 1) for mel in mels])

"""Chunks of streams to mel: encoder and Euler steps over blocks, in the order and company that the device likes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from inference.models.flow import FlowModel
from inference.runtime.flow_block import Block, Chunk, joint_block, single_block
from inference.runtime.flow_cached_attention import CachedAttention, GatheredAttention, choose_attention
from inference.runtime.flow_cached_encoder import CachedEncoder
from inference.runtime.flow_cached_velocity import CachedVelocity
from inference.runtime.flow_pages import PageSizes, PageStore
from inference.runtime.flow_step_graphs import StepGraphs, padded_count


class ChunkSolver:
    """The arithmetic of one flow model and its pages.

    `together`: all chunks of a call in one block, with `graphs` as captured graphs where the device can; else one chunk
    after the other, which makes the bits of each independent of all others.
    """

    def __init__(self, flow: FlowModel, pages: int, *, together: bool, graphs: bool) -> None:
        self.sizes = PageSizes.of(flow.cfg)
        self.together = together
        weight = flow.encoder_proj.weight
        self._device, self._dtype = weight.device, weight.dtype
        self._lookahead = flow.cfg.pre_lookahead
        self._store = self._make_store(pages, self.sizes.steps)
        self._encoder = CachedEncoder(flow)
        network = flow.cfg.estimator
        sizes = network.num_heads, network.attention_head_dim
        # The paged kernel takes whole chunks only.
        attention: CachedAttention = GatheredAttention()
        if together:
            attention = choose_attention(self._device, self._dtype, *sizes)
        self._velocity = CachedVelocity(flow, attention)
        self.captured: StepGraphs | None = None
        if together and graphs and attention.any_width:
            self.captured = StepGraphs(self._velocity, self._store, self._device, graphs)

    def _make_store(self, pages: int, kept_steps: int) -> PageStore:
        return PageStore(self.sizes, pages, self._dtype, self._device, kept_steps)

    def solve(self, plans: Sequence[Sequence[Chunk]]) -> list[Tensor]:
        """For each stream's new chunks, at least one, their frames (n, 80); writes their pages.

        n may be rounded up to whole chunks.
        """
        if not self.together:
            return [self._one_by_one(chunks, self._store) for chunks in plans]
        chunks = [chunk for plan in plans for chunk in plan]
        frames = self._at_once(chunks) if chunks else torch.empty(0)
        sizes = [len(plan) * self.sizes.chunk_frames for plan in plans]
        return list(frames[: sum(sizes)].split(sizes))

    def solve_without_pages(self, chunks: Sequence[Chunk]) -> Tensor:
        """All chunks of one stream, whose pages are 0, 1, …, in memory of their own: as `solve`, and given back.

        Step by step, so that the memory of one Euler step suffices.
        """
        store = self._make_store(len(chunks), kept_steps=1)
        if self.together:
            return self._steps([joint_block(chunks, store, self._lookahead)], store)
        return self._one_by_one(chunks, store)

    def _one_by_one(self, chunks: Sequence[Chunk], store: PageStore) -> Tensor:
        return self._steps([single_block(chunk, store, self._lookahead) for chunk in chunks], store)

    def _at_once(self, chunks: Sequence[Chunk]) -> Tensor:
        store = self._store
        if self.captured is None:
            return self._steps([joint_block(chunks, store, self._lookahead)], store)
        block = joint_block(chunks, store, self._lookahead, padded_count(len(chunks)) - len(chunks))
        mel = self.captured.solve(block, self._conditions(block, store))
        return mel.flatten(0, 1).clone()  # the graph's own buffer is soon written again

    def _conditions(self, block: Block, store: PageStore) -> Tensor:
        return self._velocity.conditions(self._encoder(block, store), block)

    def _steps(self, blocks: Sequence[Block], store: PageStore) -> Tensor:
        """Blocks behind each other (frames, 80); each may need those before it."""
        conditions = [self._conditions(block, store) for block in blocks]
        mels = [block.inputs.noise for block in blocks]
        for step in range(self._velocity.steps):
            place = self._velocity.place(step, store)
            for i, block in enumerate(blocks):
                mels[i] = self._velocity.advance(mels[i], conditions[i], block, store, place)
        return torch.cat([mel.flatten(0, 1) for mel in mels])

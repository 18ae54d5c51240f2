"""Memory of the CPU's incremental flow: one page for each chunk of 25 tokens, 50 frames (the GPU has `paged_memory`).

A page holds all that later chunks need of its chunk: attention keys and values of every encoder layer, those of every
layer of the velocity network in every Euler step (for both halves of the guidance pair), and the last inputs of every
causal convolution. A page whose chunk is complete is never written again, so streams of one voice share the pages
of their common prompt. `flow_page_book` says who holds which page.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from inference.models.config import FlowConfig

TAIL = 2  # positions that every causal convolution here looks back (at the token rate for the upsampling one)
PAIR = 2  # guided and free half of the guidance pair


@dataclass(frozen=True)
class PageSizes:
    """What a page holds, in values."""

    steps: int
    chunk_tokens: int
    chunk_frames: int
    token_layers: int
    frame_layers: int
    encoder_width: int
    blocks: int  # transformer blocks of the velocity network
    inner: int  # heads times head size of the velocity network
    tail_channels: int  # input channels of all causal convolutions of the velocity network

    @classmethod
    def of(cls, cfg: FlowConfig) -> PageSizes:
        """The sizes that a flow model of this configuration needs."""
        estimator, encoder = cfg.estimator, cfg.encoder
        stages, width = estimator.num_mid_blocks + 2, estimator.channels
        # A resnet has a convolution of its stage's input and one of its width; there are three more after the stages.
        inputs = estimator.in_channels + estimator.num_mid_blocks * width + 2 * width
        return cls(
            steps=cfg.n_timesteps,
            chunk_tokens=encoder.chunk_tokens,
            chunk_frames=encoder.chunk_tokens * cfg.token_mel_ratio,
            token_layers=encoder.num_blocks,
            frame_layers=encoder.num_up_blocks,
            encoder_width=encoder.output_size,
            blocks=stages * estimator.n_blocks,
            inner=estimator.num_heads * estimator.attention_head_dim,
            tail_channels=inputs + stages * width + 3 * width,
        )

    @property
    def ratio(self) -> int:
        """Frames a token."""
        return self.chunk_frames // self.chunk_tokens

    @property
    def page_values(self) -> int:
        """Values of one page."""
        encoder = self.token_layers * self.chunk_tokens + self.frame_layers * self.chunk_frames
        keys = 2 * self.encoder_width * encoder
        keys += self.steps * self.blocks * 2 * PAIR * self.inner * self.chunk_frames
        tails = 2 * TAIL * self.encoder_width + self.steps * PAIR * TAIL * self.tail_channels
        return keys + tails


class PageStore:
    """The tensors of `pages` pages, and of one more so that there is always one.

    They are never cleared: every place is written before it is read. Tails have one row more, of zeros, for the time
    before the first chunk. With `kept_steps=1` the velocity network's memory serves each Euler step in turn, for
    those who compute all chunks of one step before the next step.
    """

    def __init__(
        self, sizes: PageSizes, pages: int, dtype: torch.dtype, device: torch.device, kept_steps: int
    ) -> None:
        self.sizes = sizes
        self.pages = pages
        self.kept_steps = kept_steps
        count, width = pages + 1, sizes.encoder_width

        def empty(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        # (layer, page, position, key or value, width)
        self.token_keys = empty(sizes.token_layers, count, sizes.chunk_tokens, 2, width)
        self.frame_keys = empty(sizes.frame_layers, count, sizes.chunk_frames, 2, width)
        # (block, step · page, position, key or value, pair · heads · head size)
        pair_width = PAIR * sizes.inner
        self.velocity_keys = empty(sizes.blocks, kept_steps * count, sizes.chunk_frames, 2, pair_width)
        # (page or zeros, …), (step · (page or zeros), …)
        self.lookahead_tails = empty(count + 1, TAIL, width)
        self.upsample_tails = empty(count + 1, TAIL, width)
        self.velocity_tails = empty(kept_steps * (count + 1), PAIR, TAIL, sizes.tail_channels)
        for tails in (self.lookahead_tails, self.upsample_tails, self.velocity_tails):
            tails[self.zero_tail :: count + 1].zero_()

    @property
    def zero_tail(self) -> int:
        """The row of tails that stands for the time before the first chunk."""
        return self.pages + 1

    @property
    def bytes(self) -> int:
        """What the tensors take; on the CPU the system gives memory only to pages that were used."""
        tensors = (
            self.token_keys, self.frame_keys, self.velocity_keys,
            self.lookahead_tails, self.upsample_tails, self.velocity_tails,
        )  # fmt: skip
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

"""Memory of streams on a GPU: pages of one chunk (50 frames) each, in slabs that are made when they are needed.

A page holds, for each Euler step, keys and values of every attention layer of the velocity network for both halves of
the guidance pair, and the last two inputs of every causal convolution. Kernels find a page by its address, counted in
values from a tensor that never moves, so that captured graphs go on working while slabs come and go.

Layout of a page, in values (`steps`, `layers`, `wide` = pair · heads, `frames`, `size` = head size):
    keys and values (steps, layers, wide, 2, frames, size), then tails (steps, pair, TAIL, tail channels)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from inference.models.config import FlowConfig
from inference.runtime.flow_pages import PAIR, TAIL, PageSizes

_SLAB_BYTES = 1 << 29
_ALIGNED = 64  # values


@dataclass(frozen=True)
class PageShape:
    """What a page holds."""

    steps: int
    layers: int  # transformer blocks of the velocity network
    heads: int
    head_size: int
    frames: int  # of a chunk
    tail_channels: int  # of all causal convolutions together

    @classmethod
    def of(cls, cfg: FlowConfig) -> PageShape:
        """For a flow model of this configuration."""
        sizes, network = PageSizes.of(cfg), cfg.estimator
        return cls(
            sizes.steps,
            sizes.blocks,
            network.num_heads,
            network.attention_head_dim,
            sizes.chunk_frames,
            sizes.tail_channels,
        )

    @property
    def layer_values(self) -> int:
        """Keys and values of one layer in one step."""
        return PAIR * self.heads * 2 * self.frames * self.head_size

    @property
    def tails_at(self) -> int:
        """Where a page's tails begin."""
        return self.steps * self.layers * self.layer_values

    @property
    def values(self) -> int:
        """Of one page."""
        used = self.tails_at + self.steps * PAIR * TAIL * self.tail_channels
        return -(-used // _ALIGNED) * _ALIGNED


class PageMemory:
    """Up to `pages` pages. On the CPU all of them are set aside at once: the system gives memory as it is used."""

    def __init__(self, shape: PageShape, pages: int, dtype: torch.dtype, device: torch.device) -> None:
        self.shape = shape
        self.pages = pages
        self._dtype, self._device = dtype, device
        self.page_bytes = shape.values * dtype.itemsize
        lazily = device.type == "cuda"
        self._slab_pages = max(1, _SLAB_BYTES // self.page_bytes) if lazily else max(1, pages)
        self._slabs: list[Tensor] = []
        if not lazily:
            self._add_slab()
        # What addresses are counted from.
        self.anchor = torch.empty(_ALIGNED, dtype=dtype, device=device) if lazily else self._slabs[0]

    def ensure(self, page: int) -> None:
        """Make memory for pages 0 … `page`. Raises what the device raises when it has none left."""
        while page >= len(self._slabs) * self._slab_pages:
            self._add_slab()

    def shrink(self, used: int) -> None:
        """Give back what lies behind the first `used` pages; only between two pieces of work of the device."""
        if self._device.type == "cuda":
            del self._slabs[-(-used // self._slab_pages) :]

    def address(self, page: int) -> int:
        """Where a page lies: values from `anchor` on."""
        slab, place = divmod(page, self._slab_pages)
        apart = self._slabs[slab].data_ptr() - self.anchor.data_ptr()
        return apart // self._dtype.itemsize + place * self.shape.values

    @property
    def made(self) -> int:
        """Pages that there is memory for."""
        return min(self.pages, len(self._slabs) * self._slab_pages)

    @property
    def bytes(self) -> int:
        """What the slabs take."""
        return sum(slab.numel() * slab.element_size() for slab in list(self._slabs))

    def _add_slab(self) -> None:
        count = min(self._slab_pages, max(1, self.pages - len(self._slabs) * self._slab_pages))
        self._slabs.append(torch.empty(count * self.shape.values, dtype=self._dtype, device=self._device))

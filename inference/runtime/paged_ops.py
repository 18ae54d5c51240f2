"""What a row of streams needs beside plain row arithmetic: attention over pages, and convolutions' tails."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from inference.runtime.flow_pages import PAIR, TAIL
from inference.runtime.paged_layout import NO_PAGE, DeviceRow, RowItem, RowLayout, TableSizes
from inference.runtime.paged_memory import PageMemory, PageShape

logger = logging.getLogger(__name__)

_PROBE_BOUND = 0.02  # largest difference of values around 1, half precision against float32
_PROBE_PAGES = 7
_PROBE_CHANNEL = 16


class PageOps(Protocol):
    """Works on the pages of one `PageMemory`. `step` (1,) int64: the Euler step, read on the device."""

    def attend(self, qkv: Tensor, layer: int, row: DeviceRow, step: Tensor, output: Tensor) -> None:
        """qkv (2 · rows, 3 · inner) → output (2 · rows, inner); keeps the keys and values of chunks to be kept.
        Rows of nobody are left as they are."""
        ...

    def tails(self, row: DeviceRow, step: Tensor) -> Tensor:
        """(pair · starts · TAIL, tail channels): what the streams' convolutions look back on; arbitrary where a stream
        has no page."""
        ...

    def keep(self, x: Tensor, first_channel: int, row: DeviceRow, step: Tensor) -> None:
        """x (2 · rows, channels), the input of a convolution: keeps the ends of chunks that are to be kept.
        `first_channel`: the convolution's place in the tails, a multiple of 16."""
        ...


class PlainPages:
    """With PyTorch alone, chunk by chunk: for tests, and to hold kernels against. Waits for the device."""

    def __init__(self, memory: PageMemory) -> None:
        self._memory = memory

    def attend(self, qkv: Tensor, layer: int, row: DeviceRow, step: Tensor, output: Tensor) -> None:
        heads = self._memory.shape.heads
        q, k, v = (part.unflatten(1, (heads, -1)).transpose(0, 1) for part in qkv.chunk(3, dim=1))
        rows, entries, now = len(qkv) // PAIR, row.entries.tolist(), int(step)
        for first, count, entry, pages, led, led_count, own, kept, keeps in row.blocks.tolist():
            if not count:
                continue
            known = [self._page(address, now, layer) for address in entries[entry : entry + pages]]
            for half in range(PAIR):
                at = half * rows
                here = slice(at + first, at + first + count)
                near = [slice(at + led, at + led + led_count), slice(at + own, here.stop)]
                key = torch.cat(
                    [*(page[half, :, 0] for page in known), *(k[:, part] for part in near)], dim=1
                )
                value = torch.cat(
                    [*(page[half, :, 1] for page in known), *(v[:, part] for part in near)], dim=1
                )
                mixed = F.scaled_dot_product_attention(q[None, :, here], key[None], value[None])[0]
                output[here] = mixed.transpose(0, 1).flatten(1)
                if keeps:
                    page = self._page(kept, now, layer)[half]
                    page[:, 0], page[:, 1] = k[:, here], v[:, here]

    def tails(self, row: DeviceRow, step: Tensor) -> Tensor:
        shape, now = self._memory.shape, int(step)
        nothing = torch.zeros(PAIR, TAIL, shape.tail_channels, dtype=self._memory.anchor.dtype)
        nothing = nothing.to(row.starts.device)
        found = [nothing if page == NO_PAGE else self._tails(page, now) for page in row.starts.tolist()]
        return torch.stack(found, dim=1).flatten(0, 2)

    def keep(self, x: Tensor, first_channel: int, row: DeviceRow, step: Tensor) -> None:
        channels = slice(first_channel, first_channel + x.shape[1])
        halves = x.unflatten(0, (PAIR, -1))
        for first, count, *_, kept, keeps in row.blocks.tolist():
            if keeps:
                end = first + count
                self._tails(kept, int(step))[:, :, channels] = halves[:, end - TAIL : end]

    def _page(self, address: int, step: int, layer: int) -> Tensor:
        """(pair, heads, 2, frames, head size), a view."""
        shape = self._memory.shape
        start = address + (step * shape.layers + layer) * shape.layer_values
        found = self._memory.anchor[start : start + shape.layer_values]
        return found.view(PAIR, shape.heads, 2, shape.frames, shape.head_size)

    def _tails(self, address: int, step: int) -> Tensor:
        """(pair, TAIL, tail channels), a view."""
        shape = self._memory.shape
        size = PAIR * TAIL * shape.tail_channels
        start = address + shape.tails_at + step * size
        return self._memory.anchor[start : start + size].view(PAIR, TAIL, shape.tail_channels)


def choose_ops(memory: PageMemory, dtype: torch.dtype) -> PageOps | None:
    """The kernels where they give the right values; None on CUDA where they do not, with a warning."""
    device = memory.anchor.device
    if device.type != "cuda":
        return PlainPages(memory)
    try:
        from inference.runtime.paged_kernels import ALL_TILES, KernelPages

        shape = memory.shape
        found = [ops_error(partial(KernelPages, tiles=tiles), shape, dtype, device) for tiles in ALL_TILES]
        error = max(found, key=lambda value: value if value == value else float("inf"))
        if error <= _PROBE_BOUND:  # NaN counts as broken
            return KernelPages(memory)
        logger.warning("The paged kernels are unsound here (error %.3g); streams are recomputed.", error)
    except torch.OutOfMemoryError:
        raise
    except Exception:  # no Triton, no compiler, another version
        logger.warning("The paged kernels cannot be used here; streams are recomputed.", exc_info=True)
    return None


@torch.inference_mode()
def ops_error(
    kernels: Callable[[PageMemory], PageOps],
    shape: PageShape,
    dtype: torch.dtype,
    device: torch.device,
    layer: int = 1,
) -> float:
    """Largest difference of `kernels` from `PlainPages` in float32: attention, tails, and what is kept of both."""
    small = replace(shape, steps=2, layers=layer + 1)
    layout = probe_layout(small)
    sizes, generator = layout.sizes, torch.Generator().manual_seed(0)
    pages = torch.randn(_PROBE_PAGES * small.values, generator=generator)
    inner = small.heads * small.head_size
    qkv = torch.randn(PAIR * sizes.rows, 3 * inner, generator=generator)
    x = torch.randn(PAIR * sizes.rows, min(256, small.tail_channels - _PROBE_CHANNEL), generator=generator)
    table = torch.zeros(sizes.table, dtype=torch.int64)
    table[: len(layout.table)] = torch.from_numpy(layout.table)

    def results(
        make: Callable[[PageMemory], PageOps], kind: torch.dtype, place: torch.device
    ) -> list[Tensor]:
        memory = PageMemory(small, 0, kind, torch.device("cpu"))
        memory.anchor = pages.to(place, kind, copy=True)
        ops, row = make(memory), DeviceRow.of(table.to(place), sizes)
        step = torch.ones(1, dtype=torch.int64, device=place)
        mixed = torch.zeros(len(qkv), inner, dtype=kind, device=place)
        ops.attend(qkv.to(place, kind), layer, row, step, mixed)
        ops.keep(x.to(place, kind), _PROBE_CHANNEL, row, step)
        tails = ops.tails(row, step).view(PAIR, sizes.starts, -1)[:, row.starts != NO_PAGE]
        return [found.float().cpu() for found in (mixed, tails, memory.anchor)]

    pairs = zip(results(kernels, dtype, device), results(PlainPages, torch.float32, torch.device("cpu")))
    return float(torch.stack([(one - other).abs().max() for one, other in pairs]).max())


def probe_layout(shape: PageShape) -> RowLayout:
    """Streams of all kinds: new, continued, led, ending within a chunk, kept and not."""
    chunk, size = shape.frames, shape.values
    items = [
        RowItem(0, 2 * chunk + 9, [], [0, None]),
        RowItem(2, 3 * chunk, [3 * size, size], [5 * size]),
        RowItem(1, 2 * chunk + 4, [], [None], leader=0),
        RowItem(3, 3 * chunk + 2, [3 * size, size, 4 * size], []),
        RowItem(1, 2 * chunk, [], [6 * size], leader=0),
    ]
    return RowLayout(items, TableSizes(7 * chunk, 8, chunk))

"""What has to be compiled of the paged kernels before they serve. Import this where Triton is; needs no device."""

from __future__ import annotations

from typing import Any

import torch

from inference.models.config import FlowConfig
from inference.runtime.flow_pages import PAIR
from inference.runtime.paged_kernels import ALL_TILES, KernelPages
from inference.runtime.paged_layout import DeviceRow, TableSizes
from inference.runtime.paged_memory import PageMemory, PageShape

Variant = tuple[Any, tuple[Any, ...], dict[str, Any]]
_ROWS = 512  # any number will do


def kernel_variants(cfg: FlowConfig, dtype: torch.dtype, dependent: bool) -> list[Variant]:
    """(kernel, arguments, constants) for `kernel.warmup(*arguments, grid=(1,), **constants)`, each variant once.

    The arguments are tensors without memory. `dependent`: kernels overlap, as on Hopper and later.
    """
    shape, nowhere = PageShape.of(cfg), torch.device("meta")
    sizes = TableSizes(_ROWS, 8, shape.frames)
    memory = PageMemory(shape, 0, dtype, torch.device("cpu"))
    memory.anchor = torch.empty(64, dtype=dtype, device=nowhere)
    row = DeviceRow.of(torch.empty(sizes.table, dtype=torch.int64, device=nowhere), sizes)
    step = torch.empty(1, dtype=torch.int64, device=nowhere)
    found: dict[tuple[Any, ...], Variant] = {}

    def note(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        found.setdefault((id(kernel), *sorted(constants.items())), (kernel, arguments, constants))

    inner, channels = shape.heads * shape.head_size, cfg.estimator.channels
    for tiles in ALL_TILES:
        ops = KernelPages(memory, tiles, dependent=dependent, start=note)
        qkv = torch.empty(PAIR * _ROWS, 3 * inner, dtype=dtype, device=nowhere)
        ops.attend(qkv, 3, row, step, qkv[:, :inner].contiguous())
        ops.tails(row, step)
        for width in (cfg.estimator.in_channels, channels, 2 * channels):
            ops.keep(torch.empty(PAIR * _ROWS, width, dtype=dtype, device=nowhere), 48, row, step)
    return list(found.values())

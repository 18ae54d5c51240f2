"""What a worker does about its GPU's memory beside the lanes' own bookkeeping. Imports no torch by itself."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
# Segments that grow and shrink: what is free in one stream's pool lies together, and whole pages of it go back.
_GROWING, _FIXED = "expandable_segments:True", "expandable_segments:False"
# cuBLAS takes 32 MiB for each thread and stream on Hopper, 8 elsewhere. Hardly any product here is its own.
_WORKSPACES = {"CUBLAS_WORKSPACE_CONFIG": ":4096:2:16:8", "CUBLASLT_WORKSPACE_SIZE": "8192"}
_FEW_REQUESTS = 8
_CONTEXT_BYTES = 600 * 2**20  # that the driver takes for itself, kernels and captured graphs


def choose_allocator(
    concurrency: int, low_memory: bool, environment: MutableMapping[str, str] = os.environ
) -> bool:
    """To be called before CUDA is used; whether segments are to grow, which `settle_allocator` then has a look at.

    What the user has set stays. `concurrency`: requests at once, 0 for many.
    """
    growing = not any(name in environment for name in _ALLOCATOR)
    if growing:
        environment[_ALLOCATOR[0]] = _GROWING
        module = sys.modules.get("torch")  # it may have looked at the environment before
        if module is not None and not module.cuda.is_initialized():
            _tell_torch(_GROWING)
    if low_memory or 0 < concurrency <= _FEW_REQUESTS:
        for name, value in _WORKSPACES.items():
            environment.setdefault(name, value)
    return growing


def settle_allocator(
    device: str,
    allocate: Callable[[str], object] | None = None,
    environment: MutableMapping[str, str] = os.environ,
) -> None:
    """First memory of a CUDA device. Segments stay as they are where they cannot grow: some virtual machines' drivers
    (WSL, vGPU) have no virtual memory to offer, and torch fails only when it asks for some.

    `allocate`: takes a little memory. What is wrong with the device itself shows again where it is used.
    """
    from inference.faults import is_out_of_memory

    allocate = allocate or _allocate_little
    try:
        allocate(device)
    except (RuntimeError, AssertionError) as error:
        if is_out_of_memory(error):
            return
        environment[_ALLOCATOR[0]] = _FIXED  # for processes that this one starts, too
        _tell_torch(_FIXED)
        with suppress(RuntimeError, AssertionError):
            allocate(device)
            logger.warning("Memory segments cannot grow on %s (%s); some more is taken.", device, error)


def _allocate_little(device: str) -> None:
    import torch

    torch.empty(1, device=device)


def _tell_torch(settings: str) -> None:
    """The environment's words, to a torch that may have read them."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    tell = getattr(torch._C, "_accelerator_setAllocatorSettings", None)  # from torch 2.10 on
    (tell or torch.cuda.memory._set_allocator_settings)(settings)


def limit_memory(device: torch.device, most: int) -> None:
    """From now on torch runs out of memory where this process would take more than `most` bytes of a CUDA device."""
    import torch

    total = torch.cuda.get_device_properties(device).total_memory
    share = max(most - _CONTEXT_BYTES, most // 2) / total
    torch.cuda.set_per_process_memory_fraction(min(1.0, share), device)


def release(device: torch.device, *, workspaces: bool = False) -> None:
    """Give blocks that nobody uses back to the driver. Waits for the device; does nothing off CUDA.

    `workspaces`: those of cuBLAS too. Not once graphs are captured, which would go on using them.
    """
    if device.type != "cuda":
        return
    import torch

    from inference.runtime.lane_graphs import CAPTURE_LOCK

    with CAPTURE_LOCK:  # a capture must not see the driver asked for anything else
        if workspaces:
            torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()


class Tidy:
    """Gives blocks back whenever they have become many."""

    _MUCH = 1 << 28

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._left = 0  # free, but not to be given back

    def up(self) -> None:
        """Once in a while: what first runs leave behind, graphs have working memory of their own for."""
        if self._device.type != "cuda":
            return
        import torch

        held, live = torch.cuda.memory_reserved(self._device), torch.cuda.memory_allocated(self._device)
        if held - live > self._left + self._MUCH:
            release(self._device)
            self._left = torch.cuda.memory_reserved(self._device) - live

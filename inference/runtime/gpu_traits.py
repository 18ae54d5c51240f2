"""What a device's generation allows kernels to do. Needs no Triton."""

from __future__ import annotations

from functools import lru_cache

import torch

LEAST_SHARED = 96 * 1024  # what every card from Ampere on has


@lru_cache(maxsize=8)
def kernels_overlap(device: torch.device) -> bool:
    """Whether a kernel may start before the one before it has ended (Hopper and later)."""
    return _is_hopper(device)


@lru_cache(maxsize=8)
def has_copy_engine(device: torch.device) -> bool:
    """Whether blocks of a matrix can be moved without registers or addresses (Hopper and later)."""
    return _is_hopper(device)


def _is_hopper(device: torch.device) -> bool:
    return device.type == "cuda" and capability(device) >= (9, 0)


def capability(device: torch.device | None) -> tuple[int, int]:
    """Of a CUDA device, by default the one in use: (8, 0) is Ampere, (9, 0) Hopper."""
    return torch.cuda.get_device_capability(device)


@lru_cache(maxsize=8)
def shared_bytes(device: torch.device) -> int:
    """Shared memory of one block of threads: 99 KiB on most consumer cards, 163 on the A100, 227 on Hopper.

    For another device than CUDA that of the GPU in use, for which shapes are recorded there, or plenty.
    """
    if not torch.cuda.is_available():
        return 2 * LEAST_SHARED
    properties = torch.cuda.get_device_properties(device if device.type == "cuda" else None)
    return int(getattr(properties, "shared_memory_per_block_optin", LEAST_SHARED))

"""What the machine is and how much memory is in use."""

from __future__ import annotations

import os
import platform
import resource
from pathlib import Path
from typing import Any


def describe(device: str) -> dict[str, Any]:
    """Facts that a reader of the numbers needs."""
    import torch

    facts: dict[str, Any] = {
        "device": device,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cpu_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
    }
    if device.startswith("cuda"):
        facts["gpu"] = torch.cuda.get_device_name(device)
        facts["gpu_memory_gb"] = round(torch.cuda.get_device_properties(device).total_memory / 1e9, 1)
        facts["convolutions_tf32"] = torch.backends.cudnn.allow_tf32
        facts["matmul_tf32"] = torch.backends.cuda.matmul.allow_tf32
    return facts


def worker_devices(device: str, workers: int) -> tuple[str, ...]:
    """One name a worker: "cuda:N" and the cards after it, else the same name again."""
    kind, _, first = device.partition(":")
    if kind != "cuda":
        return (device,) * workers
    return tuple(f"cuda:{int(first or 0) + number}" for number in range(workers))


def resident_mb(pid: int | None = None) -> float:
    """Resident memory of a process (this one by default) in MB; 0 where the system does not tell."""
    try:
        pages = int(Path(f"/proc/{pid or 'self'}/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0.0
    return pages * resource.getpagesize() / 1e6

"""Which devices there are and how much memory is free. Finding them needs no torch: the parent stays small."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import runpy
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_ASSUMED_FREE = 4 * 2**30  # where the system does not tell
_ARENA_MAX, _ARENAS = -8, 2  # glibc's number for the option, and what it is set to


def available_devices() -> tuple[str, ...]:
    """("cuda:0", …), or ("cpu",) where there is no CUDA device or torch is built without CUDA."""
    count = _cuda_count() if _torch_has_cuda() else 0
    return tuple(f"cuda:{number}" for number in range(count)) or ("cpu",)


def resolve_devices(names: tuple[str, ...]) -> tuple[str, ...]:
    """Names with "auto" replaced by the devices there are and "cuda" by the CUDA devices."""
    found: list[str] = []
    for name in names:
        if name == "auto":
            found += available_devices()
        elif name == "cuda":
            found += [device for device in available_devices() if device != "cpu"] or [name]
        else:
            found.append(name)
    return tuple(found)


def cpu_count() -> int:
    """Cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


def free_memory(device: torch.device, limit: int = 0) -> int:
    """Bytes free on a device; on CUDA those that this process may still take under `limit`, if that is not 0."""
    if device.type == "cuda":
        import torch

        torch.cuda.empty_cache()  # loading leaves blocks behind that nobody will use
        free = int(torch.cuda.mem_get_info(device)[0])
        return max(0, min(free, limit - int(torch.cuda.memory_reserved(device)))) if limit else free
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return _ASSUMED_FREE


def allocated_memory(device: str) -> int:
    """Bytes that this process holds on a CUDA device, 0 elsewhere."""
    if not device.startswith("cuda"):
        return 0
    import torch

    return int(torch.cuda.memory_reserved(device))


def process_memory() -> int:
    """Resident bytes of this process."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError, AttributeError):
        return _peak_memory()


def share_freed_memory() -> None:
    """Have all threads started from now on share two heaps: with one each, every lane would keep what it once needed.

    Nothing where the C library is not glibc.
    """
    _ask_glibc("mallopt", _ARENA_MAX, _ARENAS)


def release_memory() -> None:
    """Give the system back what the C library keeps of freed memory; nothing where it is not glibc."""
    _ask_glibc("malloc_trim", 0)


def _ask_glibc(name: str, *values: int) -> None:
    try:
        getattr(ctypes.CDLL(None), name)(*values)
    except (AttributeError, OSError, TypeError):
        return


def _peak_memory() -> int:
    try:
        import resource
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _torch_has_cuda() -> bool:
    """Read off torch's version file: importing torch would cost the parent seconds and 200 MB."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    try:
        return runpy.run_path(str(Path(spec.origin).with_name("version.py"))).get("cuda") is not None
    except Exception:  # another layout of another torch: let the worker find out
        return True


def _cuda_count() -> int:
    """From the driver, which respects CUDA_VISIBLE_DEVICES; makes no context."""
    for name in ("libcuda.so.1", "nvcuda.dll"):
        try:
            driver = ctypes.CDLL(name)
        except OSError:
            continue
        count = ctypes.c_int(0)
        if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0:
            return count.value
    return 0

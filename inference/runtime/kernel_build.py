"""Triton kernels compiled ahead, in parallel processes, before anything waits for them.

`recorded` runs launching code without launching and says which kernels it would need (`Variant`); `build` has child
processes compile them for this GPU. What they make lies in Triton's cache on disk, where the first launch finds it;
marks beside it say which variants are there, so that a later start does not look again.

A child is `python -m inference.runtime.kernel_build` with its share, pickled, as input. It makes no CUDA context.
"""

from __future__ import annotations

import hashlib
import importlib
import logging
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from inference.runtime.kernel_variant import Blocks, Pointer, Variant, recorded, stand_in, variant

__all__ = ["Blocks", "Pointer", "Variant", "build", "compile_here", "recorded", "set_target", "variant"]

logger = logging.getLogger(__name__)

MOST_PROCESSES = 12
_LIMIT = 150.0  # seconds; what is not compiled by then is compiled when it is needed


def build(
    variants: Iterable[Variant | tuple[Any, ...]],
    *,
    device: torch.device | None = None,
    progress: Callable[[str], None] = logger.info,
    what: str = "kernels",
) -> int:
    """Compile what is not known to be compiled; returns how many variants were given to the children.

    A variant may also be given as `variant`'s arguments, or with options as a fourth (more constants).
    Never fails: what a child cannot compile shows when it is launched, and without a folder to write to kernels are
    compiled one by one as they come. Does nothing for other devices than CUDA.
    """
    if device is not None and device.type != "cuda":
        return 0
    given = (one if isinstance(one, Variant) else _from_tuple(*one) for one in variants)
    unique = {one.key: one for one in given}
    try:
        return _build_missing(unique, _capability(device), progress, what)
    except OSError as error:
        logger.warning("The %s cannot be compiled ahead: %s", what, error)
        return 0


def _build_missing(
    unique: dict[str, Variant], capability: int, progress: Callable[[str], None], what: str
) -> int:
    with _alone(_cache_folder() / "cosyvoice-built") as folder:
        marks = {key: folder / _digest(one, capability) for key, one in unique.items()}
        missing = [one for key, one in unique.items() if not marks[key].exists()]
        if not missing:
            return 0
        started = time.perf_counter()
        count = max(1, min(MOST_PROCESSES, os.cpu_count() or 1, len(missing)))
        progress(f"compiling {len(missing)} {what} in {count} processes (the first start only)")
        shares = [missing[part::count] for part in range(count)]
        failed = 0
        for share, bad in zip(shares, _compile(shares, capability)):
            failed += bad
            for one in () if bad else share:
                marks[one.key].touch()
    progress(f"compiled {len(missing)} {what} in {time.perf_counter() - started:.0f} s")
    if failed:
        logger.warning("%d of %d %s could not be compiled ahead.", failed, len(missing), what)
    return len(missing)


# ----------------------------------------------------------------------------------------------------- parent
def _from_tuple(
    kernel: Any,
    arguments: Sequence[object],
    constants: dict[str, object],
    options: dict[str, object] | None = None,
) -> Variant:
    return variant(kernel, arguments, {**constants, **(options or {})})


def _cache_folder() -> Path:
    return Path(os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache")


@contextmanager
def _alone(folder: Path) -> Iterator[Path]:
    """Other workers of this machine wait, and then find what this one has made."""
    import fcntl

    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def _capability(device: torch.device | None) -> int:
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def _digest(one: Variant, capability: int) -> str:
    import triton

    kernel = getattr(importlib.import_module(one.module), one.name)
    # The cache key is of the kernel's source and of all that it calls.
    parts = (triton.__version__, str(capability), kernel.cache_key, one.key)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]


def _compile(shares: Sequence[list[Variant]], capability: int) -> list[int]:
    """How many variants of each share failed."""
    command = [sys.executable, "-m", "inference.runtime.kernel_build"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}
    environment |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    environment.pop("TRITON_INTERPRET", None)
    root = Path(__file__).resolve().parents[2]
    with _children(command, environment, root, len(shares)) as children:
        for child, share in zip(children, shares):
            with suppress(OSError):  # one that died is found below
                if child.stdin is not None:
                    child.stdin.write(pickle.dumps((capability, share)))
                    child.stdin.close()
        deadline = time.monotonic() + _LIMIT
        return [_wait(child, len(share), deadline) for child, share in zip(children, shares)]


def _wait(child: subprocess.Popen[bytes], count: int, deadline: float) -> int:
    """A child's exit status is what failed; any other death counts for all."""
    try:
        status = child.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return count
    return status if 0 <= status <= count else count


@contextmanager
def _children(
    command: list[str], environment: dict[str, str], folder: Path, count: int
) -> Iterator[list[subprocess.Popen[bytes]]]:
    children: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            children.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=environment,
                    cwd=folder,
                )
            )
        yield children
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
                child.wait()


# ------------------------------------------------------------------------------------------------------ child
class _Target:
    """Stands for a driver: kernels can be compiled, not launched."""

    def __init__(self, capability: int) -> None:
        from triton.backends.compiler import GPUTarget

        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0


def set_target(capability: int) -> None:
    """Kernels are compiled for a GPU that need not be there: replaces Triton's driver in this process."""
    from triton.runtime import driver

    driver.set_active(_Target(capability))


def compile_here(variants: Sequence[Variant], capability: int) -> int:
    """Compile for a GPU that need not be there; returns how many failed. Replaces Triton's driver in this process."""
    set_target(capability)
    failed = 0
    for one in variants:
        try:
            kernel = getattr(importlib.import_module(one.module), one.name)
            constants = {name: stand_in(value) for name, value in one.constants}
            kernel.warmup(*(stand_in(value) for value in one.arguments), grid=(1,), **constants)
        except Exception:  # whatever the compiler raises
            failed += 1
    return failed


def main() -> int:
    """A child: the share from standard input; the exit status says how many of it failed."""
    torch.set_num_threads(1)
    capability, variants = pickle.loads(sys.stdin.buffer.read())
    return min(200, compile_here(variants, capability))


if __name__ == "__main__":
    # Under its real name, because the share was pickled with it.
    sys.exit(importlib.import_module("inference.runtime.kernel_build").main())

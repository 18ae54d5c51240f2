"""Triton kernels compiled ahead, in parallel processes, before anything waits for them.

`recorded` runs launching code without launching and says which kernels it would need (`Variant`); `build` has child
processes compile them for this GPU. What they make lies in Triton's cache on disk, where the first launch finds it;
marks beside it say which variants are there, so that a later start does not look again.

A child is `python -m inference.runtime.kernel_build` with its share, pickled, as input; its last word says how many of
it failed, and why the first one did. It makes no CUDA context.
"""

from __future__ import annotations

import hashlib
import importlib
import logging
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch

from inference.devices import cpu_count, free_memory
from inference.runtime.kernel_variant import Blocks, Pointer, Variant, recorded, stand_in, variant

__all__ = ["Blocks", "Pointer", "Variant", "build", "compile_here", "recorded", "set_target", "variant"]

logger = logging.getLogger(__name__)

MOST_PROCESSES = 12
_CHILD_BYTES = 700 * 2**20  # what a child takes with a CUDA build of torch
_LIMIT = 150.0  # seconds; what is not compiled by then is compiled when it is needed
_LONGEST = 300  # characters of a reason
_LAST_WORD = "kernel_build:"  # begins the line of a child's output that is its report


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
        count = _process_count(len(missing))
        progress(f"compiling {len(missing)} {what} in {count} processes (the first start only)")
        shares = [missing[part::count] for part in range(count)]
        outcomes = _compile(shares, capability, folder)
        for share, outcome in zip(shares, outcomes):
            for one in () if outcome.failed else share:
                marks[one.key].touch()
    progress(f"compiled {len(missing)} {what} in {time.perf_counter() - started:.0f} s")
    failed = sum(outcome.failed for outcome in outcomes)
    if failed:
        reason = next(outcome.reason for outcome in outcomes if outcome.failed)
        logger.warning("%d of %d %s could not be compiled ahead: %s", failed, len(missing), what, reason)
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
    """Triton's own, so that the marks lie beside the kernels and vanish with them."""
    try:
        from triton import knobs

        found = knobs.cache.dir
    except (ImportError, AttributeError):  # Triton before 3.4, or none
        found = os.environ.get("TRITON_CACHE_DIR")
    home = Path(os.environ.get("TRITON_HOME") or Path.home())
    return Path(found or home / ".triton" / "cache").absolute()


def _process_count(missing: int) -> int:
    """As many as there are cores for this process and memory for the children, which load torch each."""
    room = _available_memory() // _CHILD_BYTES
    return max(1, min(MOST_PROCESSES, cpu_count(), room, missing))


def _available_memory() -> int:
    """What Linux could free counts too: a model that was just read fills the memory with copies of its files."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, IndexError, StopIteration):
        return free_memory(torch.device("cpu"))


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


@dataclass(frozen=True)
class Outcome:
    """What became of a child's share: how many failed, and the first error in a line."""

    failed: int
    reason: str = ""


def _compile(shares: Sequence[list[Variant]], capability: int, folder: Path) -> list[Outcome]:
    """One child for each share. `folder` (Triton's cache, or one within it) holds what they are told and say."""
    with _children(shares, capability, folder) as children:
        deadline = time.monotonic() + _LIMIT
        return [_wait(child, said, len(share), deadline) for (child, said), share in zip(children, shares)]


def _wait(child: subprocess.Popen[bytes], said: IO[bytes], count: int, deadline: float) -> Outcome:
    """A child that ends without a report, or not in time, has failed with all of its share."""
    try:
        status = child.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return Outcome(count, f"not done after {_LIMIT:.0f} s")
    said.seek(0)
    lines = [line.strip() for line in said.read().decode(errors="replace").splitlines() if line.strip()]
    reports = [line.removeprefix(_LAST_WORD).split() for line in lines if line.startswith(_LAST_WORD)]
    if status == 0 and reports:
        failed, *reason = reports[-1]
        return Outcome(int(failed), " ".join(reason)[:_LONGEST])
    last = lines[-1] if lines else "no word"
    return Outcome(count, f"a process ended with status {status}: {last[:_LONGEST]}")


@contextmanager
def _children(
    shares: Sequence[list[Variant]], capability: int, folder: Path
) -> Iterator[list[tuple[subprocess.Popen[bytes], IO[bytes]]]]:
    """Each with the file that it writes to. Files and no pipes: a full pipe would hold up who fills it."""
    command = [sys.executable, "-m", "inference.runtime.kernel_build"]
    environment = _environment()
    root = Path(__file__).resolve().parents[2]
    children: list[tuple[subprocess.Popen[bytes], IO[bytes]]] = []
    with ExitStack() as files:
        try:
            for share in shares:
                task = files.enter_context(tempfile.TemporaryFile(dir=folder))
                said = files.enter_context(tempfile.TemporaryFile(dir=folder))
                task.write(pickle.dumps((capability, share)))
                task.seek(0)
                child = subprocess.Popen(
                    command, stdin=task, stdout=said, stderr=said, env=environment, cwd=root
                )
                children.append((child, said))
            yield children
        finally:
            for child, _ in children:
                if child.poll() is None:
                    child.kill()
                    child.wait()


def _environment() -> dict[str, str]:
    """A child's: this program's modules and cache, no GPU, one thread, and no interpreting."""
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}
    found |= {"TRITON_CACHE_DIR": str(_cache_folder()), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    found.pop("TRITON_INTERPRET", None)
    return found


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


def compile_here(variants: Sequence[Variant], capability: int) -> list[str]:
    """Compile for a GPU that need not be there; the errors, a line each. Replaces Triton's driver in this process."""
    set_target(capability)
    errors = []
    for one in variants:
        try:
            kernel = getattr(importlib.import_module(one.module), one.name)
            constants = {name: stand_in(value) for name, value in one.constants}
            kernel.warmup(*(stand_in(value) for value in one.arguments), grid=(1,), **constants)
        except Exception as error:  # whatever the compiler raises
            errors.append(f"{one.name}: {_line(error)}")
    return errors


def _line(error: BaseException) -> str:
    """What is at the bottom of an error: the compiler's own ones begin with a listing of the kernel."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = getattr(error, "error_message", None) or str(error)
    return f"{type(error).__name__}: {text.strip()}".splitlines()[0].rstrip(": ")


def main() -> None:
    """A child: the share from standard input, the report to standard output (see `_wait`)."""
    torch.set_num_threads(1)
    capability, variants = pickle.loads(sys.stdin.buffer.read())
    errors = compile_here(variants, capability)
    print("", _LAST_WORD + f" {len(errors)} {errors[0] if errors else ''}", sep="\n", flush=True)


if __name__ == "__main__":
    # Under its real name, because the share was pickled with it.
    importlib.import_module("inference.runtime.kernel_build").main()

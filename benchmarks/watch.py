"""How busy the device is and how much memory is taken, sampled while something runs."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from benchmarks.machine import resident_mb
from webui.nvml import Nvml, NvmlError

LAG = 0.3  # seconds
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


class Card:
    """The driver's own counters of one GPU. Methods raise `NvmlError` for what it does not tell."""

    def __init__(self, index: int) -> None:
        self._nvml = Nvml()
        self._handle = self._nvml.handle(index)

    def busy_percent(self) -> float:
        """Share of the last sample period (1/6 s to 1 s) in which a kernel ran."""
        return 100 * self._nvml.utilisation(self._handle)

    def memory(self) -> tuple[int, int]:
        """(used, free) bytes of the whole device, all processes."""
        used, total = self._nvml.memory(self._handle)
        return used, total - used


def open_card(device: str) -> Card | None:
    """The counters of "cuda:N" (N as `CUDA_VISIBLE_DEVICES` has it), None for other devices and without a driver."""
    if not device.startswith("cuda"):
        return None
    number = int(device.partition(":")[2] or 0)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if number < len(visible) and visible[number].isdigit():
        number = int(visible[number])
    try:
        return Card(number)
    except NvmlError:
        return None


@dataclass(frozen=True)
class Tree:
    """A process and all that it started."""

    processes: int
    threads: int
    files: int  # open file descriptors
    resident_mb: float
    cpu_seconds: float


def family(pid: int | None = None) -> list[int]:
    """A process (this one by default) and all its descendants; needs /proc."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            parents[int(entry.name)] = int(fields[1])
    members = [pid or os.getpid()]
    for member in members:  # grows while it is read: children of children
        members += [child for child, parent in parents.items() if parent == member]
    return members


def left_over() -> int:
    """Processes that this one started and that are still there; the tracker that Python itself keeps is none."""
    return sum(b"resource_tracker" not in _command(member) for member in family()[1:])


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def process_tree(pid: int | None = None) -> Tree:
    """Sums over a `family`."""
    members = family(pid)
    threads = files = 0
    resident = cpu = 0.0
    for member in members:
        fields = _stat(member)
        if fields:
            cpu += (int(fields[11]) + int(fields[12])) / _CLOCK_TICKS
            threads += int(fields[17])
            resident += resident_mb(member)
            files += _open_files(member)
    return Tree(len(members), threads, files, resident, cpu)


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on; [] for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _open_files(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


class Watch:
    """Context manager: samples `devices` in a thread of its own until the block ends; then `report` tells.

    The driver's busy share is of the time just before each sample: those of the first `LAG` seconds do not count. Of
    several cards it is the mean; memory is their sum.
    """

    def __init__(self, *devices: str, interval: float = 0.1) -> None:
        self._devices, self._interval = devices, interval
        self._busy: list[float] = []
        self._device_mb: list[float] = []
        self._resident_mb: list[float] = []

    def __enter__(self) -> Watch:
        self._cards = [card for card in map(open_card, self._devices) if card]
        self._stop = threading.Event()
        self._began = time.perf_counter()
        self._cpu = process_tree().cpu_seconds
        self._thread = threading.Thread(target=self._sample, name="watch", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._elapsed = time.perf_counter() - self._began
        self._cpu = process_tree().cpu_seconds - self._cpu

    def _sample(self) -> None:
        turn = 0
        while not self._stop.wait(self._interval):
            if self._cards:
                self._look()
            if turn % 10 == 0:  # reading /proc costs more
                self._resident_mb.append(process_tree().resident_mb)
            turn += 1

    def _look(self) -> None:
        with suppress(NvmlError):
            self._device_mb.append(sum(card.memory()[0] for card in self._cards) / 1e6)
            if time.perf_counter() - self._began > LAG:
                self._busy.append(sum(card.busy_percent() for card in self._cards) / len(self._cards))

    def report(self) -> dict[str, float | None]:
        """`busy`: the device's share of time with work, 0 to 1 (on the CPU: of all cores); memory peaks in MB."""
        cores = os.cpu_count() or 1
        busy: float | None
        if self._cards:
            busy = sum(self._busy) / len(self._busy) / 100 if self._busy else None
        else:
            busy = self._cpu / (cores * self._elapsed)
        return {
            "busy": busy,
            "cpu_cores_used": self._cpu / self._elapsed,
            "device_peak_mb": max(self._device_mb, default=None),
            "resident_peak_mb": max(self._resident_mb, default=None),
        }

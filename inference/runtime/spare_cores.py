"""Cores that nobody works on at the moment: what is done in two halves then takes half the time.

A piece of work runs on one thread of its own (`SpareCores.working`). Inside, `both` does two things one after the
other, or at the same time where a core is free. Each is the same arithmetic on one thread either way, so that the bits
do not tell.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

FirstT = TypeVar("FirstT")
SecondT = TypeVar("SecondT")


class _Here(threading.local):
    """What this thread works for."""

    cores: SpareCores | None = None
    alone = False  # PyTorch's own threads are set to one


_HERE = _Here()


class SpareCores:
    """Who works on `count` cores. Used from any thread."""

    def __init__(self, count: int) -> None:
        self.count = self._free = count
        self._lock = threading.Lock()
        self._helpers = ThreadPoolExecutor(max(1, count - 1), "spare-core", initializer=_one_thread)

    @property
    def free(self) -> int:
        """Cores that nobody works on."""
        return max(0, self._free)

    @contextmanager
    def working(self) -> Iterator[None]:
        """The block is work for one core, on one thread."""
        before, _HERE.cores = _HERE.cores, self
        _one_thread()
        self._take(True)
        try:
            yield
        finally:
            self._give()
            _HERE.cores = before

    def both(self, first: Callable[[], FirstT], second: Callable[[], SecondT]) -> tuple[FirstT, SecondT]:
        """See `both`."""
        if not self._take(False):
            return first(), second()
        elsewhere = self._helpers.submit(self._help, second, torch.is_inference_mode_enabled())
        try:
            here = first()
        finally:  # what it works on must not change while it does
            there = elsewhere.result()
        return here, there

    def _help(self, work: Callable[[], SecondT], inference: bool) -> SecondT:
        try:
            with torch.inference_mode(inference):
                return work()
        finally:
            self._give()

    def _take(self, always: bool) -> bool:
        with self._lock:
            if not always and self._free <= 0:
                return False
            self._free -= 1
            return True

    def _give(self) -> None:
        with self._lock:
            self._free += 1


def both(first: Callable[[], FirstT], second: Callable[[], SecondT]) -> tuple[FirstT, SecondT]:
    """The results of two pieces of work that do not depend on each other; errors of either get out."""
    cores = _HERE.cores
    return (first(), second()) if cores is None else cores.both(first, second)


def _one_thread() -> None:
    """A thread starts with as many of PyTorch's own as there are cores."""
    if not _HERE.alone:
        torch.set_num_threads(1)
        _HERE.alone = True

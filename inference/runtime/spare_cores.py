"""Cores that nobody works on at the moment: what is done in two halves then takes half the time.

A piece of work runs on one thread of its own (`SpareCores.working`). Inside, `each` does some things one after the
other, or at the same time where cores are free. Each is the same arithmetic on one thread either way, so that the bits
do not tell.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

import torch

ResultT = TypeVar("ResultT")


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

    def each(self, works: Sequence[Callable[[], ResultT]]) -> list[ResultT]:
        """See `each`."""
        waiting = iter(enumerate(works))
        found: dict[int, ResultT] = {}

        def some() -> None:
            for place, work in waiting:  # whoever is free takes the next
                found[place] = work()

        helped: list[Future[None]] = []
        while len(helped) < len(works) - 1 and self._take(False):
            helped.append(self._helpers.submit(self._help, some, torch.is_inference_mode_enabled()))
        try:
            some()
        finally:  # what they work on must not change while they do
            wait(helped)
        for future in helped:
            future.result()
        return [found[place] for place in range(len(works))]

    def _help(self, work: Callable[[], None], inference: bool) -> None:
        try:
            with torch.inference_mode(inference):
                work()
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


def each(works: Sequence[Callable[[], ResultT]]) -> list[ResultT]:
    """The results of pieces of work that do not depend on each other; errors of any get out."""
    cores = _HERE.cores
    return [work() for work in works] if cores is None else cores.each(works)


def _one_thread() -> None:
    """A thread starts with as many of PyTorch's own as there are cores."""
    if not _HERE.alone:
        torch.set_num_threads(1)
        _HERE.alone = True

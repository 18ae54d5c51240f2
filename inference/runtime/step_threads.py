"""How many of PyTorch's threads a decode step on the CPU takes: as many as there are idle cores, where that is faster.

A step mostly reads weights, keys and values, which two cores do 1.4 times as fast as one (bundled model, 8 rows: 8.3 ms
by one thread, 5.7 by two). While all cores make sound it keeps to one thread. Bits must not tell: only those numbers
of threads are used with which a trial step gave the same ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from inference.runtime.spare_cores import SpareCores

_COUNTS = (8, 4, 2)
_LOOK_AGAIN = 16  # steps, of which one tries what seemed slower: other programs come and go
_NEW = 0.3  # share of the newest step in the mean


class StepThreads:
    """The threads of steps that are taken one after another, on a thread of their own. `cores` None: always one."""

    def __init__(self, cores: SpareCores | None) -> None:
        self._cores = cores
        self._sound: tuple[int, ...] = ()
        self._seconds: dict[int, float] = {}
        self._turn = 0

    def try_out(self, step: Callable[[], Tensor]) -> None:
        """Find out with which numbers of threads `step` gives the bits that it gives on one."""
        if self._cores is None:
            return
        expected = step()
        sound = []
        for count in _COUNTS:
            if count <= self._cores.count:
                with _threads(count):
                    if torch.equal(step(), expected):
                        sound.append(count)
        self._sound = tuple(sound)

    @contextmanager
    def step(self) -> Iterator[None]:
        """The block is one step."""
        count = self._choose()
        began = time.perf_counter()
        with _threads(count):
            yield
        seconds = time.perf_counter() - began
        self._seconds[count] = (1 - _NEW) * self._seconds.get(count, seconds) + _NEW * seconds

    def _choose(self) -> int:
        idle = 0 if self._cores is None else self._cores.free
        many = next((count for count in self._sound if count <= idle), 1)
        if many == 1:
            return 1
        self._turn += 1
        if many not in self._seconds:
            return many
        slower = self._seconds[many] > self._seconds.get(1, float("inf"))
        return 1 if slower != (self._turn % _LOOK_AGAIN == 0) else many


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Of this thread's operations, which otherwise take one."""
    if count == 1:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(1)

"""Steps of fixed shape, captured once and replayed: CUDA graphs, and which of them serves a given need."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, Protocol

import torch

from inference.runtime.graph_pool import record

logger = logging.getLogger(__name__)

# Only one thread of a process captures at a time: captures of several would see each other's allocations.
CAPTURE_LOCK = threading.Lock()
# A captured shape may stand in for a smaller one while it does at most this much more work.
_TOLERATED_WASTE = 4.0


class Shape(NamedTuple):
    """Rows, and positions a row: cached ones to attend over, or new ones of a prompt."""

    rows: int
    size: int

    def covers(self, other: Shape) -> bool:
        return self.rows >= other.rows and self.size >= other.size

    @property
    def area(self) -> int:
        return self.rows * self.size


def batch_buckets(limit: int) -> tuple[int, ...]:
    """1, 2, 4, … and `limit` itself."""
    buckets = [1 << power for power in range(limit.bit_length()) if 1 << power < limit]
    return (*buckets, limit)


def prefix_buckets(context: int) -> tuple[int, ...]:
    """Numbers of cached positions to attend over: 256, 512, 768, 1024, 1536, … and `context` itself."""
    sizes = [256, 512, 768]
    while sizes[-1] < context:
        sizes.append(sizes[-2] * 2)
    return (*(size for size in sizes if size < context), context)


def prompt_buckets(limit: int) -> tuple[int, ...]:
    """Padded lengths of prompts, up to `limit`: about a quarter of padding at most."""
    sizes = [64, 96, 128, 192]
    while sizes[-1] < limit:
        sizes.append(sizes[-2] * 2)
    return (*(size for size in sizes if size < limit), limit)


def bucket(needed: int, buckets: Sequence[int]) -> int:
    """The smallest bucket that holds `needed`; buckets ascend, and the last one holds everything."""
    return next(size for size in buckets if size >= needed)


def cheapest_cover(
    wanted: Shape, available: Iterable[Shape], tolerated: float = _TOLERATED_WASTE
) -> Shape | None:
    """The least available shape that covers `wanted`, None if all would be too wasteful."""
    fitting = [shape for shape in available if shape.covers(wanted)]
    best = min(fitting, key=lambda shape: (shape.area, shape), default=None)
    return best if best is not None and best.area <= tolerated * wanted.area else None


class Recording(Protocol):
    """Something that can be done again."""

    def replay(self) -> None: ...


class CallRecording:
    """Stands for a captured graph where there is no CUDA: just calls the step again."""

    def __init__(self, body: Callable[[], None]) -> None:
        self.replay = body


class StepGraphs:
    """Captured steps by kind and shape, sharing one memory pool.

    Steps write their results to buffers made beforehand and run one after another on one stream, so that none can
    disturb what another one left in the pool.
    """

    def __init__(self, device: torch.device, stream: torch.cuda.Stream | None, enabled: bool) -> None:
        self.enabled = enabled
        self._device, self._stream = device, stream
        self._pool = torch.cuda.graph_pool_handle() if enabled and device.type == "cuda" else None
        self._recordings: dict[str, dict[Shape, Recording]] = {}
        self._choices: dict[tuple[str, Shape, float], Shape | None] = {}  # a search in each step would add up

    def shapes(self, kind: str) -> list[Shape]:
        return list(self._recordings.get(kind, ()))

    def best(self, kind: str, wanted: Shape, tolerated: float = _TOLERATED_WASTE) -> Shape | None:
        """The captured shape to use for `wanted`, None if the step is to run uncaptured."""
        if not self.enabled:
            return None
        asked = (kind, wanted, tolerated)
        if asked not in self._choices:
            self._choices[asked] = cheapest_cover(wanted, self.shapes(kind), tolerated)
        return self._choices[asked]

    def replay(self, kind: str, shape: Shape) -> None:
        self._recordings[kind][shape].replay()

    def capture(self, kind: str, shape: Shape, body: Callable[[], None]) -> bool:
        """Run `body` once and record it; whether steps are captured at all.

        A shape that there is no memory for runs uncaptured. Whatever else fails switches captured steps off, loudly,
        for good.
        """
        if not self.enabled or shape in self._recordings.setdefault(kind, {}):
            return self.enabled
        self._choices.clear()
        try:
            self._recordings[kind][shape] = self._record(body)
        except torch.OutOfMemoryError as error:
            logger.warning("There is too little memory to capture a %s step of %s: %s", kind, shape, error)
        except (RuntimeError, NotImplementedError):
            self.enabled = False
            self._recordings.clear()
            logger.exception(
                "Capturing a %s step of %s failed; steps run uncaptured, more slowly.", kind, shape
            )
        return self.enabled

    def _record(self, body: Callable[[], None]) -> Recording:
        if self._stream is None:
            body()
            return CallRecording(body)
        with CAPTURE_LOCK, torch.cuda.stream(self._stream):
            body()  # loads kernels and makes workspaces, which a capture cannot
            self._stream.synchronize()
            return record(body, self._pool, self._device)


def on_stream(stream: torch.cuda.Stream | None) -> AbstractContextManager[object]:
    """Work inside goes to `stream`; nothing changes without one."""
    return nullcontext() if stream is None else torch.cuda.stream(stream)

"""Small parts of a token-to-wave batch: what it costs, how it is cut, when its stages ended, its way to the host."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from inference.runtime.vocoder_pack import VocoderJob
from inference.runtime.vocoder_stream import OVERLAP_FRAMES
from inference.runtime.wave_stream import Work

# Vocoder frames of one row: 80 s of sound, 0.76 GB of activations at the public size.
VOCODER_FRAMES = 4096
_FLOW_FRAMES = 3  # of a batch, for one of a vocoder row: more needs more rows, but a third of the memory


class Marks:
    """Times between points of a stream of work, without waiting at each of them."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._names: list[str] = []
        self._events: list[torch.cuda.Event] = []
        self._times: list[float] = []
        self._near: torch.cuda.Event | None = None
        self._point()

    def add(self, name: str) -> None:
        """What came since the last point is called `name`."""
        self._names.append(name)
        self._point()

    def wait(self) -> dict[str, float]:
        """Seconds of each part, once all work up to the last point is done."""
        if not self._cuda:
            parts = zip(self._times, self._times[1:])
            return dict(zip(self._names, (second - first for first, second in parts)))
        self._events[-1].synchronize()
        pairs = zip(self._events, self._events[1:])
        return dict(zip(self._names, (first.elapsed_time(second) / 1000.0 for first, second in pairs)))

    def near(self) -> None:
        """The device has come so far that more work should be got ready, unless this is called again."""
        if self._cuda:
            self._near = torch.cuda.Event(blocking=True)
            self._near.record()

    def wait_near(self) -> None:
        """Until the point of the last `near`."""
        if self._near is not None:
            self._near.synchronize()

    def _point(self) -> None:
        if self._cuda:
            self._events.append(torch.cuda.Event(enable_timing=True, blocking=True))
            self._events[-1].record()
        else:
            self._times.append(time.perf_counter())


def to_host(values: Tensor) -> Tensor:
    """On its way to the host; there once the stream has come so far."""
    if values.device.type != "cuda":
        return values
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return host.copy_(values, non_blocking=True)


def fits_row(job: VocoderJob) -> bool:
    """Whether the vocoder's rows can take the piece: something to do, and exactly eight frames of overlap."""
    if len(job.mel) == 0:
        return False
    known = job.state is None or job.state.mel.shape[2] == OVERLAP_FRAMES
    return known and (job.final or job.frames >= OVERLAP_FRAMES)


def vocoder_frames(max_batch_frames: int) -> int:
    """Frames of one vocoder row in a lane whose batches have so many frames of the flow model."""
    return max(1, min(VOCODER_FRAMES, max_batch_frames // _FLOW_FRAMES))


def vocoder_parts(works: Sequence[Work], items: int, most: int = VOCODER_FRAMES) -> list[list[Work]]:
    """Cut a batch into rows of at most `items` items and `most` new frames (longer only for a single item)."""
    parts: list[list[Work]] = []
    room = 0
    for work in works:
        frames = 0 if work.mel is None else len(work.mel)
        if not parts or frames > room or len(parts[-1]) == items:
            parts.append([])
            room = most
        parts[-1].append(work)
        room -= frames
    return parts

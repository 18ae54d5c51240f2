"""What a pool tells about itself, for health checks, metrics and people."""

from __future__ import annotations

from dataclasses import dataclass, field

from inference.protocol import WorkerStats


@dataclass(frozen=True)
class WorkerStatus:
    """One worker. `stage` is "starting", "loading", "warming up", "ready" or "" when there is no process."""

    name: str
    device: str
    pid: int
    alive: bool
    ready: bool
    draining: bool
    stage: str
    restarts: int
    live: int
    concurrency: int
    error: str  # why its last process ended, "" if none did
    stats: WorkerStats
    backends: dict[str, str] = field(default_factory=dict)  # part of the model → what runs it


@dataclass(frozen=True)
class PoolCounters:
    """Since the pool was started."""

    accepted: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    refused: int = 0
    retried: int = 0
    restarts: int = 0


@dataclass(frozen=True)
class PoolStatus:
    """`ready`: a worker is warm and takes requests. `waiting` and `live` count requests and clips to prepare."""

    ready: bool
    closing: bool
    waiting: int
    live: int
    queue_size: int
    workers: tuple[WorkerStatus, ...]
    counters: PoolCounters = field(default_factory=PoolCounters)

"""Prometheus metrics of the studio, whichever front a request came by.

    metrics = Metrics(pool.status)
    pool = MeteredPool(pool, metrics, front="page")      # what the page, the API and jobs speak through

What workers tell in their heartbeats is read when the metrics are.
"""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest

from inference.pool_status import PoolStatus
from inference.types import SynthesisError
from webui.gpu import Gpus
from webui.metered_pool import MeteredPool, MeteredSubmission
from webui.pool_metrics import GpuCollector, PoolCollector

_FIRST = (0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)
_WHOLE = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)
_QUEUE = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_RTF = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0)
_LATEST = 200  # requests of which the Monitor tab shows quantiles
_LATEST_ERRORS = 20


@dataclass(frozen=True)
class LatestError:
    """One of the last things that went wrong. `moment`: seconds since the epoch."""

    moment: float
    front: str
    code: str
    message: str
    request_id: str


class Metrics:
    """All metrics, and the last errors and latencies for the Monitor tab."""

    def __init__(self, status: Callable[[], PoolStatus], gpus: Gpus | None = None) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        labels = ("front", "mode")
        self.requests = Counter(
            "cosyvoice_requests",
            "Requests that ended, by outcome: finished, cancelled, refused or failed",
            (*labels, "outcome"),
            registry=registry,
        )
        self.errors = Counter(
            "cosyvoice_errors", "Requests refused or failed, by kind", ("front", "code"), registry=registry
        )
        self.first_chunk = Histogram(
            "cosyvoice_first_chunk_seconds",
            "From the request to its first sound",
            labels,
            buckets=_FIRST,
            registry=registry,
        )
        self.whole = Histogram(
            "cosyvoice_request_seconds",
            "From the request to its end",
            labels,
            buckets=_WHOLE,
            registry=registry,
        )
        self.queue_wait = Histogram(
            "cosyvoice_queue_wait_seconds",
            "Waiting for a place, a thread and a slot",
            ("front",),
            buckets=_QUEUE,
            registry=registry,
        )
        self.real_time_factor = Histogram(
            "cosyvoice_real_time_factor",
            "Seconds from the request to its end for each second of sound",
            ("front",),
            buckets=_RTF,
            registry=registry,
        )
        self.audio = Counter("cosyvoice_audio_seconds", "Sound that was made", labels, registry=registry)
        self.characters = Counter(
            "cosyvoice_characters", "Characters of text that were asked for", labels, registry=registry
        )
        self.http = Counter(
            "cosyvoice_http_requests", "Answers of the API", ("route", "method", "status"), registry=registry
        )
        self.latest_first: deque[float] = deque(maxlen=_LATEST)
        self.latest_whole: deque[float] = deque(maxlen=_LATEST)
        self.latest_errors: deque[LatestError] = deque(maxlen=_LATEST_ERRORS)
        self.outcomes: Tally[str] = Tally()
        self.gpus = gpus or Gpus()
        self.status = status
        registry.register(PoolCollector(status))
        registry.register(GpuCollector(self.gpus))
        ProcessCollector(registry=registry)

    def text(self) -> bytes:
        """Everything, in Prometheus' text format."""
        return generate_latest(self.registry)

    def retry_after(self) -> float:
        """Seconds after which a refused request has a fair chance."""
        status = self.status()
        places = sum(worker.concurrency for worker in status.workers if worker.ready)
        if not places:
            return 5.0
        whole = sorted(self.latest_whole)
        usual = whole[len(whole) // 2] if whole else 2.0
        return min(30.0, max(1.0, usual * (1 + status.waiting) / places))

    def note_error(self, front: str, error: BaseException, request_id: str = "") -> None:
        """Count an error and keep it for the Monitor tab."""
        code = error.code if isinstance(error, SynthesisError) else "internal_error"
        message = error.message if isinstance(error, SynthesisError) else type(error).__name__
        self.errors.labels(front, code).inc()
        self.latest_errors.append(LatestError(time.time(), front, code, message, request_id))


__all__ = ["LatestError", "MeteredPool", "MeteredSubmission", "Metrics"]

"""The pool's and the GPUs' own numbers as Prometheus metrics, read when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from inference.pool_status import PoolStatus, WorkerStatus
from webui.gpu import Gpus

# name: (help, value of a worker)
_WORKER_GAUGES: dict[str, tuple[str, Callable[[WorkerStatus], float]]] = {
    "cosyvoice_worker_up": ("Whether the worker takes requests", lambda worker: float(worker.ready)),
    "cosyvoice_worker_live_requests": ("Requests being served", lambda worker: worker.live),
    "cosyvoice_worker_places": ("Requests that can be served at once", lambda worker: worker.concurrency),
    "cosyvoice_worker_slots": ("Slots of the language model", lambda worker: worker.stats.slots),
    "cosyvoice_worker_slots_used": ("Slots in use", lambda worker: worker.stats.drawing),
    "cosyvoice_worker_segments_waiting": (
        "Segments that wait for a slot",
        lambda worker: worker.stats.waiting,
    ),
    "cosyvoice_worker_speech_busy_ratio": (
        "Share of the last seconds that the language model worked",
        lambda worker: worker.stats.speech_busy,
    ),
    "cosyvoice_worker_wave_busy_ratio": (
        "Share of the last seconds that flow and vocoder worked",
        lambda worker: worker.stats.wave_busy,
    ),
    "cosyvoice_worker_stalled_seconds": (
        "Time that a lane has spent in its present step",
        lambda worker: worker.stats.stalled,
    ),
    "cosyvoice_worker_memory_bytes": ("Memory of the process", lambda worker: worker.stats.memory_bytes),
    "cosyvoice_worker_device_memory_bytes": (
        "Memory allocated on the device",
        lambda worker: worker.stats.device_bytes,
    ),
    "cosyvoice_worker_lane_memory_bytes": (
        "Memory set aside by the lanes",
        lambda worker: worker.stats.lane_bytes,
    ),
}
_WORKER_COUNTERS: dict[str, tuple[str, Callable[[WorkerStatus], float]]] = {
    "cosyvoice_worker_restarts": ("Times the worker was started again", lambda worker: worker.restarts),
    "cosyvoice_worker_backend_failures": (
        "Backends of flow and vocoder that were given up for another one",
        lambda worker: worker.stats.backend_failures,
    ),
    "cosyvoice_worker_decode_steps": (
        "Steps of the language model",
        lambda worker: worker.stats.speech_steps,
    ),
    "cosyvoice_worker_decode_rows": (
        "Segments served by those steps: rows per step is the batch size",
        lambda worker: worker.stats.speech_rows,
    ),
    "cosyvoice_worker_wave_batches": (
        "Batches of flow and vocoder",
        lambda worker: worker.stats.wave_batches,
    ),
    "cosyvoice_worker_wave_items": (
        "Items in those batches: items per batch is the batch size",
        lambda worker: worker.stats.wave_items,
    ),
    "cosyvoice_worker_voice_cache_hits": (
        "Reference clips that were known already",
        lambda worker: worker.stats.voice_hits,
    ),
    "cosyvoice_worker_voice_cache_misses": (
        "Reference clips that had to be prepared",
        lambda worker: worker.stats.voice_misses,
    ),
    "cosyvoice_worker_audio_seconds": (
        "Sound that the worker made",
        lambda worker: worker.stats.audio_seconds,
    ),
}
_POOL_COUNTERS = ("accepted", "finished", "failed", "cancelled", "refused", "retried", "restarts")


class PoolCollector:
    """The pool's own numbers, read when they are asked for."""

    def __init__(self, status: Callable[[], PoolStatus]) -> None:
        self._status = status

    def collect(self) -> Iterable[Metric]:
        status = self._status()
        yield GaugeMetricFamily("cosyvoice_ready", "Whether some worker takes requests", value=status.ready)
        yield GaugeMetricFamily(
            "cosyvoice_queue_length", "Requests that wait for a place", value=status.waiting
        )
        yield GaugeMetricFamily("cosyvoice_queue_limit", "Requests that may wait", value=status.queue_size)
        yield GaugeMetricFamily("cosyvoice_live_requests", "Requests being served", value=status.live)
        for name in _POOL_COUNTERS:
            value = getattr(status.counters, name)
            yield CounterMetricFamily(f"cosyvoice_pool_{name}", f"Requests (workers): {name}", value=value)
        yield from self._of_workers(status.workers)

    @staticmethod
    def _of_workers(workers: tuple[WorkerStatus, ...]) -> Iterable[Metric]:
        families: list[tuple[Any, dict[str, tuple[str, Callable[[WorkerStatus], float]]]]] = [
            (GaugeMetricFamily, _WORKER_GAUGES),
            (CounterMetricFamily, _WORKER_COUNTERS),
        ]
        for kind, table in families:
            for name, (help_text, value) in table.items():
                family = kind(name, help_text, labels=("worker", "device"))
                for worker in workers:
                    family.add_metric((worker.name, worker.device), value(worker))
                yield family
        backends = GaugeMetricFamily(
            "cosyvoice_worker_backend_info",
            "What runs each part of the model",
            labels=("worker", "part", "backend"),
        )
        for worker in workers:
            for part, backend in worker.backends.items():
                backends.add_metric((worker.name, part, backend), 1)
        yield backends


class GpuCollector:
    """What NVML tells; no samples without it."""

    def __init__(self, gpus: Gpus) -> None:
        self._gpus = gpus

    def collect(self) -> Iterable[Metric]:
        found = self._gpus.read()
        for field, name, help_text in (
            ("utilisation", "cosyvoice_gpu_utilisation_ratio", "Share of the time that the GPU worked"),
            ("memory_used", "cosyvoice_gpu_memory_used_bytes", "GPU memory in use"),
            ("memory_total", "cosyvoice_gpu_memory_bytes", "GPU memory"),
            ("power", "cosyvoice_gpu_power_watts", "Power that the GPU draws"),
            ("temperature", "cosyvoice_gpu_temperature_celsius", "Temperature of the GPU"),
        ):
            family = GaugeMetricFamily(name, help_text, labels=("gpu", "name"))
            for gpu in found:
                family.add_metric((str(gpu.index), gpu.name), getattr(gpu, field))
            yield family

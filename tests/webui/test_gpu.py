"""GPU load, memory, power and temperature: from a library that says what we know, and from a real driver.

The gpu test needs no more than torch; what Prometheus is shown is looked at where its client is installed:

    python -m pytest -m gpu tests/webui/test_gpu.py
"""

from __future__ import annotations

import ctypes
import math
import time
from typing import Any

import pytest

from webui.gpu import Gpu, Gpus
from webui.nvml import Nvml, NvmlError

_NOT_SUPPORTED = 3


class Library:
    """One H200 that does not tell its power; as NVML's functions do, it writes to what it is pointed to."""

    def nvmlInit_v2(self) -> int:  # noqa: N802
        return 0

    def nvmlDeviceGetCount_v2(self, found: Any) -> int:  # noqa: N802
        found._obj.value = 1
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, found: Any) -> int:  # noqa: N802
        found._obj.value = 1000 + index.value
        return 0

    def nvmlDeviceGetName(self, handle: Any, found: Any, size: Any) -> int:  # noqa: N802
        assert handle.value == 1000 and size.value == ctypes.sizeof(found)
        found.value = b"NVIDIA H200"
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: Any, found: Any) -> int:  # noqa: N802
        found._obj.total, found._obj.free, found._obj.used = 9, 4, 5
        return 0

    def nvmlDeviceGetUtilizationRates(self, handle: Any, found: Any) -> int:  # noqa: N802
        found._obj.gpu, found._obj.memory = 75, 20
        return 0

    def nvmlDeviceGetPowerUsage(self, handle: Any, found: Any) -> int:  # noqa: N802
        return _NOT_SUPPORTED

    def nvmlDeviceGetTemperature(self, handle: Any, sensor: Any, found: Any) -> int:  # noqa: N802
        assert sensor.value == 0
        found._obj.value = 41
        return 0


@pytest.mark.unit
def test_what_the_library_tells_and_nan_for_what_it_does_not() -> None:
    (gpu,) = Gpus(lambda: Nvml(Library())).read()
    assert (gpu.index, gpu.name, gpu.utilisation) == (0, "NVIDIA H200", 0.75)
    assert (gpu.memory_used, gpu.memory_total, gpu.temperature) == (5.0, 9.0, 41.0)
    assert math.isnan(gpu.power)


@pytest.mark.unit
def test_without_a_driver_there_is_no_gpu_and_nobody_asks_again() -> None:
    asked = []

    def load() -> Nvml:
        asked.append(1)
        raise NvmlError("no driver")

    gpus = Gpus(load)
    assert gpus.read() == gpus.read() == []
    assert len(asked) == 1


@pytest.mark.unit
def test_a_driver_that_fails_later_is_no_error() -> None:
    library = Library()
    gpus = Gpus(lambda: Nvml(library))
    assert len(gpus.read()) == 1
    library.nvmlDeviceGetCount_v2 = lambda found: 999  # type: ignore[method-assign]
    assert gpus.read() == []


@pytest.mark.gpu
def test_a_real_gpu_tells_all() -> None:
    import torch

    busy = torch.randn(8192, 8192, device="cuda")
    for _ in range(120):  # some seconds of work, to be seen
        busy = torch.tanh(busy @ busy)
    time.sleep(1.2)  # the driver tells of the last second or less
    gpus = Gpus().read()
    torch.cuda.synchronize()
    taken = busy.numel() * busy.element_size()
    assert len(gpus) >= torch.cuda.device_count()
    name = torch.cuda.get_device_name()
    seen = [gpu for gpu in gpus if gpu.name in name and gpu.memory_used > taken]
    assert seen, gpus
    if "MIG" not in name:  # a slice of a GPU tells no utilisation
        assert any(gpu.utilisation > 0 for gpu in seen), gpus
    for gpu in seen:
        assert 2**30 < gpu.memory_used < gpu.memory_total < 2**40
        assert 20 < gpu.power < 2000 and 10 < gpu.temperature < 110
    _assert_shown_to_prometheus(seen)


def _assert_shown_to_prometheus(gpus: list[Gpu]) -> None:
    """What `/metrics` says of them, through the same collector."""
    try:
        from prometheus_client import CollectorRegistry
    except ImportError:
        return
    from webui.pool_metrics import GpuCollector

    registry = CollectorRegistry()
    registry.register(GpuCollector(Gpus()))
    for gpu in gpus:
        labels = {"gpu": str(gpu.index), "name": gpu.name}
        total = registry.get_sample_value("cosyvoice_gpu_memory_bytes", labels)
        power = registry.get_sample_value("cosyvoice_gpu_power_watts", labels)
        assert total == gpu.memory_total and power is not None and power > 20

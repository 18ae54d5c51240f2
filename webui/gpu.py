"""What NVIDIA's management library tells about the GPUs of this machine; nothing where there is none."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import Any

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Gpu:
    """One GPU now. `utilisation` 0 to 1, memory in bytes, power in watts, temperature in °C; NaN where unknown."""

    index: int
    name: str
    utilisation: float
    memory_used: float
    memory_total: float
    power: float
    temperature: float


class Gpus:
    """Reads all GPUs. The library is looked for at the first reading, once."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._looked = False
        self._lock = threading.Lock()

    def read(self) -> list[Gpu]:
        """All GPUs; empty without the library or a driver."""
        with self._lock:
            if not self._looked:
                self._looked, self._nvml = True, _load()
            if self._nvml is None:
                return []
            try:
                return [self._one(index) for index in range(self._nvml.nvmlDeviceGetCount())]
            except self._nvml.NVMLError as error:
                logger.warning("The GPUs cannot be read: %s", error)
                return []

    def _one(self, index: int) -> Gpu:
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        name = nvml.nvmlDeviceGetName(handle)
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        rates = self._ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        power = self._ask(nvml.nvmlDeviceGetPowerUsage, handle)
        temperature = self._ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
        unknown = float("nan")
        return Gpu(
            index=index,
            name=name.decode() if isinstance(name, bytes) else str(name),
            utilisation=rates.gpu / 100 if rates else unknown,
            memory_used=float(memory.used) if memory else unknown,
            memory_total=float(memory.total) if memory else unknown,
            power=power / 1000 if power is not None else unknown,
            temperature=float(temperature) if temperature is not None else unknown,
        )

    def _ask(self, question: Any, *arguments: Any) -> Any:
        """The answer, or None for what this GPU does not tell."""
        try:
            return question(*arguments)
        except self._nvml.NVMLError:
            return None


def _load() -> Any:
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:  # no driver
        return None
    return pynvml

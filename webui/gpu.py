"""What NVIDIA's management library tells about the GPUs of this machine; nothing where there is none."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from webui.nvml import Nvml, NvmlError

logger = logging.getLogger(__name__)

_UNKNOWN = float("nan")


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

    def __init__(self, load: Callable[[], Nvml] = Nvml) -> None:
        self._load = load
        self._nvml: Nvml | None = None
        self._looked = False
        self._lock = threading.Lock()

    def read(self) -> list[Gpu]:
        """All GPUs; empty without the library or a driver."""
        with self._lock:
            try:
                if not self._looked:
                    self._looked = True
                    self._nvml = self._load()
                return [] if self._nvml is None else _all(self._nvml)
            except NvmlError as error:
                # Without a driver that is how it is; later it is not.
                logger.log(logging.WARNING if self._nvml else logging.DEBUG, "No GPU can be read: %s", error)
                return []


def _all(nvml: Nvml) -> list[Gpu]:
    return [_one(nvml, index) for index in range(nvml.count())]


def _one(nvml: Nvml, index: int) -> Gpu:
    handle = nvml.handle(index)
    used, total = _told(nvml.memory, handle) or (_UNKNOWN, _UNKNOWN)
    return Gpu(
        index=index,
        name=nvml.name(handle),
        utilisation=_number(nvml.utilisation, handle),
        memory_used=float(used),
        memory_total=float(total),
        power=_number(nvml.power, handle),
        temperature=_number(nvml.temperature, handle),
    )


def _number(question: Callable[[Any], float], handle: Any) -> float:
    found = _told(question, handle)
    return _UNKNOWN if found is None else found


def _told(question: Callable[[Any], Any], handle: Any) -> Any:
    """The answer, or None for what this GPU does not tell."""
    try:
        return question(handle)
    except NvmlError:
        return None

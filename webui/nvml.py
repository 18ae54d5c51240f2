"""NVIDIA's management library, which comes with the driver, by ctypes: the few questions that `webui.gpu` asks."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

_LIBRARY = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"
_NAME_BYTES = 96
_GPU_SENSOR = 0


class NvmlError(Exception):
    """The library says no: no driver, or something that this GPU does not tell."""


class _Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class _Utilisation(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint) for name in ("gpu", "memory")]


class Nvml:
    """All methods raise `NvmlError`."""

    def __init__(self, library: Any = None) -> None:
        """`library`: for tests. Raises `NvmlError` where there is no such library or no driver."""
        try:
            self._library = library or ctypes.CDLL(_LIBRARY)
        except OSError as error:
            raise NvmlError(str(error)) from error
        self._ask("nvmlInit_v2")

    def count(self) -> int:
        """Number of GPUs."""
        found = ctypes.c_uint()
        self._ask("nvmlDeviceGetCount_v2", ctypes.byref(found))
        return found.value

    def handle(self, index: int) -> Any:
        """What the other questions are asked with."""
        found = ctypes.c_void_p()
        self._ask("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(found))
        return found

    def name(self, handle: Any) -> str:
        """Such as "NVIDIA H200"."""
        found = ctypes.create_string_buffer(_NAME_BYTES)
        self._ask("nvmlDeviceGetName", handle, found, ctypes.c_uint(_NAME_BYTES))
        return found.value.decode("utf-8", "replace")

    def memory(self, handle: Any) -> tuple[int, int]:
        """Bytes (used, in all)."""
        found = _Memory()
        self._ask("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(found))
        return found.used, found.total

    def utilisation(self, handle: Any) -> float:
        """Share of the last moment in which something ran, 0 to 1."""
        found = _Utilisation()
        self._ask("nvmlDeviceGetUtilizationRates", handle, ctypes.byref(found))
        return float(found.gpu) / 100

    def power(self, handle: Any) -> float:
        """Watts."""
        return self._number("nvmlDeviceGetPowerUsage", handle) / 1000

    def temperature(self, handle: Any) -> float:
        """Degrees Celsius."""
        return float(self._number("nvmlDeviceGetTemperature", handle, ctypes.c_uint(_GPU_SENSOR)))

    def _number(self, name: str, *arguments: Any) -> int:
        found = ctypes.c_uint()
        self._ask(name, *arguments, ctypes.byref(found))
        return found.value

    def _ask(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status != 0:
            raise NvmlError(f"{name} failed with status {status}")

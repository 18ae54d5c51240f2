"""The WORLD vocoder's analysis and synthesis, called through a plain shared library.

Its usual Python package has no wheel for Python 3.12. `build_world.sh` compiles the same C++ sources (modified BSD
licence) from that package's source archive into `libworld.so`, which works under any Python.
"""

from __future__ import annotations

import ctypes
import os
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

FRAME_PERIOD = 5.0  # milliseconds
_POINTER = ctypes.POINTER(ctypes.c_double)
_ROWS = ctypes.POINTER(_POINTER)


class _CheapTrickOption(ctypes.Structure):
    _fields_ = [("q1", ctypes.c_double), ("f0_floor", ctypes.c_double), ("fft_size", ctypes.c_int)]


class _D4COption(ctypes.Structure):
    _fields_ = [("threshold", ctypes.c_double)]


class _DioOption(ctypes.Structure):
    _fields_ = [
        ("f0_floor", ctypes.c_double),
        ("f0_ceil", ctypes.c_double),
        ("channels_in_octave", ctypes.c_double),
        ("frame_period", ctypes.c_double),
        ("speed", ctypes.c_int),
        ("allowed_range", ctypes.c_double),
    ]


@lru_cache(maxsize=1)
def _library() -> Any:
    """The shared library named by `WORLD_LIBRARY`. Raises OSError when it is not there."""
    return ctypes.CDLL(os.environ.get("WORLD_LIBRARY", ".carry2/libworld.so"))


def _pointer(array: Array) -> Any:
    return array.ctypes.data_as(_POINTER)


def _row_pointers(matrix: Array) -> Any:
    rows = (_POINTER * len(matrix))(*[_pointer(row) for row in matrix])
    return ctypes.cast(rows, _ROWS)


def track_pitch(wave: Array, rate: int) -> Array:
    """F0 in Hz (0 where unvoiced) every 5 ms; wave: (n,) float64."""
    library = _library()
    wave = np.ascontiguousarray(wave, np.float64)
    option = _DioOption()
    library.InitializeDioOption(ctypes.byref(option))
    option.frame_period, option.f0_floor, option.f0_ceil, option.speed = FRAME_PERIOD, 55.0, 700.0, 4
    count = library.GetSamplesForDIO(rate, len(wave), ctypes.c_double(FRAME_PERIOD))
    times, rough, refined = (np.zeros(count) for _ in range(3))
    library.Dio(_pointer(wave), len(wave), rate, ctypes.byref(option), _pointer(times), _pointer(rough))
    library.StoneMask(
        _pointer(wave), len(wave), rate, _pointer(times), _pointer(rough), count, _pointer(refined)
    )
    return refined


def analyse(wave: Array, rate: int, f0: Array) -> tuple[Array, Array]:
    """Spectral envelope (power) and aperiodicity, each (len(f0), bins), at the given 5 ms F0 track."""
    library = _library()
    wave, f0 = np.ascontiguousarray(wave, np.float64), np.ascontiguousarray(f0, np.float64)
    times = np.arange(len(f0)) * FRAME_PERIOD / 1000
    option = _CheapTrickOption()
    library.InitializeCheapTrickOption(rate, ctypes.byref(option))
    bins = option.fft_size // 2 + 1
    envelope, aperiodicity = np.zeros((len(f0), bins)), np.zeros((len(f0), bins))
    common = (_pointer(wave), len(wave), rate, _pointer(times), _pointer(f0), len(f0))
    library.CheapTrick(*common, ctypes.byref(option), _row_pointers(envelope))
    threshold = _D4COption()
    library.InitializeD4COption(ctypes.byref(threshold))
    library.D4C(*common, option.fft_size, ctypes.byref(threshold), _row_pointers(aperiodicity))
    return envelope, aperiodicity


def synthesise(f0: Array, envelope: Array, aperiodicity: Array, rate: int) -> Array:
    """The waveform (float64) of a pitch track, envelope and aperiodicity at 5 ms."""
    library = _library()
    f0, envelope, aperiodicity = (np.ascontiguousarray(x, np.float64) for x in (f0, envelope, aperiodicity))
    samples = int(len(f0) * FRAME_PERIOD * rate / 1000)
    wave = np.zeros(samples)
    library.Synthesis(
        _pointer(f0),
        len(f0),
        _row_pointers(envelope),
        _row_pointers(aperiodicity),
        2 * (envelope.shape[1] - 1),
        ctypes.c_double(FRAME_PERIOD),
        rate,
        samples,
        _pointer(wave),
    )
    return wave

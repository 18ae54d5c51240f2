"""The real TensorRT-RTX builder, which parses and builds without a GPU."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
from pathlib import Path
from typing import Any

import pytest

_WHEEL = "onnxruntime_ep_nv_tensorrt_rtx"  # holds the libraries
_BINDINGS = "tensorrt_rtx_bindings"


def rtx() -> Any:
    """The bindings; skips the test where they are not installed (requirements-dev.txt)."""
    spec = importlib.util.find_spec(_WHEEL)
    if spec is None or importlib.util.find_spec(_BINDINGS) is None or not spec.submodule_search_locations:
        pytest.skip("TensorRT-RTX is not installed: ./run.sh install --dev (Linux x86-64)")
    folder = Path(spec.submodule_search_locations[0])
    for pattern in ("libtensorrt_rtx.so*", "libtensorrt_onnxparser_rtx.so*"):
        for path in folder.glob(pattern):
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    return importlib.import_module(_BINDINGS)

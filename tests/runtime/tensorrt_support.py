"""Small networks and a fake TensorRT for the tests of engines."""

from __future__ import annotations

import sys
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch

from inference.models.config import VocoderConfig
from inference.models.velocity import VelocityNetwork
from inference.models.vocoder import Vocoder
from inference.runtime import tensorrt_backends
from inference.runtime.onnx_export import export_spectrum
from inference.runtime.shape_ranges import ShapeRange
from tests.models.flow_support import random_flow
from tests.runtime.fake_tensorrt import fake_tensorrt

ROWS = (ShapeRange((1, 1, 1), (64, 64, 128)), ShapeRange((1, 1, 1), (129, 192, 256)))
BATCHES = (ShapeRange((2, 2, 8), (16, 64, 200)),)


def small_vocoder() -> Vocoder:
    with torch.random.fork_rng():
        torch.manual_seed(9)
        return Vocoder(VocoderConfig(base_channels=32, f0_channels=16)).eval()


def small_network() -> VelocityNetwork:
    with torch.inference_mode(False):  # others share it
        return random_flow().decoder.estimator


@lru_cache(maxsize=4)
def _exported(dtype: torch.dtype) -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "graph.onnx"
        export_spectrum(small_vocoder(), path, dtype)
        return path.read_bytes()


def _export_once(vocoder: Vocoder, path: Path, dtype: torch.dtype) -> None:
    """A second's work for each test otherwise."""
    same = vocoder.state_dict().keys() == small_vocoder().state_dict().keys() and all(
        torch.equal(a, b)
        for a, b in zip(vocoder.state_dict().values(), small_vocoder().state_dict().values())
    )
    if same:
        path.write_bytes(_exported(dtype))
    else:
        export_spectrum(vocoder, path, dtype)


def installed(monkeypatch: pytest.MonkeyPatch, version: str = "11.4.0.106") -> Any:
    """A fake that is what `load_tensorrt` finds."""
    module = fake_tensorrt(version)
    monkeypatch.setitem(sys.modules, "tensorrt", module)
    monkeypatch.setattr(tensorrt_backends, "export_spectrum", _export_once)
    return module

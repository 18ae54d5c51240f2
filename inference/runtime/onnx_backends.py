"""Vocoder spectrum and velocity network through ONNX Runtime, from files made once and kept. For the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from inference.models.velocity import VelocityNetwork
from inference.models.vocoder import Vocoder
from inference.runtime.graph_files import default_cache_dir, graph_key, kept_file
from inference.runtime.onnx_export import export_spectrum, export_velocity

if TYPE_CHECKING:
    from onnxruntime import InferenceSession


def open_session(path: Path, threads: int) -> InferenceSession:
    """A CPU session with all graph optimisations. Raises what ONNX Runtime raises."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    # Waiting threads sleep: other lanes need their cores.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _run(session: InferenceSession, *values: Tensor) -> Tensor:
    given = {
        entry.name: np.ascontiguousarray(value.detach().numpy())
        for entry, value in zip(session.get_inputs(), values)
    }
    return torch.from_numpy(session.run(None, given)[0])


class OnnxSpectrum:
    """A `SpectrumBackend` for unpadded items. May be used from several threads."""

    def __init__(self, path: Path, threads: int = 1) -> None:
        self._session = open_session(path, threads)

    @staticmethod
    def make(vocoder: Vocoder, threads: int = 1, cache_dir: Path | None = None) -> OnnxSpectrum:
        """From the kept file of this vocoder, exported if there is none."""
        key = graph_key("spectrum", vocoder, vocoder.cfg)
        path = kept_file(
            cache_dir or default_cache_dir(),
            f"spectrum-{key}.onnx",
            lambda file: export_spectrum(vocoder, file, masked=False),
        )
        return OnnxSpectrum(path, threads)

    def __call__(self, mel: Tensor, excitation: Tensor, mask: Tensor | None = None) -> Tensor | None:
        """float32 on the CPU; None with a mask: the masked graph is a third slower, and nobody pads on the CPU."""
        return None if mask is not None else _run(self._session, mel, excitation)


class OnnxVelocity:
    """A `PaddedVelocity`. As fast as torch on one core with the bundled model, so nobody's default; it is how the file
    that TensorRT gets is checked."""

    def __init__(self, path: Path, threads: int = 1) -> None:
        self._session = open_session(path, threads)

    @staticmethod
    def make(network: VelocityNetwork, threads: int = 1, cache_dir: Path | None = None) -> OnnxVelocity:
        """From the kept file of this network, exported if there is none."""
        key = graph_key("velocity", network, network.cfg)
        path = kept_file(
            cache_dir or default_cache_dir(),
            f"velocity-{key}.onnx",
            lambda file: export_velocity(network, file),
        )
        return OnnxVelocity(path, threads)

    def __call__(
        self, x: Tensor, mask: Tensor, mu: Tensor, t: Tensor, spks: Tensor, cond: Tensor, chunks: Tensor
    ) -> Tensor:
        """See `network_graphs.VelocityGraph`."""
        return _run(self._session, *(value.float() for value in (x, mask, mu, t, spks, cond, chunks)))

"""Vocoder spectrum and velocity network through ONNX Runtime, from files made once and kept."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from inference.models.velocity import VelocityNetwork
from inference.models.vocoder import Vocoder
from inference.runtime.flow_solver import VelocityStep
from inference.runtime.onnx_export import OPSET, chunk_numbers, export_spectrum, export_velocity

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

_FORMAT = 1  # of the graphs written by `onnx_export`; raise it when they change


def default_cache_dir() -> Path:
    """Where exported graphs are kept."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "cosyvoice-graphs"


def graph_key(kind: str, module: nn.Module, config: object) -> str:
    """Of a graph's kind, sizes and weights, and of what writes it."""
    found = hashlib.sha256(repr((kind, _FORMAT, OPSET, torch.__version__, config)).encode())
    for name, tensor in sorted(module.state_dict().items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return found.hexdigest()[:32]


def kept_file(folder: Path, name: str, write: Callable[[Path], None]) -> Path:
    """`folder/name`, made by `write` if it is not there. Others never see a half-written file."""
    path = folder / name
    if path.is_file():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    scratch = Path(mkdtemp(prefix=".making-", dir=folder))
    try:
        unfinished = scratch / name
        write(unfinished)
        unfinished.replace(path)
    finally:
        for rest in scratch.iterdir():
            rest.unlink()
        scratch.rmdir()
    return path


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
    """A `SpectrumBackend`. May be used from several threads."""

    def __init__(self, path: Path, threads: int = 1) -> None:
        self._session = open_session(path, threads)

    @staticmethod
    def make(vocoder: Vocoder, threads: int = 1, cache_dir: Path | None = None) -> OnnxSpectrum:
        """From the kept file of this vocoder, exported if there is none."""
        key = graph_key("spectrum", vocoder, vocoder.cfg)
        path = kept_file(
            cache_dir or default_cache_dir(),
            f"spectrum-{key}.onnx",
            lambda file: export_spectrum(vocoder, file),
        )
        return OnnxSpectrum(path, threads)

    def __call__(self, mel: Tensor, excitation: Tensor) -> Tensor:
        return _run(self._session, mel, excitation)


class OnnxVelocity:
    """A `VelocityBackend` for the CPU. Slower than torch there (bundled model: 1.4 to 1.5 times), so nobody's default;
    it is how the file that TensorRT gets is checked."""

    def __init__(self, path: Path, chunk_frames: int, threads: int = 1) -> None:
        self._session = open_session(path, threads)
        self._chunk_frames = chunk_frames

    @staticmethod
    def make(network: VelocityNetwork, threads: int = 1, cache_dir: Path | None = None) -> OnnxVelocity:
        """From the kept file of this network, exported if there is none."""
        key = graph_key("velocity", network, network.cfg)
        path = kept_file(
            cache_dir or default_cache_dir(),
            f"velocity-{key}.onnx",
            lambda file: export_velocity(network, file),
        )
        return OnnxVelocity(path, network.cfg.chunk_frames, threads)

    def bind(
        self, mask: Tensor | None, mu: Tensor, spks: Tensor, cond: Tensor, times: Tensor, *, streaming: bool
    ) -> VelocityStep:
        """See `VelocityNetwork.bind`."""
        batch, _, frames = mu.shape
        keep = torch.ones(batch, 1, frames) if mask is None else mask.float()
        chunks = chunk_numbers(frames, self._chunk_frames if streaming else None)

        def step(x: Tensor, k: int) -> Tensor:
            return _run(self._session, x, keep, mu, times[k].repeat(batch), spks, cond, chunks)

        return step

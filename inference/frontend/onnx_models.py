"""The two ONNX networks of a model folder: speech tokenizer and speaker encoder (SPEC 2.5)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from inference.types import CheckpointError, EngineError, FloatAudio

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

SPEAKER_SIZE = 192


class SpeechTokenizer:
    """Whisper log-mel → speech tokens, 25 a second. Safe to share between threads."""

    def __init__(self, path: Path, threads: int = 1, device: str = "cpu") -> None:
        self._session = _open_session(path, threads, device, inputs=2)

    def encode(self, mel: FloatAudio) -> npt.NDArray[np.int32]:
        """mel: (128, N) or (1, 128, N) float32; returns (ceil(ceil(N / 2) / 2),) int32."""
        batch = np.ascontiguousarray(mel, dtype=np.float32).reshape(1, 128, -1)
        frames = np.array([batch.shape[2]], dtype=np.int32)
        return np.asarray(_run(self._session, batch, frames)).reshape(-1).astype(np.int32)


class SpeakerEncoder:
    """Kaldi filter bank → speaker vector, not normalised. Safe to share between threads."""

    def __init__(self, path: Path, threads: int = 1) -> None:
        self._session = _open_session(path, threads, "cpu", inputs=1)

    def embed(self, fbank: FloatAudio) -> FloatAudio:
        """fbank: (N, 80) float32 less its mean; returns (192,) float32."""
        batch = np.ascontiguousarray(fbank, dtype=np.float32)[None]
        vector: FloatAudio = np.asarray(_run(self._session, batch), dtype=np.float32).reshape(-1)
        if vector.shape != (SPEAKER_SIZE,) or not np.isfinite(vector).all():
            raise EngineError("speaker_vector_invalid", "The speaker encoder gave no usable speaker vector.")
        return vector


def _open_session(path: Path, threads: int, device: str, inputs: int) -> InferenceSession:
    """Session with all graph optimisations. Raises CheckpointError("onnx_missing" or "onnx_unreadable")."""
    import onnxruntime

    if not path.is_file():
        raise CheckpointError("onnx_missing", f"{path} is missing; download the model again.", file=path.name)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    options.enable_cpu_mem_arena = False  # it would keep what the longest clip needed, and saves no time
    providers: list[str | tuple[str, dict[str, int]]] = ["CPUExecutionProvider"]
    if device.startswith("cuda") and "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        number = int(device.partition(":")[2] or 0)
        providers.insert(0, ("CUDAExecutionProvider", {"device_id": number}))
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=providers)
    except Exception as error:  # the library's errors share no base class
        raise CheckpointError(
            "onnx_unreadable",
            f"{path} is not a readable ONNX file (half downloaded?); download it again.",
            file=path.name,
        ) from error
    if len(session.get_inputs()) != inputs:
        raise CheckpointError(
            "onnx_unreadable",
            f"{path} has {len(session.get_inputs())} inputs, not {inputs}; it is another model's file.",
            file=path.name,
        )
    return session


def _run(session: InferenceSession, *values: npt.NDArray[Any]) -> Any:
    """First output for inputs given by position: names differ between exports."""
    names = [entry.name for entry in session.get_inputs()]
    try:
        return session.run(None, dict(zip(names, values)))[0]
    except Exception as error:
        raise EngineError("onnx_failed", f"An ONNX network of the model folder failed: {error}") from error

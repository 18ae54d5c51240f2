"""What computes the vocoder's spectrum and the flow's velocity: names, the choice on the CPU, what it falls back on.

On the CPU a backend is set on the modules themselves (`Vocoder.backend`); on CUDA `wave_backends` puts one below the
packed lane. Every backend passes a self-test against the modules before it is used, and one that fails while serving
gives way to torch within the same call.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from inference.models.vocoder import SpectrumBackend, Vocoder
from inference.runtime.backend_choice import (
    RememberedChoices,
    Soundness,
    best_seconds,
    choose,
    machine_facts,
    sound_backend,
)
from inference.runtime.backend_report import REPORT
from inference.runtime.backend_spare import gives_way
from inference.runtime.channels_last import ChannelsLast
from inference.runtime.graph_files import default_cache_dir, graph_key
from inference.types import RequestError

logger = logging.getLogger(__name__)

# "triton", "compiled" and "tensorrt" are for CUDA, "channels_last", "fused" and "onnxruntime" for the CPU.
SPECTRUM_BACKENDS = ("auto", "torch", "channels_last", "onnxruntime", "compiled", "triton", "tensorrt")
VELOCITY_BACKENDS = ("auto", "torch", "fused", "onnxruntime", "compiled", "triton", "tensorrt")
# One core, bundled model, 1 s / 4 s / 10 s of sound: see docs/backends.md. In order of preference.
CPU_SPECTRUM = ("channels_last", "onnxruntime", "torch")
ERROR_BOUND = 1e-4
_PROBE_FRAMES = 6
_MEASURED_FRAMES = 10


class MaskedSpectrum(Protocol):
    """mel (B, 80, T), source spectrum (B, 18, 120*T + 1), mask (B, 1, T) bool or None as in
    `network_graphs.SpectrumGraph` → spectrum; None: it cannot take this shape."""

    def __call__(self, mel: Tensor, excitation: Tensor, mask: Tensor | None = None) -> Tensor | None: ...


class GuardedSpectrum:
    """A `SpectrumBackend` for a vocoder's own calls: what fails or cannot be taken is computed by the modules.

    What fails there too is the request's own fault and drops nothing, nor does too little memory.
    """

    def __init__(self, vocoder: Vocoder, name: str, backend: SpectrumBackend | MaskedSpectrum) -> None:
        self.name = name
        self.backend: SpectrumBackend | MaskedSpectrum | None = backend
        self._dropping = threading.Lock()
        # Not as an attribute of a module: the vocoder would be a part of itself.
        self._plain: Callable[[Tensor, Tensor], Tensor] = lambda mel, excitation: plain_spectrum(
            vocoder, mel, excitation
        )

    def __call__(self, mel: Tensor, excitation: Tensor) -> Tensor:
        backend = self.backend  # another thread may drop it meanwhile
        if backend is not None:
            try:
                found = backend(mel, excitation)
            except Exception as error:  # the libraries' errors share no base class
                if not gives_way(error):
                    raise
                plain = self._plain(mel, excitation)
                self._drop(error)
                return plain
            else:
                if found is not None:
                    return found
        return self._plain(mel, excitation)

    def _drop(self, error: Exception) -> None:
        with self._dropping:
            dropped, self.backend = self.backend, None
        if dropped is not None:
            REPORT.drop("vocoder", self.name, "failed while serving", error)


def install_spectrum_backend(
    vocoder: Vocoder, name: str = "auto", *, threads: int = 1, cache_dir: Path | None = None
) -> str:
    """Give a loaded vocoder its backend for unpadded items; returns the name of what is used.

    `auto`: the fastest of those that pass the self-test, measured once and remembered for this machine, these versions
    and this model; ONNX Runtime takes part once its graph is exported. On other devices than the CPU it is always
    "torch" (see `wave_backends`). What cannot be made here or fails its self-test is replaced by "torch" with a
    warning. `threads` and `cache_dir` are for onnxruntime. Raises `RequestError("unknown_backend")`.
    """
    check_backend(name)
    vocoder.backend = backend = None
    if vocoder.conv_pre.weight.device.type != "cpu":
        name = "torch"
    elif name == "auto":
        name, backend = _chosen(vocoder, threads, cache_dir)
    if name != "torch" and backend is None:
        backend = sound_backend(
            "vocoder",
            name,
            lambda: _make(vocoder, name, threads, cache_dir),
            lambda made: spectrum_soundness(vocoder, made),
            ERROR_BOUND,
        )
    if backend is not None:
        vocoder.backend = GuardedSpectrum(vocoder, name, backend)
    used = "torch" if backend is None else name
    REPORT.use("vocoder", used)
    return used


def check_backend(name: str, known: tuple[str, ...] = SPECTRUM_BACKENDS, part: str = "vocoder") -> None:
    """Raises `RequestError("unknown_backend")`."""
    if name not in known:
        raise RequestError(
            "unknown_backend",
            f"Unknown {part} backend {name!r}; choose one of {', '.join(known)}.",
            backend=name,
        )


# ------------------------------------------------------------------------------------------------ choosing
def _chosen(
    vocoder: Vocoder, threads: int, cache_dir: Path | None
) -> tuple[str, SpectrumBackend | MaskedSpectrum | None]:
    """The choice of this machine: made now if there is none, and then with the backend, which has just been tested."""
    key = graph_key("spectrum", vocoder, vocoder.cfg)
    names = [name for name in CPU_SPECTRUM if name != "onnxruntime" or _is_exported(key, cache_dir)]
    choices = RememberedChoices(cache_dir)
    facts = machine_facts(torch.device("cpu"))
    path = choices.path("vocoder", facts, key, names)
    known = choices.get(path)
    if known in names:
        return known, None
    with _one_at_a_time(path):  # several workers start together: all shall choose the same
        known = choices.get(path)
        if known in names:
            return known, None
        chosen = choose(
            {name: lambda name=name: _make(vocoder, name, threads, cache_dir) for name in names},  # type: ignore[misc]
            lambda backend: spectrum_soundness(vocoder, backend),
            ERROR_BOUND,
            lambda backend: _seconds(vocoder, backend),
        )
        if chosen is None:
            return "torch", None
        choices.put(path, chosen, facts)
        return chosen.name, None if chosen.name == "torch" else chosen.backend


def _one_at_a_time(path: Path) -> AbstractContextManager[object]:
    from filelock import FileLock

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(str(path) + ".lock")
        lock.acquire(timeout=120)
    except (OSError, TimeoutError):  # a folder that cannot be written
        return nullcontext()
    return _Held(lock)


class _Held(AbstractContextManager[object]):
    def __init__(self, lock: object) -> None:
        self._lock = lock

    def __exit__(self, *details: object) -> None:
        self._lock.release()  # type: ignore[attr-defined]


def _is_exported(key: str, cache_dir: Path | None) -> bool:
    """Whether ONNX Runtime can be tried at once: an export would hold up the first start."""
    from importlib.util import find_spec

    path = (cache_dir or default_cache_dir()) / f"spectrum-{key}.onnx"
    return path.is_file() and find_spec("onnxruntime") is not None


@torch.inference_mode()
def _seconds(vocoder: Vocoder, backend: SpectrumBackend | MaskedSpectrum) -> float:
    mel, excitation = probe(vocoder, _MEASURED_FRAMES)
    # On one core a thread's own time says what counts, whatever else the machine does just now.
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    return best_seconds(lambda: backend(mel[:1], excitation[:1]), repeat=2, clock=clock)


def spectrum_soundness(vocoder: Vocoder, backend: SpectrumBackend | MaskedSpectrum) -> Soundness:
    """Beside the modules' own spectrum, on a fixed input without padding."""
    mel, excitation = probe(vocoder)
    with torch.inference_mode():
        return Soundness.of(backend(mel, excitation), plain_spectrum(vocoder, mel, excitation))


def plain_spectrum(vocoder: Vocoder, mel: Tensor, excitation: Tensor) -> Tensor:
    """By the modules, of items without padding."""
    return vocoder.convolve(mel, excitation, [None] * (len(vocoder.ups) + 1), _mirror)


def probe(vocoder: Vocoder, frames: int = _PROBE_FRAMES) -> tuple[Tensor, Tensor]:
    """Two fixed voiced items: mel (2, 80, frames) and the spectrum of their source."""
    device = vocoder.conv_pre.weight.device
    count = 2 * frames * vocoder.cfg.mel_bins
    mel = torch.linspace(-9.0, 0.0, count, device=device).view(2, frames, -1).transpose(1, 2)
    with torch.inference_mode():
        f0 = torch.full((2, frames), 150.0, device=device)
        source, _ = vocoder.source(f0, vocoder.from_start(mel))
        return mel, vocoder.fourier.transform(source[:, 0])


def _mirror(x: Tensor) -> Tensor:
    return torch.cat((x[:, :, 1:2], x), dim=2)


def _make(
    vocoder: Vocoder, name: str, threads: int, cache_dir: Path | None
) -> SpectrumBackend | MaskedSpectrum:
    if name == "channels_last":
        return ChannelsLast(vocoder)
    if name == "onnxruntime":
        from inference.runtime.onnx_backends import OnnxSpectrum

        return OnnxSpectrum.make(vocoder, threads, cache_dir or default_cache_dir())
    if name == "torch":
        return lambda mel, excitation: plain_spectrum(vocoder, mel, excitation)
    raise ValueError(f"{name} is for CUDA")

"""What computes the vocoder's spectrum and the flow's velocity: names, the choice on the CPU, what it falls back on.

On the CPU a backend is set on the modules themselves (`Vocoder.backend`); on CUDA `wave_backends` puts one below the
packed lane. Every backend passes a self-test against the modules before it is used, and one that fails while serving
gives way to torch within the same call.
"""

from __future__ import annotations

import logging
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
)
from inference.runtime.backend_report import REPORT
from inference.runtime.channels_last import ChannelsLast
from inference.runtime.graph_files import default_cache_dir, graph_key
from inference.types import RequestError

logger = logging.getLogger(__name__)

# "triton", "compiled" and "tensorrt" are for CUDA, "channels_last" and "onnxruntime" for the CPU.
SPECTRUM_BACKENDS = ("auto", "torch", "channels_last", "onnxruntime", "compiled", "triton", "tensorrt")
VELOCITY_BACKENDS = ("auto", "torch", "onnxruntime", "compiled", "triton", "tensorrt")
# One core, bundled model, 1 s / 4 s / 10 s of sound: see docs/backends.md. In order of preference.
CPU_SPECTRUM = ("channels_last", "onnxruntime", "torch")
ERROR_BOUND = 1e-4
_PROBE_FRAMES = 12
_MEASURED_FRAMES = 25


class MaskedSpectrum(Protocol):
    """mel (B, 80, T), source spectrum (B, 18, 120*T + 1), mask (B, 1, T) bool or None as in
    `network_graphs.SpectrumGraph` → spectrum; None: it cannot take this shape."""

    def __call__(self, mel: Tensor, excitation: Tensor, mask: Tensor | None = None) -> Tensor | None: ...


class GuardedSpectrum:
    """A `SpectrumBackend` for a vocoder's own calls: what fails or cannot be taken is computed by the modules."""

    def __init__(self, vocoder: Vocoder, name: str, backend: SpectrumBackend | MaskedSpectrum) -> None:
        self.name = name
        self.backend: SpectrumBackend | MaskedSpectrum | None = backend
        # Not as an attribute of a module: the vocoder would be a part of itself.
        self._plain: Callable[[Tensor, Tensor], Tensor] = lambda mel, excitation: plain_spectrum(
            vocoder, mel, excitation
        )

    def __call__(self, mel: Tensor, excitation: Tensor) -> Tensor:
        if self.backend is not None:
            try:
                found = self.backend(mel, excitation)
            except Exception as error:  # the libraries' errors share no base class
                self.backend = None
                REPORT.drop("vocoder", self.name, "failed while serving", error)
            else:
                if found is not None:
                    return found
        return self._plain(mel, excitation)


def install_spectrum_backend(
    vocoder: Vocoder, name: str = "auto", *, threads: int = 1, cache_dir: Path | None = None
) -> str:
    """Give a loaded vocoder its backend for unpadded items; returns the name of what is used.

    `auto`: the fastest of those that are installed and pass the self-test, measured once and remembered for this
    machine, these versions and this model. On other devices than the CPU it is always "torch" (see `wave_backends`).
    What cannot be made here or fails its self-test is replaced by "torch" with a warning. `threads` and `cache_dir`
    are for onnxruntime. Raises `RequestError("unknown_backend")`.
    """
    check_backend(name)
    vocoder.backend = None
    used = "torch"
    if vocoder.conv_pre.weight.device.type == "cpu":
        wanted = _remembered(vocoder, threads, cache_dir) if name == "auto" else name
        used = _install(vocoder, wanted, threads, cache_dir)
    REPORT.use("vocoder", used)
    return used


def _install(vocoder: Vocoder, name: str, threads: int, cache_dir: Path | None) -> str:
    if name == "torch":
        return name
    try:
        backend = _make(vocoder, name, threads, cache_dir)
        sound = spectrum_soundness(vocoder, backend)
    except Exception as error:  # the libraries' errors share no base class
        REPORT.drop("vocoder", name, "cannot be used here", error)
        return "torch"
    if not sound.within(ERROR_BOUND):
        REPORT.drop("vocoder", name, f"is unsound here (error {sound.error:.3g})")
        return "torch"
    vocoder.backend = GuardedSpectrum(vocoder, name, backend)
    return name


def check_backend(name: str, known: tuple[str, ...] = SPECTRUM_BACKENDS, part: str = "vocoder") -> None:
    """Raises `RequestError("unknown_backend")`."""
    if name not in known:
        raise RequestError(
            "unknown_backend",
            f"Unknown {part} backend {name!r}; choose one of {', '.join(known)}.",
            backend=name,
        )


# ------------------------------------------------------------------------------------------------ choosing
def _remembered(vocoder: Vocoder, threads: int, cache_dir: Path | None) -> str:
    """The choice of this machine, made now if there is none."""
    names = [name for name in CPU_SPECTRUM if _installed(name)]
    choices = RememberedChoices(cache_dir)
    facts = machine_facts(torch.device("cpu"))
    path = choices.path("vocoder", facts, graph_key("spectrum", vocoder, vocoder.cfg), names)
    known = choices.get(path)
    if known in names:
        return known
    with _one_at_a_time(path):  # several workers start together: all shall choose the same
        known = choices.get(path)
        if known in names:
            return known
        chosen = choose(
            {name: lambda name=name: _make(vocoder, name, threads, cache_dir) for name in names},  # type: ignore[misc]
            lambda backend: spectrum_soundness(vocoder, backend),
            ERROR_BOUND,
            lambda backend: _seconds(vocoder, backend),
        )
        if chosen is None:
            return "torch"
        choices.put(path, chosen, facts)
        return chosen.name


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


def _installed(name: str) -> bool:
    from importlib.util import find_spec

    # The exporter needs onnx, which only tests and GPU machines install.
    return name != "onnxruntime" or (find_spec("onnx") is not None and find_spec("onnxruntime") is not None)


@torch.inference_mode()
def _seconds(vocoder: Vocoder, backend: SpectrumBackend | MaskedSpectrum) -> float:
    mel, excitation = probe(vocoder, _MEASURED_FRAMES)
    return best_seconds(lambda: backend(mel[:1], excitation[:1]), repeat=3)


def spectrum_soundness(vocoder: Vocoder, backend: SpectrumBackend | MaskedSpectrum) -> Soundness:
    """Beside the modules' own spectrum, on a fixed input without padding."""
    mel, excitation = probe(vocoder)
    with torch.inference_mode():
        return Soundness.of(backend(mel, excitation), plain_spectrum(vocoder, mel, excitation))


def spectrum_error(vocoder: Vocoder, backend: SpectrumBackend | MaskedSpectrum) -> float:
    """‖difference from the modules' spectrum‖ / ‖spectrum‖ on a fixed input; NaN when not finite or of other shape."""
    return spectrum_soundness(vocoder, backend).error


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

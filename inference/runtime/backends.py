"""What computes the vocoder's spectrum on this machine: chosen by name, checked, and given up loudly.

A `SpectrumBackend` has `SpectrumGraph`'s inputs and output; the velocity network's interface is
`flow_solver.VelocityBackend`. Which ones there are and how fast they were: `SPECTRUM_BACKENDS`.
"""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from torch import Tensor

from inference.models.vocoder import SpectrumBackend, Vocoder
from inference.runtime.channels_last import ChannelsLast
from inference.runtime.precision import relative_error
from inference.types import RequestError

logger = logging.getLogger(__name__)

# Of the bundled model, one AVX-512 core, 6.5 s of sound: torch 616 ms, onnxruntime 447 ms, channels_last 421 ms;
# 2.4 s: 206, 166 and 150 ms. So `auto` is channels_last on the CPU. The choice is never by a measurement at start:
# it would differ from one process to the next, and with it the last bits of the sound.
SPECTRUM_BACKENDS = ("auto", "torch", "channels_last", "onnxruntime")
ERROR_BOUND = 1e-4
_PROBE_FRAMES = 12


def install_spectrum_backend(
    vocoder: Vocoder, name: str = "auto", *, threads: int = 1, cache_dir: Path | None = None
) -> str:
    """Give a loaded vocoder its backend for unpadded items; returns the name of what is used.

    On other devices than the CPU it is always "torch". What cannot be made here or fails its self-test is replaced
    by "torch" with a warning. `threads` and `cache_dir` are for onnxruntime. Raises `RequestError("unknown_backend")`.
    """
    check_backend(name)
    wanted = "channels_last" if name == "auto" else name
    vocoder.backend = None
    if wanted == "torch" or vocoder.conv_pre.weight.device.type != "cpu":
        return "torch"
    try:
        backend = _make(vocoder, wanted, threads, cache_dir)
        error = spectrum_error(vocoder, backend)
    except Exception:  # the libraries' errors share no base class
        logger.warning("The vocoder's backend %s cannot be used; torch is.", wanted, exc_info=True)
        return "torch"
    if not error <= ERROR_BOUND:  # NaN counts as broken
        logger.warning("The vocoder's backend %s is unsound here (error %.3g); torch is used.", wanted, error)
        return "torch"
    vocoder.backend = backend
    return wanted


def check_backend(name: str) -> None:
    """Raises `RequestError("unknown_backend")`."""
    if name not in SPECTRUM_BACKENDS:
        known = ", ".join(SPECTRUM_BACKENDS)
        raise RequestError(
            "unknown_backend", f"Unknown vocoder backend {name!r}; choose one of {known}.", backend=name
        )


def spectrum_error(vocoder: Vocoder, backend: SpectrumBackend) -> float:
    """‖difference from the modules' spectrum‖ / ‖spectrum‖ on a fixed input; NaN when not finite or of other shape."""
    mel, excitation = probe(vocoder)
    with torch.inference_mode():
        expected = vocoder.convolve(mel, excitation, [None] * (len(vocoder.ups) + 1), _mirror)
        found = backend(mel, excitation)
    return relative_error(found, expected) if found.shape == expected.shape else float("nan")


def probe(vocoder: Vocoder) -> tuple[Tensor, Tensor]:
    """Two fixed voiced items: mel (2, 80, 12) and the spectrum of their source."""
    device = vocoder.conv_pre.weight.device
    count = 2 * _PROBE_FRAMES * vocoder.cfg.mel_bins
    mel = torch.linspace(-9.0, 0.0, count, device=device).view(2, _PROBE_FRAMES, -1).transpose(1, 2)
    with torch.inference_mode():
        f0 = torch.full((2, _PROBE_FRAMES), 150.0, device=device)
        source, _ = vocoder.source(f0, vocoder.from_start(mel))
        return mel, vocoder.fourier.transform(source[:, 0])


def _mirror(x: Tensor) -> Tensor:
    return torch.cat((x[:, :, 1:2], x), dim=2)


def _make(vocoder: Vocoder, name: str, threads: int, cache_dir: Path | None) -> SpectrumBackend:
    if name == "channels_last":
        return ChannelsLast(vocoder)
    from inference.runtime.onnx_backends import OnnxSpectrum

    return OnnxSpectrum.make(vocoder, threads, cache_dir)

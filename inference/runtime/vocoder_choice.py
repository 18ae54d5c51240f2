"""Which packed vocoder runs here: Triton's kernels where they are sound, else the plain modules, half or float32."""

from __future__ import annotations

import copy
import logging

import torch
from torch import Tensor

from inference.models.vocoder import Vocoder
from inference.runtime.backend_spare import Spare
from inference.runtime.kernel_build import build
from inference.runtime.packed_vocoder import PackedVocoder
from inference.runtime.precision import relative_error
from inference.runtime.vocoder_fused import FusedSpectrum, FusedVocoder
from inference.runtime.vocoder_generator import exact_spectrum, generator_error, make_generator, voiced_probe
from inference.runtime.vocoder_pack import VocoderJob
from inference.runtime.vocoder_stream import VocoderStream

logger = logging.getLogger(__name__)

# Relative error of the spectrum above which half-precision convolutions are not used: float16 gives 2e-3 (trained
# weights) to 1e-2 (random ones), bfloat16 ten times that.
HALF_BOUND = 0.02
# The kernels are held to this, or where float16 itself is no better, to little more than the plain modules' error.
KERNEL_BOUND = 3e-3
_SLACK = 1.5
# F0's relative error: the phases sum it up, so it must be float32's. TF32's is 1e-3.
PITCH_BOUND = 1e-4
# Of the sound, against the plain way with the kernels' F0 and spectrum, where only rounding is left.
SOUND_BOUND = 0.05
_QUIET = 50 / 32768


def choose_packed_vocoder(
    vocoder: Vocoder,
    most_items: int,
    dtype: torch.dtype,
    *,
    graphs: bool = False,
    compiled: bool = False,
) -> PackedVocoder | FusedVocoder:
    """A packed vocoder whose convolutions are in `dtype` where that is sound, which a self-test finds out.

    With float16 on CUDA Triton's kernels are tried first unless `vocoder.kernels` is off. Their first use on a machine
    compiles them, which takes some seconds; Triton keeps the results on disk.
    """
    if dtype == torch.float32:
        return _plain(vocoder, most_items, dtype, graphs, compiled)
    error = generator_error(vocoder, make_generator(vocoder, dtype, False))
    if vocoder.kernels and dtype == torch.float16 and vocoder.conv_pre.weight.device.type == "cuda":
        fused = sound_kernels(vocoder, most_items, graphs, error)
        if fused is not None:
            return fused
    if not error <= HALF_BOUND:  # NaN counts as broken
        logger.warning("The vocoder is unsound in %s (error %.3g); it runs in float32.", dtype, error)
        dtype = torch.float32
    return _plain(vocoder, most_items, dtype, graphs, compiled)


def _plain(
    vocoder: Vocoder, most_items: int, dtype: torch.dtype, graphs: bool, compiled: bool
) -> PackedVocoder:
    generator = make_generator(vocoder, dtype, compiled)
    return PackedVocoder(vocoder, most_items, generator=generator, graphs=graphs)


def sound_kernels(vocoder: Vocoder, most_items: int, graphs: bool, half_error: float) -> FusedVocoder | None:
    """The fused vocoder, warm, or None (which is logged) where Triton is missing or fails the self-test."""
    try:
        fused = FusedVocoder(vocoder, most_items, graphs=graphs)
        if fused.device.type == "cuda":
            build(fused.kernel_variants(), device=fused.device, what="kernels of the vocoder")
        found = distances(vocoder, fused)
    except ImportError:
        logger.info(
            "Triton is not installed; the vocoder runs on PyTorch's own kernels, several times slower."
        )
        return None
    except torch.OutOfMemoryError:
        raise
    except Exception:  # Triton's errors share no base class
        logger.warning("The vocoder's kernels cannot be used here; PyTorch's are.", exc_info=True)
        return None
    bounds = (PITCH_BOUND, min(HALF_BOUND, max(KERNEL_BOUND, _SLACK * half_error)), SOUND_BOUND)
    if not all(value <= bound for value, bound in zip(found, bounds)):  # NaN counts as broken
        logger.warning(
            "The vocoder's kernels are unsound here (F0 %.3g, spectrum %.3g, sound %.3g); PyTorch's are used.",
            *found,
        )
        return None
    dtype = fused.dtype if half_error <= HALF_BOUND else torch.float32
    fused.spare = Spare(
        "vocoder", "triton", lambda: _plain(vocoder, most_items, dtype, graphs, compiled=False)
    )
    return fused


def distances(vocoder: Vocoder, fused: FusedVocoder) -> tuple[float, float, float]:
    """Relative 2-norms: of the kernels' F0 and spectrum from float32's, of their sound from the plain way's."""
    backend = FusedSpectrum(fused.convolutions, fused.ends)
    mel, excitation = voiced_probe(vocoder)
    spectrum = relative_error(backend(mel, excitation), exact_spectrum(vocoder, mel, excitation))
    with torch.inference_mode(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        pitch = _pitch_distance(backend.f0(mel), vocoder.f0(mel), vocoder.cfg.nsf_voiced_threshold)
        return pitch, spectrum, sound_distance(vocoder, fused, backend)


def _pitch_distance(found: Tensor, expected: Tensor, voiced: float) -> float:
    """Relative 2-norm; what is lower than `voiced` Hz counts as that, since it makes no sines."""
    size = torch.linalg.vector_norm(expected.clamp_min(voiced))
    return float(torch.linalg.vector_norm(found - expected) / size)


def sound_distance(
    vocoder: Vocoder, fused: FusedVocoder, backend: FusedSpectrum, pieces: tuple[int, int] = (40, 24)
) -> float:
    """Of two joined pieces' sound from the plain way's with the kernels' F0 and spectrum, relative 2-norm."""
    plain = copy.copy(vocoder)
    plain.backend = backend
    plain.f0 = lambda mel, lengths=None: backend.f0(mel)  # type: ignore[method-assign]
    stream = VocoderStream(plain, seed=3)
    mel, _ = voiced_probe(vocoder, sum(pieces))
    found: list[Tensor] = []
    expected: list[Tensor] = []
    state = None
    for number, part in enumerate(mel.split(list(pieces), dim=2)):
        final = number == 1
        expected.append(stream.push(part, final))
        job = VocoderJob(part[0].t(), state, final, 3)
        pack, answer, states = fused.run([job])
        hop, start, end = vocoder.cfg.hop, int(pack.starts[0]), int(pack.ends[0]) - job.held
        found.append(answer[start * hop : end * hop].float() / 32768)
        state = states[0]
    apart, wanted = torch.cat(found) - torch.cat(expected), torch.cat(expected)
    quiet = _QUIET * len(wanted) ** 0.5  # there int16's steps are all that is seen
    return float(torch.linalg.vector_norm(apart) / torch.linalg.vector_norm(wanted).clamp_min(quiet))

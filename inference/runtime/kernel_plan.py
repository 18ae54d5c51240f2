"""All Triton kernels that a worker's lanes will use, compiled before the lanes are made (see `kernel_build`)."""

from __future__ import annotations

import importlib
import importlib.util
import logging
from collections.abc import Callable, Iterable
from typing import Any

import torch

from inference.models.flow import FlowModel
from inference.models.language_model import LanguageModel
from inference.models.vocoder import Vocoder
from inference.runtime import gpu_traits
from inference.runtime.kernel_build import build
from inference.settings import LaneSettings

logger = logging.getLogger(__name__)


def build_kernels(
    language_model: LanguageModel,
    flow: FlowModel,
    vocoder: Vocoder,
    lanes: LaneSettings,
    progress: Callable[[str], None],
) -> None:
    """Does nothing off CUDA or without Triton. Never fails: a lane then compiles what it needs, or goes without."""
    weight = flow.encoder_proj.weight
    if weight.device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return
    parts: dict[str, Callable[[], Iterable[Any]]] = {
        "language model": lambda: _language_model(language_model, lanes),
        "flow": lambda: _module("velocity_variants").kernel_variants(flow, lanes),
        "streams": lambda: _streams(flow),
        "vocoder": lambda: _vocoder(vocoder, half=weight.dtype != torch.float32),
    }
    found: list[Any] = []
    for part, collect in parts.items():
        try:
            found += collect()
        except Exception:  # whatever is wrong shows again, and is dealt with, where the lanes are made
            logger.warning("The kernels of the %s cannot be listed ahead.", part, exc_info=True)
    try:
        build(found, device=weight.device, progress=progress)
    except Exception:
        logger.warning("Kernels cannot be compiled ahead here.", exc_info=True)


def _module(name: str) -> Any:
    """Imported late: these import Triton."""
    return importlib.import_module(f"inference.runtime.{name}")


def _language_model(model: LanguageModel, lanes: LaneSettings) -> Iterable[Any]:
    found: Iterable[Any] = _module("lm_variants").kernel_variants(model, lanes)
    return found


def _streams(flow: FlowModel) -> Iterable[Any]:
    weight = flow.encoder_proj.weight
    overlap = gpu_traits.kernels_overlap(weight.device)
    found: Iterable[Any] = _module("paged_variants").kernel_variants(flow.cfg, weight.dtype, overlap)
    return found


def _vocoder(vocoder: Vocoder, *, half: bool) -> Iterable[Any]:
    if not (half and vocoder.kernels):
        return []
    found: Iterable[Any] = _module("vocoder_fused").FusedVocoder(vocoder, 1).kernel_variants()
    return found

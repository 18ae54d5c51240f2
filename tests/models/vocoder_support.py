"""Vocoders for tests: sizes as recorded in a golden case, tiny or full-size weights."""

from __future__ import annotations

import importlib.util
import json
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from inference.models.config import VocoderConfig
from inference.models.vocoder import Vocoder, fold_weight_norm
from tests.golden_data import reference_folder, require_golden, tiny_weights


def config_of(meta: dict[str, Any]) -> VocoderConfig:
    """`VocoderConfig` from the `config` entry of a golden case."""
    fixed = meta["fixed"]
    return VocoderConfig(
        mel_bins=fixed["in_channels"],
        base_channels=meta["base_channels"],
        f0_channels=meta["cond_channels"],
        nb_harmonics=fixed["nb_harmonics"],
        sample_rate=fixed["sampling_rate"],
        nsf_alpha=fixed["nsf_alpha"],
        nsf_sigma=fixed["nsf_sigma"],
        nsf_voiced_threshold=fixed["nsf_voiced_threshold"],
        upsample_rates=tuple(fixed["upsample_rates"]),
        upsample_kernel_sizes=tuple(fixed["upsample_kernel_sizes"]),
        istft_n_fft=fixed["n_fft"],
        istft_hop=fixed["hop_len"],
        resblock_kernel_sizes=tuple(fixed["resblock_kernel_sizes"]),
        resblock_dilation_sizes=tuple(tuple(d) for d in fixed["resblock_dilation_sizes"]),
        source_resblock_kernel_sizes=tuple(fixed["source_resblock_kernel_sizes"]),
        lrelu_slope=fixed["lrelu_slope"],
        audio_limit=fixed["audio_limit"],
    )


def loaded(cfg: VocoderConfig, state: dict[str, Tensor]) -> Vocoder:
    vocoder = Vocoder(cfg)
    vocoder.load_state_dict(fold_weight_norm(state))
    return vocoder.eval()


@lru_cache(maxsize=1)
def tiny_vocoder() -> Vocoder:
    """The vocoder of the golden cases; skips the test without golden data."""
    meta = json.loads((require_golden() / "hift_f0_a.json").read_text(encoding="utf-8"))
    return loaded(config_of(meta["config"]), tiny_weights("hift.pt"))


@lru_cache(maxsize=1)
def full_vocoder() -> Vocoder:
    """Public size, weights from `make_weights.py`."""
    require_golden()
    folder = reference_folder()
    spec = importlib.util.spec_from_file_location("make_weights", folder / "make_weights.py")
    assert spec is not None and spec.loader is not None
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    state = maker.state_dict(manifest["files"]["hift.pt"]["tensors"], 7)
    return loaded(VocoderConfig(), state)


def vocoder_for(name: str) -> Vocoder:
    return full_vocoder() if name.startswith("full_") else tiny_vocoder()


def speechlike_mel(frames: int, batch: int = 1, seed: int = 3) -> Tensor:
    """(batch, 80, frames) with the level and smoothness of a log-mel."""
    generator = torch.Generator().manual_seed(seed)
    rough = torch.randn(batch, 80, frames + 4, generator=generator)
    return torch.nn.functional.avg_pool1d(rough, 5, stride=1) * 3.0 - 4.0

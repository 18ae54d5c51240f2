"""Weights that are the same on every machine, so that recorded results need no stored checkpoint beside them.

Each tensor has a NumPy stream of its own, seeded by its name; the scales keep activations in a natural range. Equal to
the generator that the golden data was recorded with (SPEC 9), which a test checks where that file is at hand.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

SEED = 7
GAIN, DIRECTION = ".parametrizations.weight.original0", ".parametrizations.weight.original1"


def random_tensor(key: str, shape: tuple[int, ...], seed: int = SEED) -> Tensor:
    """Float32 values for the parameter `key`, independent of all others."""
    stream = np.random.RandomState(zlib.crc32(key.encode()) ^ seed)
    noise = stream.standard_normal(math.prod(shape)).astype(np.float32).reshape(shape)
    return torch.from_numpy(np.ascontiguousarray(_scaled(key, noise), dtype=np.float32))


def _scaled(key: str, noise: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    one, tenth = np.float32(1.0), np.float32(0.1)
    leaf = key.rpartition(".")[2]
    if leaf == "alpha":  # a slope, positive
        return np.exp(np.float32(0.3) * noise)
    if leaf == "original0":  # a weight-norm gain
        return np.float32(0.5 if key.startswith("conv_post") else 0.8) * (one + tenth * noise)
    if leaf.startswith("pos_bias_"):
        return np.float32(0.2) * noise
    if key == "f0_predictor.classifier.bias":
        return np.float32(40.0) + np.float32(10.0) * noise
    if leaf == "bias":
        return tenth * noise
    if key == "f0_predictor.classifier.weight":  # pitches of speech, some frames unvoiced
        return np.float32(600.0 / np.sqrt(noise.shape[1])) * noise
    if noise.ndim == 1:  # a norm's weight
        return one + tenth * noise
    if "embed_tokens" in key or "embedding" in key.partition(".")[0]:
        return np.float32(0.5) * noise
    if key == "llm_decoder.weight":  # decided, yet not certain
        return np.float32(2.5 / np.sqrt(noise.shape[1])) * noise
    return np.float32(1.0 / np.sqrt(math.prod(noise.shape[1:]))) * noise


def state_of_manifest(entries: Iterable[Mapping[str, Any]], seed: int = SEED) -> dict[str, Tensor]:
    """State dict for the `tensors` list of a manifest; tied tensors share their memory."""
    rows = list(entries)
    state = {
        row["key"]: random_tensor(row["key"], tuple(row["shape"]), seed)
        for row in rows
        if not row.get("tied_to")
    }
    return {row["key"]: state[row.get("tied_to") or row["key"]] for row in rows}


def with_weight_norm(state: Mapping[str, Tensor], layers: Iterable[str]) -> dict[str, Tensor]:
    """`state` with the weight of each named layer parted into gain and direction, as public checkpoints hold it."""
    parted = dict(state)
    for layer in layers:
        weight = parted.pop(layer + ".weight")
        norm = weight.flatten(1).norm(dim=1).view(-1, *([1] * (weight.dim() - 1)))
        parted[layer + GAIN], parted[layer + DIRECTION] = norm, weight
    return parted

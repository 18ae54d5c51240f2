"""A language model whose sizes the kernels take, and a state of slots to run them on."""

from __future__ import annotations

import torch
from torch import Tensor

from inference.models.config import LanguageModelConfig
from inference.models.language_model import LanguageModel, rotary_table
from inference.runtime.kv_cache import KvCache
from inference.runtime.slot_table import ACTIVE, LENGTH, SlotRows
from tests.models.language_model_support import random_model

HEADS, KV_HEADS, SIZE = 6, 2, 32


def kernel_model(seed: int = 0, layers: int = 2) -> LanguageModel:
    """Small, with heads as large as the kernels need; peaky enough to end and to repeat."""
    return random_model(seed, layers, hidden=128, intermediate=96)


class Slots:
    """Keys and values of `slots` slots with random content, and a table that says how long each is."""

    def __init__(self, lengths: list[int], room: int, device: torch.device, dtype: torch.dtype) -> None:
        cfg = LanguageModelConfig(
            hidden_size=HEADS * SIZE, num_heads=HEADS, num_kv_heads=KV_HEADS, num_layers=2
        )
        self.cache = KvCache(cfg, len(lengths) + 1, room, device, dtype)
        self.cache.data.copy_(torch.randn(self.cache.data.shape))
        self.table = SlotRows.create(len(lengths) + 1, cfg.sampling, device).data
        self.table[: len(lengths), LENGTH] = torch.tensor(lengths).to(device)
        self.table[: len(lengths), ACTIVE] = 1
        self.fused = torch.randn(len(lengths), HEADS + 2 * KV_HEADS, SIZE).to(device, dtype)
        self.turns = turns_of(room, device)


def turns_of(room: int, device: torch.device) -> Tensor:
    """Cosines and sines (room, SIZE)."""
    table = rotary_table(torch.arange(room)[None], SIZE, 1e4)
    return torch.cat(table, dim=-1)[0, 0].contiguous().to(device)


def turned(fused: Tensor, turns: Tensor) -> Tensor:
    """Queries and keys of fused (N, heads + 2 kv_heads, size) turned by the plain formula, turns (N, size)."""
    cosine, sine = turns[:, None].float().chunk(2, dim=-1)
    first, second = fused.float().chunk(2, dim=-1)
    both = torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
    return torch.cat((both[:, : HEADS + KV_HEADS], fused[:, HEADS + KV_HEADS :].float()), 1).to(fused.dtype)

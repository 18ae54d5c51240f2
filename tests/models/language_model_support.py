"""Tiny and full-size language models for the tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from inference.models.config import LanguageModelConfig, SamplingConfig
from inference.models.language_model import LanguageModel
from inference.runtime.feed import SpeechPrompt
from tests.golden_data import Case, tiny_weights

UNUSED_KEY = "llm.model.lm_head.weight"


def config_of(meta: dict[str, Any]) -> LanguageModelConfig:
    """Sizes from a golden case's JSON."""
    qwen, config = meta["config"]["qwen2"], meta["config"]
    return LanguageModelConfig(
        vocab_size=qwen["vocab_size"],
        hidden_size=qwen["hidden_size"],
        intermediate_size=qwen["intermediate_size"],
        num_layers=qwen["num_hidden_layers"],
        num_heads=qwen["num_attention_heads"],
        num_kv_heads=qwen["num_key_value_heads"],
        rms_norm_eps=qwen["rms_norm_eps"],
        rope_theta=qwen["rope_theta"],
        speech_token_size=config["speech_token_size"],
        sampling=SamplingConfig(**config.get("sampling", {})),
    )


def load_model(cfg: LanguageModelConfig, state: dict[str, Tensor]) -> LanguageModel:
    """A model with the weights of a checkpoint, strictly, its unused text head left out."""
    with torch.device("meta"):
        model = LanguageModel(cfg)
    model.load_state_dict({key: value for key, value in state.items() if key != UNUSED_KEY}, assign=True)
    return model.eval().requires_grad_(False)


def tiny_model(case: Case) -> LanguageModel:
    return load_model(config_of(case.meta), tiny_weights("llm.pt"))


def random_model(
    seed: int = 0, layers: int = 2, *, hidden: int = 32, intermediate: int = 64
) -> LanguageModel:
    """A small model that needs no golden data; its distribution is peaky enough to end and to repeat."""
    cfg = LanguageModelConfig(
        vocab_size=50,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_layers=layers,
        num_heads=4,
        num_kv_heads=2,
        speech_token_size=40,
    )
    torch.manual_seed(seed)
    model = LanguageModel(cfg).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            parameter.copy_(torch.randn_like(parameter) * (1.5 / parameter.shape[1] ** 0.5))
        elif name.endswith("bias"):
            parameter.copy_(torch.randn_like(parameter) * 0.1)
    model.llm_decoder.bias[
        cfg.end_of_speech + 1 :
    ] = -60.0  # reserved ids, which a trained model never draws either
    return model


def prompt(text: Iterable[int], speech: Iterable[int] = (), seed: int = 0) -> SpeechPrompt:
    """A prompt without prompt text."""
    none = np.zeros(0, dtype=np.int32)
    return SpeechPrompt(
        np.array(list(text), dtype=np.int32), none, np.array(list(speech), dtype=np.int32), seed
    )


def prompt_of(case: Case) -> SpeechPrompt:
    arrays = case.arrays
    return SpeechPrompt(arrays["text_token"], arrays["prompt_text_token"], arrays["prompt_speech_token"])

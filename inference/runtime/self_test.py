"""Fixed inputs that tell whether a model is sound in half precision (see `precision.with_precision`)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from inference.models.flow import FlowModel
from inference.models.language_model import LanguageModel
from inference.runtime.feed import SpeechPrompt, pad_feeds


def probe_language_model(model: LanguageModel) -> Tensor:
    """Speech logits (1, T, speech ids) of a fixed prompt."""
    text = np.arange(11, 40, dtype=np.int32) % model.cfg.vocab_size
    speech = np.arange(0, 6000, 97, dtype=np.int32) % model.cfg.speech_token_size
    kinds, ids, _ = pad_feeds([SpeechPrompt(text, text[:0], speech).feed()], model.device)
    return model.logits(model(model.embed(kinds, ids)))


def probe_flow(model: FlowModel) -> Tensor:
    """Mel (1, 80, 80) of fixed tokens behind a fixed prompt."""
    device = model.encoder_proj.weight.device
    tokens = (torch.arange(40, device=device) * 97 % model.cfg.vocab_size)[None]
    prompt_mel = torch.linspace(-8.0, 0.0, 40 * model.cfg.mel_bins, device=device).view(1, 40, -1)
    speaker = torch.linspace(-1.0, 1.0, model.cfg.speaker_dim, device=device)[None]
    mel, _ = model.inference(
        tokens,
        torch.tensor([40]),
        tokens[:, :20],
        torch.tensor([20]),
        prompt_mel,
        torch.tensor([40]),
        speaker,
        streaming=False,
        finalize=True,
    )
    return mel

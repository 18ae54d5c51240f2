"""Flow models and inputs for the tests."""

from __future__ import annotations

import json
import runpy
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from inference.models.config import EstimatorConfig, FlowConfig, FlowEncoderConfig
from inference.models.flow import FlowModel
from tests.golden_data import reference_folder, tiny_weights


def config_of(recorded: dict[str, Any]) -> FlowConfig:
    """The sizes a golden case was recorded with."""
    width, estimator = recorded["dim"], recorded["est"]
    return FlowConfig(
        input_size=width,
        encoder=FlowEncoderConfig(
            input_size=width,
            output_size=width,
            attention_heads=recorded["heads"],
            linear_units=recorded["linear_units"],
            num_blocks=recorded["num_blocks"],
            chunk_tokens=recorded["chunk"],
        ),
        estimator=EstimatorConfig(
            channels=estimator["channels"][0],
            attention_head_dim=estimator["attention_head_dim"],
            num_heads=estimator["num_heads"],
            n_blocks=estimator["n_blocks"],
            num_mid_blocks=estimator["num_mid_blocks"],
            chunk_frames=2 * recorded["chunk"],
        ),
    )


TINY = FlowConfig(
    input_size=64,
    encoder=FlowEncoderConfig(64, 64, attention_heads=4, linear_units=128, num_blocks=2),
    estimator=EstimatorConfig(channels=32, attention_head_dim=16, num_heads=2, n_blocks=1, num_mid_blocks=2),
)


@lru_cache(maxsize=1)
def tiny_flow() -> FlowModel:
    """The recorded tiny checkpoint."""
    model = FlowModel(TINY).eval()
    model.load_state_dict(tiny_weights("flow.pt"), strict=True)
    return model


@lru_cache(maxsize=1)
def random_flow() -> FlowModel:
    """A small model with lively random weights; needs no golden data."""
    with torch.random.fork_rng():
        torch.manual_seed(11)
        model = FlowModel(TINY).eval()
        for name, parameter in model.named_parameters():
            if "pos_bias" in name or name.endswith("bias"):
                torch.nn.init.normal_(parameter, std=0.2)
    return model


@lru_cache(maxsize=1)
def full_size_flow() -> FlowModel:
    """The public size with the recorded recipe's random weights, made in memory."""
    reference = reference_folder()
    manifest = json.loads((reference / "manifest.json").read_text(encoding="utf-8"))
    make = runpy.run_path(str(reference / "make_weights.py"))["state_dict"]
    with torch.device("meta"):
        model = FlowModel(FlowConfig()).eval()
    model.load_state_dict(make(manifest["files"]["flow.pt"]["tensors"]), strict=True, assign=True)
    return model


def manifest_tensors(file: Path) -> dict[str, tuple[int, ...]]:
    """Key → shape of `flow.pt` in a manifest."""
    entries = json.loads(file.read_text(encoding="utf-8"))["files"]["flow.pt"]["tensors"]
    return {entry["key"]: tuple(entry["shape"]) for entry in entries}


@dataclass(frozen=True)
class Request:
    """One item of a batch, unpadded."""

    tokens: Tensor  # (N,)
    prompt: Tensor  # (P,)
    prompt_mel: Tensor  # (F, 80)
    speaker: Tensor  # (192,)


def make_request(tokens: int, prompt: int, prompt_frames: int | None = None, seed: int = 0) -> Request:
    """Random inputs of given lengths; by default two prompt frames for each prompt token."""
    generator = torch.Generator().manual_seed(1000 * seed + 7 * tokens + prompt)
    frames = 2 * prompt if prompt_frames is None else prompt_frames
    return Request(
        torch.randint(0, 6561, (tokens,), generator=generator),
        torch.randint(0, 6561, (prompt,), generator=generator),
        torch.randn(frames, 80, generator=generator) - 5,
        torch.randn(192, generator=generator),
    )


def _pad(items: list[Tensor], garbage: float) -> tuple[Tensor, Tensor]:
    """Stack with padding that must not matter."""
    lengths = torch.tensor([len(item) for item in items])
    shape = (len(items), int(lengths.max()), *items[0].shape[1:])
    padded = torch.full(shape, garbage, dtype=items[0].dtype)
    for row, item in zip(padded, items):
        row[: len(item)] = item
    return padded, lengths


def run_flow(
    model: FlowModel, requests: list[Request], *, streaming: bool, finalize: bool
) -> tuple[list[Tensor], Tensor]:
    """Run a batch of requests on the model's device; returns each item's mel (80, M) and the padded mel."""
    device = model.encoder_proj.weight.device
    tokens, token_lens = _pad([r.tokens for r in requests], 17)
    prompts, prompt_lens = _pad([r.prompt for r in requests], 23)
    mels, mel_lens = _pad([r.prompt_mel for r in requests], 99.0)
    speakers = torch.stack([r.speaker for r in requests])
    mel, lengths = model.inference(
        tokens.to(device),
        token_lens,
        prompts.to(device),
        prompt_lens,
        mels.to(device),
        mel_lens,
        speakers.to(device),
        streaming=streaming,
        finalize=finalize,
    )
    return [row[:, : int(n)] for row, n in zip(mel, lengths)], mel

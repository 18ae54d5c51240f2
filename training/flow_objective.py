"""What the flow learns: conditional flow matching along straight paths, with prompts and guidance dropout."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from inference.models.flow import FlowModel
from inference.models.masks import valid_positions
from training.augment import warp_bins
from training.flow_data import FlowBatch

SIGMA_MIN = 1e-6


@dataclass(frozen=True)
class FlowTraining:
    """Shares and strengths of everything random."""

    guidance_dropout: float = 0.2
    token_noise: float = 0.03
    vector_noise: float = 0.02  # standard deviation per dimension of a unit vector
    timbre: float = 0.25  # share of items with a prompt whose timbre is altered in prompt and target alike
    prior_weight: float = 0.05  # of the encoder's own distance to the mel: makes it useful early


def replace_tokens(tokens: Tensor, share: float) -> Tensor:
    """Put a random other token of the batch in place of a share of them: the language model errs, too."""
    flat = tokens.flatten()
    others = flat[torch.randint(0, flat.numel(), tokens.shape, device=tokens.device)]
    return torch.where(torch.rand(tokens.shape, device=tokens.device) < share, others, tokens)


def alter_timbre(mel: Tensor, chosen: Tensor) -> Tensor:
    """Give the chosen items (B,) bool another vocal tract, colour and level, constant over time.

    mel (B, 80, T). Prompt and target change alike, so that the prompt alone tells how the rest has to sound.
    """
    batch, bins, _ = mel.shape
    device = mel.device
    factors = 1 + 0.06 * (2 * torch.rand(batch, device=device) - 1)
    points = torch.randn(batch, 1, 9, device=device) * 0.25
    curve = F.interpolate(points.cumsum(2), size=bins, mode="linear", align_corners=True)
    level = 0.7 * (2 * torch.rand(batch, 1, 1, device=device) - 1)
    curve = curve - curve.mean(2, keepdim=True) + level
    changed = (warp_bins(mel, factors) + curve.transpose(1, 2)).clamp_min(math.log(1e-5))
    return torch.where(chosen[:, None, None], changed, mel)


def training_times(batch: int, device: torch.device) -> Tensor:
    """(B,) times, spread evenly over the batch and warped as the solver's grid is."""
    even = (torch.arange(batch, device=device) + torch.rand(batch, device=device)) / batch
    return 1 - torch.cos(even * (math.pi / 2))


def masked_mean(values: Tensor, keep: Tensor) -> Tensor:
    """Mean of (B, C, T) over the frames kept by (B, 1, T)."""
    return (values * keep).sum() / (keep.sum() * values.shape[1]).clamp_min(1)


def flow_loss(
    model: FlowModel, batch: FlowBatch, *, streaming: bool, how: FlowTraining
) -> tuple[Tensor, Tensor]:
    """(loss to minimise, flow-matching part of it), both scalars; nothing waits for the device.

    `streaming` trains with block-causal masks and look-ahead tokens that make no frames of their own.
    """
    tokens = replace_tokens(batch.tokens, how.token_noise)
    mu, lengths = model.encode(tokens, batch.lengths, streaming=streaming, finalize=not streaming)
    count, frames = mu.shape[0], mu.shape[2]
    lengths = batch.lengths if lengths is None else lengths
    has_prompt = batch.prompt > 12
    altered = has_prompt & (torch.rand(count, device=mu.device) < how.timbre)
    mel = alter_timbre(batch.mel[:, :, :frames], altered)
    valid = valid_positions(lengths, frames)[:, None].float()
    given = valid_positions(2 * batch.prompt, frames)[:, None].float()
    vector = F.normalize(batch.speaker, dim=1)
    speaker = model.project_speaker(vector + how.vector_noise * torch.randn_like(vector)).float()
    guided = (torch.rand(count, device=mu.device) >= how.guidance_dropout).float()

    noise = torch.randn_like(mel)
    t = training_times(count, mel.device)[torch.rand(count, device=mel.device).argsort()]
    along = t[:, None, None]
    state = (1 - (1 - SIGMA_MIN) * along) * noise + along * mel
    direction = mel - (1 - SIGMA_MIN) * noise
    found = model.decoder.estimator(
        state,
        valid,
        mu.float() * guided[:, None, None],
        t,
        speaker * guided[:, None],
        mel * given * guided[:, None, None],
        streaming,
    )
    matching = masked_mean((found.float() - direction).square(), valid * (1 - given))
    prior = masked_mean((mu.float() - mel).square(), valid)
    return matching + how.prior_weight * prior, matching.detach()

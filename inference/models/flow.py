"""The flow model: speech tokens, a reference mel and a speaker vector → mel spectrogram (SPEC 4, 5).

Parameter names are the keys of `flow.pt`. A padded batch gives every item what it gets alone.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inference.models.config import FlowConfig
from inference.models.flow_encoder import FlowEncoder
from inference.models.masks import valid_positions
from inference.models.velocity import VelocityNetwork
from inference.runtime.flow_solver import FlowConditions, VelocityBackend, check_length, solve
from inference.types import EngineError


class FlowDecoder(nn.Module):
    """Holds the velocity network under its checkpoint name."""

    def __init__(self, cfg: FlowConfig) -> None:
        super().__init__()
        self.estimator = VelocityNetwork(cfg.estimator)


class FlowPlan(NamedTuple):
    """Lengths of one call, known on the host, so that nothing waits for the device."""

    tokens: Tensor  # (B,) prompt + generated
    frames: Tensor  # (B,) mel frames made, prompt included
    prompt_frames: Tensor  # (B,)
    padded: bool

    @property
    def mel_frames(self) -> Tensor:
        """(B,) frames of the answer."""
        return self.frames - self.prompt_frames


def join_prompt(prompt: Tensor, prompt_lens: Tensor, tokens: Tensor, size: int) -> Tensor:
    """Put each item's tokens right behind its own prompt: (B, P), (B,), (B, N) → (B, size).

    What stands behind an item's end is arbitrary.
    """
    position = torch.arange(size, device=tokens.device)[None]
    offset = position - prompt_lens[:, None]
    both = torch.cat((prompt, tokens), dim=1)
    source = torch.where(offset < 0, position, offset + prompt.shape[1])
    return both.gather(1, source.clamp(0, both.shape[1] - 1))


class FlowModel(nn.Module):
    """Token-to-mel model: encoder, velocity network, guided Euler solver."""

    def __init__(self, cfg: FlowConfig) -> None:
        super().__init__()
        self.cfg = cfg
        # Evaluates the velocity network of `inference`, which it has copies of (see `runtime.backends`).
        self.backend: VelocityBackend | None = None
        self.input_embedding = nn.Embedding(cfg.vocab_size, cfg.input_size)
        self.spk_embed_affine_layer = nn.Linear(cfg.speaker_dim, cfg.mel_bins)
        self.encoder = FlowEncoder(cfg.encoder, cfg.pre_lookahead, cfg.token_mel_ratio)
        self.encoder_proj = nn.Linear(cfg.encoder.output_size, cfg.mel_bins)
        self.decoder = FlowDecoder(cfg)

    def project_speaker(self, speaker: Tensor) -> Tensor:
        """(B, 192) speaker vectors of any length → (B, 80)."""
        unit = F.normalize(speaker.float(), dim=1, eps=1e-12)
        weight = self.spk_embed_affine_layer.weight
        return F.linear(unit.to(weight.dtype), weight, self.spk_embed_affine_layer.bias)

    def encode(
        self, tokens: Tensor, token_lens: Tensor | None, *, streaming: bool = False, finalize: bool = True
    ) -> tuple[Tensor, Tensor | None]:
        """tokens (B, N) int → mu (B, 80, T) and frame counts (B,), with T = 2N or 2(N - 3) unless `finalize`.

        `token_lens` (B,) on the device, or None when no item is padded (the frame counts are then None too).
        Ids outside the vocabulary are clamped into it. Padded frames of mu are 0.
        """
        ids = tokens.long().clamp(0, self.cfg.vocab_size - 1)
        features, lengths = self.encoder(
            self.input_embedding(ids), token_lens, streaming=streaming, finalize=finalize
        )
        mu = self.encoder_proj(features)
        if lengths is not None:
            mu = mu * valid_positions(lengths, mu.shape[1])[..., None]
        return mu.transpose(1, 2), lengths

    def check(self, tokens: int, prompt_tokens: int, prompt_frames: int, *, finalize: bool) -> int:
        """The mel frames of one item, prompt included; refuses what cannot be computed as `plan` does."""
        made = prompt_tokens + tokens - (0 if finalize else self.cfg.pre_lookahead)
        if made < 1:
            raise EngineError(
                "flow_input_too_short", "There are too few speech tokens to make any sound from."
            )
        frames = made * self.cfg.token_mel_ratio
        check_length(frames)
        if prompt_frames > frames:
            raise EngineError(
                "prompt_mel_too_long", "The reference's spectrogram is longer than its speech tokens allow."
            )
        return frames

    def plan(
        self, token_lens: Tensor, prompt_lens: Tensor, prompt_mel_lens: Tensor, *, finalize: bool
    ) -> FlowPlan:
        """Work out all lengths on the host and refuse what cannot be computed.

        Raises `RequestError("too_long")` beyond 300 s, `EngineError("flow_input_too_short")` when nothing is left to
        decode and `EngineError("prompt_mel_too_long")` when a prompt mel is longer than its tokens allow.
        """
        tokens = (prompt_lens + token_lens).cpu().long()
        prompt_frames = prompt_mel_lens.cpu().long()
        lengths = zip(tokens.tolist(), prompt_frames.tolist())
        found = [self.check(count, 0, prompt, finalize=finalize) for count, prompt in lengths]
        frames = torch.tensor(found)
        padded = int(tokens.min()) != int(tokens.max())
        return FlowPlan(tokens, frames, prompt_frames, padded)

    @torch.inference_mode()
    def inference(
        self,
        tokens: Tensor,
        token_lens: Tensor,
        prompt_tokens: Tensor,
        prompt_lens: Tensor,
        prompt_mel: Tensor,
        prompt_mel_lens: Tensor,
        speaker: Tensor,
        *,
        streaming: bool,
        finalize: bool,
        backend: VelocityBackend | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Speech tokens → mel of the generated part.

        tokens (B, N), prompt_tokens (B, P) int; prompt_mel (B, F, 80) log-mel at 50 frames a second; speaker (B, 192);
        the three lengths (B,), best on the CPU (elsewhere they cost one wait for the device).
        `streaming` takes block-causal masks, `finalize` says that no more tokens follow (SPEC 5.3). `backend` evaluates
        the velocity network: by default `self.backend`, else the module itself.
        Returns mel (B, 80, M) float32 with zeros behind each item's end, and its frame counts (B,) on the CPU.
        Raises what `plan` raises.
        """
        plan = self.plan(token_lens, prompt_lens, prompt_mel_lens, finalize=finalize)
        conditions = self.conditions(
            plan, tokens, prompt_tokens, prompt_lens, prompt_mel, speaker, streaming, finalize
        )
        mel = solve(
            backend or self.backend or self.decoder.estimator,
            conditions,
            steps=self.cfg.n_timesteps,
            cfg_rate=self.cfg.cfg_rate,
        )
        return _cut_prompt(mel, plan), plan.mel_frames

    def conditions(
        self,
        plan: FlowPlan,
        tokens: Tensor,
        prompt_tokens: Tensor,
        prompt_lens: Tensor,
        prompt_mel: Tensor,
        speaker: Tensor,
        streaming: bool,
        finalize: bool,
    ) -> FlowConditions:
        """What the solver needs, for arguments as in `inference`."""
        device = tokens.device
        joined = join_prompt(
            prompt_tokens.to(tokens.dtype), prompt_lens.to(device), tokens, int(plan.tokens.max())
        )
        token_lens = plan.tokens.to(device) if plan.padded else None
        mu, frame_lens = self.encode(joined, token_lens, streaming=streaming, finalize=finalize)
        frames = mu.shape[2]
        prompt = prompt_mel[:, :frames].transpose(1, 2).float()
        prompt = F.pad(prompt, (0, frames - prompt.shape[2]))
        cond = prompt * valid_positions(plan.prompt_frames.to(device), frames)[:, None]
        mask = None if frame_lens is None else valid_positions(frame_lens, frames)[:, None].float()
        return FlowConditions(mu.float(), self.project_speaker(speaker).float(), cond, mask, streaming)


def _cut_prompt(mel: Tensor, plan: FlowPlan) -> Tensor:
    """Drop each item's prompt frames: (B, 80, T) → (B, 80, M), zeros behind an item's end."""
    lengths = plan.mel_frames
    size = int(lengths.max())
    first = int(plan.prompt_frames[0])
    if not plan.padded and bool((plan.prompt_frames == first).all()):
        return mel[:, :, first:]
    position = torch.arange(size, device=mel.device)[None] + plan.prompt_frames.to(mel.device)[:, None]
    position = position.clamp_max(mel.shape[2] - 1)[:, None].expand(-1, mel.shape[1], -1)
    return mel.gather(2, position) * valid_positions(lengths.to(mel.device), size)[:, None]

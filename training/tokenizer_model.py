"""The speech tokenizer's trainable part: a head on Whisper features, six ternary digits, and a phone decoder.

Six digits give 729 codes. The decoder (phones, relative pitch, voicing) exists for training only.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.whisper_front import WIDTH, WhisperFront

HEAD_WIDTH = 192
HEAD_HEADS = 4
DIGITS = 6
DIGIT_SCALE = 1.27  # before tanh: of a normal distribution, a third rounds to each digit
PHONE_CAPACITY = 192  # outputs of the phone decoder, blank included; unused ones are never a target


class MaskedBatchNorm(nn.Module):
    """BatchNorm over valid frames only, without boolean indexing (which would wait for the device).

    Nothing in it is learnt: a trainable scale would let the agreement loss shrink every digit to nothing.
    """

    mean: Tensor
    variance: Tensor

    def __init__(self, size: int, momentum: float = 0.02) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("variance", torch.ones(size))
        self.momentum = momentum
        self.frozen = False  # true near the end of training: what is learnt then is what is exported

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """x: (B, T, C); mask: (B, T) bool or None for all."""
        mean, variance = self.mean, self.variance
        if self.training and not self.frozen:
            weights = torch.ones_like(x[..., :1]) if mask is None else mask[..., None].to(x.dtype)
            total = weights.sum().clamp_min(1.0)
            mean = (x * weights).sum((0, 1)) / total
            variance = ((x - mean).square() * weights).sum((0, 1)) / total
            with torch.no_grad():
                self.mean.lerp_(mean.detach(), self.momentum)
                self.variance.lerp_(variance.detach(), self.momentum)
        return (x - mean) * torch.rsqrt(variance + 1e-5) * DIGIT_SCALE


class HeadLayer(nn.Module):
    """Pre-norm attention, depthwise convolution over 7 frames, feed-forward."""

    def __init__(self, width: int = HEAD_WIDTH, heads: int = HEAD_HEADS, dropout: float = 0.1) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.projections = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.local = nn.Conv1d(width, width, 7, padding=3, groups=width)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """x: (B, T, width); mask: (B, T) bool or None."""
        batch, length, width = x.shape
        heads = self.projections(self.attention_norm(x)).view(
            batch, length, 3 * self.heads, width // self.heads
        )
        query, key, value = heads.transpose(1, 2).split(self.heads, dim=1)
        keys = None if mask is None else mask[:, None, None, :]
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=keys)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(batch, length, width))
        visible = x if mask is None else x * mask[..., None]
        x = x + self.local(visible.transpose(1, 2)).transpose(1, 2)
        expanded = self.dropout(F.gelu(self.expand(self.feed_forward_norm(x))))
        return torch.add(x, self.contract(expanded))


class TokenizerHead(nn.Module):
    """Features at 50 frames a second to six numbers in (-1, 1) at 25 frames a second; rounded, they are the code."""

    def __init__(self) -> None:
        super().__init__()
        self.input_norm = nn.LayerNorm(WIDTH)
        self.dropout = nn.Dropout(0.1)
        self.down = nn.Conv1d(WIDTH, HEAD_WIDTH, 3, stride=2, padding=1)
        self.layers = nn.ModuleList(HeadLayer() for _ in range(2))
        self.output_norm = nn.LayerNorm(HEAD_WIDTH)
        self.to_digits = nn.Linear(HEAD_WIDTH, DIGITS)
        self.batch_norm = MaskedBatchNorm(DIGITS)

    def forward(self, features: Tensor, feature_lengths: Tensor | None, mask: Tensor | None) -> Tensor:
        """features: (B, T50, 512); feature_lengths: (B,); mask: (B, T25) bool, both None if all are full length."""
        x = self.dropout(self.input_norm(features))
        if feature_lengths is not None:
            x = x * (torch.arange(x.shape[1], device=x.device)[None] < feature_lengths[:, None])[..., None]
        x = F.gelu(self.down(x.transpose(1, 2))).transpose(1, 2)
        for layer in self.layers:
            x = layer(x, mask)
        return torch.tanh(self.batch_norm(self.to_digits(self.output_norm(x)).float(), mask))


class PhoneDecoder(nn.Module):
    """Reads the rounded digits: phones (CTC), and for each half frame relative log-F0 and voicing."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(DIGITS, HEAD_WIDTH)
        self.layers = nn.ModuleList(HeadLayer() for _ in range(2))
        self.phones = nn.Linear(HEAD_WIDTH, 2 * PHONE_CAPACITY)
        self.pitch = nn.Linear(HEAD_WIDTH, 4)

    def forward(self, digits: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """digits: (B, T, 6); returns (B, T, 2 * phones) logits (two slots a token: quick Mandarin has nearly 25
        symbols a second) and (B, T, 4): two of log-F0, two of voicing."""
        x = self.up(digits)
        for layer in self.layers:
            x = layer(x, mask)
        return self.phones(x), self.pitch(x)


def round_through(values: Tensor) -> Tensor:
    """Nearest of -1, 0, 1; the gradient passes as if nothing happened."""
    return values + (values.round() - values).detach()


def to_ids(values: Tensor) -> Tensor:
    """(..., 6) in (-1, 1) to int32 ids below 729: id = sum of digit_i * 3^i, digits 0 to 2 (SPEC 2.5)."""
    weights = torch.tensor([3.0**i for i in range(DIGITS)], device=values.device)
    return ((values.round() + 1.0) * weights).sum(-1).to(torch.int32)


class SpeechTokenizerNetwork(nn.Module):
    """The whole file: log-mel in, ids out."""

    def __init__(self, front: WhisperFront, head: TokenizerHead) -> None:
        super().__init__()
        self.front = front
        self.head = head

    def forward(self, feats: Tensor, feats_length: Tensor) -> Tensor:
        """feats: (1, 128, N); feats_length: (1,) int32; returns (1, ceil(ceil(N / 2) / 2)) int32. For the export."""
        mel = feats[:, :, : feats_length[0].to(torch.int64)]
        return to_ids(self.head(self.front(mel), None, None))

    def ids(self, mel: Tensor, lengths: Tensor) -> Tensor:
        """mel: (B, 128, N); lengths: (B,) frames; returns (B, T) int32, meaningless past ceil(lengths / 4)."""
        halves = torch.div(lengths + 1, 2, rounding_mode="floor")
        tokens = torch.div(halves + 1, 2, rounding_mode="floor")
        features = self.front(mel, lengths)
        steps = (features.shape[1] + 1) // 2
        mask = torch.arange(steps, device=mel.device)[None] < tokens[:, None]
        return to_ids(self.head(features, halves, mask))

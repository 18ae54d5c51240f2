"""The flow model's encoder: speech-token embeddings at 25 a second → features at 50 a second (SPEC 4).

Parameter names are those of `flow.pt` below `encoder.`. The residual stream and the layer norms are float32 whatever
the dtype of the weights, which keeps the eps of 1e-12 harmless.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inference.models.config import FlowEncoderConfig
from inference.models.masks import Visibility, valid_positions, visibility

LAYER_EPS = 1e-12  # of the two norms inside a layer; all others use 1e-5
# Queries scored at a time: bounds the memory of the position scores of long inputs. On the CPU so few that the scores
# stay in a core's cache; nor are then many distances computed that no query of the block has.
QUERY_BLOCK, CPU_QUERY_BLOCK = 1024, 128
_SMALLEST_TABLE = 1024


@lru_cache(maxsize=16)
def _sinusoid_table(size: int, dim: int, device: torch.device) -> Tensor:
    """(2 * size - 1, dim) float32: r(k) for k = size-1 down to -(size-1), sines and cosines interleaved."""
    with torch.inference_mode(False):
        # In float32 on the CPU: the rounding of the angles is part of what the checkpoint was trained with.
        rates = torch.exp(torch.arange(0, dim, 2, dtype=torch.float32) * -(math.log(10000.0) / dim))
        angles = torch.arange(size - 1, -size, -1, dtype=torch.float32)[:, None] * rates
        return torch.stack((torch.sin(angles), torch.cos(angles)), dim=-1).reshape(-1, dim).to(device)


def relative_positions(size: int, dim: int, device: torch.device) -> Tensor:
    """(2 * size - 1, dim): the sinusoids r(k) for the relative positions k = size-1 … -(size-1) (SPEC 4)."""
    capacity = _SMALLEST_TABLE
    while capacity < size:
        capacity *= 2
    table = _sinusoid_table(capacity, dim, device)
    return table[capacity - size : capacity + size - 1]


class Float32LayerNorm(nn.LayerNorm):
    """Layer norm computed in float32; the result has the dtype of the weights."""

    def forward(self, x: Tensor) -> Tensor:
        normed = F.layer_norm(
            x.float(), self.normalized_shape, self.weight.float(), self.bias.float(), self.eps
        )
        return normed.to(self.weight.dtype)


class LinearEmbed(nn.Module):
    """Linear, layer norm, times the square root of the width. Keys `out.0`, `out.1`."""

    def __init__(self, input_size: int, output_size: int) -> None:
        super().__init__()
        self.out = nn.ModuleList([nn.Linear(input_size, output_size), Float32LayerNorm(output_size)])
        self.scale = math.sqrt(output_size)

    def forward(self, x: Tensor) -> Tensor:
        linear, norm = self.out
        embedded: Tensor = norm(linear(x)) * self.scale
        return embedded


class PreLookahead(nn.Module):
    """Mixes each token with the next `lookahead` ones (conv1), then with the two before (conv2)."""

    def __init__(self, channels: int, lookahead: int) -> None:
        super().__init__()
        self.lookahead = lookahead
        self.conv1 = nn.Conv1d(channels, channels, lookahead + 1)
        self.conv2 = nn.Conv1d(channels, channels, 3)

    def forward(self, x: Tensor, finalize: bool) -> Tensor:
        """x (B, N, D) with zeros at padded positions → (B, N, D), or (B, N - lookahead, D) unless `finalize`.

        Unless `finalize`, the last tokens of each item serve as look-ahead only.
        """
        frames = x.transpose(1, 2)
        if finalize:
            frames = F.pad(frames, (0, self.lookahead))
        hidden = F.leaky_relu(self.conv1(frames))
        mixed = self.conv2(F.pad(hidden, (2, 0))).transpose(1, 2)
        output: Tensor = x[:, : mixed.shape[1]] + mixed
        return output


class RelativeAttention(nn.Module):
    """Multi-head attention whose scores also depend on i - j through sinusoids (SPEC 4)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.head_dim = width // heads
        self.linear_q = nn.Linear(width, width)
        self.linear_k = nn.Linear(width, width)
        self.linear_v = nn.Linear(width, width)
        self.linear_out = nn.Linear(width, width)
        self.linear_pos = nn.Linear(width, width, bias=False)
        self.pos_bias_u = nn.Parameter(torch.zeros(heads, self.head_dim))
        self.pos_bias_v = nn.Parameter(torch.zeros(heads, self.head_dim))

    def split_heads(self, x: Tensor) -> Tensor:
        """(B, T, D) → (B, heads, T, head_dim)."""
        output: Tensor = x.unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2)
        return output

    def forward(self, x: Tensor, positions: Tensor, seen: Visibility) -> Tensor:
        """x (B, T, D), positions (2T-1, D) from `relative_positions` → (B, T, D)."""
        size = x.shape[1]
        query, key, value = (
            self.split_heads(self.linear_q(x)),
            self.split_heads(self.linear_k(x)),
            self.split_heads(self.linear_v(x)),
        )
        table = self.split_heads(self.linear_pos(positions.to(x.dtype))[None])
        outputs = []
        step = CPU_QUERY_BLOCK if x.device.type == "cpu" else QUERY_BLOCK
        for start in range(0, size, step):
            end = min(start + step, size)
            keys = seen.keys_for(end)
            block = query[:, :, start:end]
            rows = table[:, :, size - end : size - 1 - start + keys]
            mask = seen.mask(start, end, x.device)
            outputs.append(self.attend(block, key[:, :, :keys], value[:, :, :keys], rows, mask))
        joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)
        output: Tensor = self.linear_out(joined.transpose(1, 2).flatten(2))
        return output

    def attend(self, query: Tensor, key: Tensor, value: Tensor, table: Tensor, mask: Tensor | None) -> Tensor:
        """query (B, H, n, d), key and value (B, H, K, d), mask (True = visible) → (B, H, n, d).

        table (1 or B, H, n + K - 1, d) holds W r(i - j) from the last query and first key to the first query and
        last key.
        """
        bias = self._position_scores(query, table, key.shape[2])
        # The view's rows begin anywhere, and CUDA's attention reads a half-precision bias 16 bytes at a time.
        bias = bias.contiguous() if mask is None else bias.masked_fill(~mask, float("-inf"))
        content = query + self.pos_bias_u[:, None]
        return F.scaled_dot_product_attention(content, key, value, attn_mask=bias)

    def _position_scores(self, query: Tensor, table: Tensor, keys: int) -> Tensor:
        """(q_i + v) · W r(i - j) / √head_dim for a block of queries (B, H, n, d) → (B, H, n, keys).

        table (1 or B, H, n + keys - 1, d) covers the block's i - j in falling order. Row r of the product
        starts at column n - 1 - r; reading the flattened product with rows one shorter undoes that shift as a view.
        """
        rows = query.shape[2]
        scaled = (query + self.pos_bias_v[:, None]) * (1 / math.sqrt(self.head_dim))
        scores = torch.matmul(scaled, table.transpose(2, 3))
        if rows == 1:
            return scores
        shorter = scores.shape[-1] - 1
        flat = scores.flatten(2)[..., rows - 1 : rows - 1 + rows * shorter]
        output: Tensor = flat.unflatten(2, (rows, shorter))[..., :keys]
        return output


class FeedForward(nn.Module):
    """Two linears with a SiLU between."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.w_1 = nn.Linear(width, hidden)
        self.w_2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.w_2(F.silu(self.w_1(x)))
        return output


class ConformerLayer(nn.Module):
    """Pre-norm attention and feed-forward, each with a residual connection."""

    def __init__(self, cfg: FlowEncoderConfig) -> None:
        super().__init__()
        width = cfg.output_size
        self.self_attn = RelativeAttention(width, cfg.attention_heads)
        self.feed_forward = FeedForward(width, cfg.linear_units)
        self.norm_mha = Float32LayerNorm(width, eps=LAYER_EPS)
        self.norm_ff = Float32LayerNorm(width, eps=LAYER_EPS)

    def forward(self, x: Tensor, positions: Tensor, seen: Visibility) -> Tensor:
        x = x + self.self_attn(self.norm_mha(x), positions, seen).float()
        output: Tensor = x + self.feed_forward(self.norm_ff(x)).float()
        return output


class Upsample(nn.Module):
    """Every position `factor` times, then a causal convolution."""

    def __init__(self, channels: int, factor: int) -> None:
        super().__init__()
        self.factor = factor
        self.conv = nn.Conv1d(channels, channels, 2 * factor + 1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, D) → (B, factor * N, D)."""
        repeated = x.repeat_interleave(self.factor, dim=1).transpose(1, 2)
        output: Tensor = self.conv(F.pad(repeated, (2 * self.factor, 0))).transpose(1, 2)
        return output


class FlowEncoder(nn.Module):
    """Upsampling conformer encoder (SPEC 4)."""

    def __init__(self, cfg: FlowEncoderConfig, lookahead: int = 3, factor: int = 2) -> None:
        super().__init__()
        width = cfg.output_size
        self.chunk = cfg.chunk_tokens
        self.lookahead = lookahead
        self.factor = factor
        self.embed = LinearEmbed(cfg.input_size, width)
        self.pre_lookahead_layer = PreLookahead(width, lookahead)
        self.encoders = nn.ModuleList(ConformerLayer(cfg) for _ in range(cfg.num_blocks))
        self.up_layer = Upsample(width, factor)
        self.up_embed = LinearEmbed(width, width)
        self.up_encoders = nn.ModuleList(ConformerLayer(cfg) for _ in range(cfg.num_up_blocks))
        self.after_norm = Float32LayerNorm(width)

    def forward(
        self, x: Tensor, lengths: Tensor | None, *, streaming: bool, finalize: bool
    ) -> tuple[Tensor, Tensor | None]:
        """x (B, N, input_size) → features (B, factor * n, D) and their lengths, with n = N or N - lookahead.

        `lengths` (B,) counts all tokens of each item, None when no item is padded. What stands at padded positions of
        the result is arbitrary. Unless `finalize`, every item's last `lookahead` tokens are context only.
        """
        x = self.embed(x)
        if lengths is not None:
            # The norm's bias makes padding non-zero, and the look-ahead convolution would see it.
            x = x * valid_positions(lengths, x.shape[1])[..., None]
        x = self.pre_lookahead_layer(x, finalize)
        if lengths is not None and not finalize:
            lengths = (lengths - self.lookahead).clamp_min(0)
        x = self._stack(self.encoders, x, lengths, self.chunk if streaming else None)
        x = self.up_embed(self.up_layer(x.to(self.up_layer.conv.weight.dtype)))
        if lengths is not None:
            lengths = lengths * self.factor
        x = self._stack(self.up_encoders, x, lengths, self.chunk * self.factor if streaming else None)
        return self.after_norm(x), lengths

    @staticmethod
    def _stack(layers: nn.ModuleList, x: Tensor, lengths: Tensor | None, chunk: int | None) -> Tensor:
        seen = visibility(x.shape[1], lengths, chunk)
        positions = relative_positions(x.shape[1], x.shape[2], x.device)
        x = x.float()
        for layer in layers:
            x = layer(x, positions, seen)
        return x

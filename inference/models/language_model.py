"""Text-to-speech-token language model: a Qwen2 decoder with speech embeddings and a speech head (SPEC 1.1, 3).

Parameter names are those of `llm.pt`; its `llm.model.lm_head.weight` has no counterpart, as only the speech head
is ever computed. Norms, rotary tables, the residual stream, softmax and logits are float32 in every precision.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inference.models.config import LanguageModelConfig

# What an input position holds: the table its embedding comes from. PAD positions become zeros.
PAD, SERVICE, TEXT, SPEECH = 0, 1, 2, 3
START_OF_SEQUENCE, TASK = 0, 1  # rows of the service table


class AttentionMemory(Protocol):
    """Keys and values of earlier positions, kept by the runtime."""

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Store the new (B, kv_heads, T, head_dim) keys and values of one layer and return what to attend over.

        Returns keys and values (B, kv_heads, S, head_dim) and a boolean mask (B, 1, T, S), True = visible. A mask of
        None means that the new positions are the first ones (S = T) and plain causal order holds.
        """
        ...


class RmsNorm(nn.Module):
    """Root-mean-square norm with float32 statistics; gives the dtype of its weight."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """(…, size) of any float dtype → the same shape."""
        x = x.float()
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)
        return (x * scale * self.weight.float()).to(self.weight.dtype)


def rotary_table(positions: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines (B, 1, T, head_dim / 2), float32, for positions (B, T)."""
    exponents = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32) / head_dim
    angles = positions[:, None, :, None].float() * (1.0 / theta**exponents)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    """Turn pairs (i, i + head_dim / 2) of (B, heads, T, head_dim) by their position's angles."""
    cosine, sine = table
    first, second = x.float().chunk(2, dim=-1)
    turned = torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
    return turned.to(x.dtype)


def grouped_attention(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Attention in which each key/value head serves a run of query heads.

    query (B, heads, T, D); keys, values (B, kv_heads, S, D); mask (B, 1, T, S) bool or None = causal, S = T.
    Returns (B, heads, T, D).
    """
    batch, heads, steps, size = query.shape
    groups = heads // keys.shape[1]
    if mask is None:
        keys, values = (kv.repeat_interleave(groups, dim=1) for kv in (keys, values))
        return F.scaled_dot_product_attention(query, keys, values, is_causal=True)
    # The heads of a group go into the time axis, so that cached keys need not be copied once per head.
    query = query.reshape(batch, keys.shape[1], groups * steps, size)
    if steps > 1:
        mask = mask.repeat(1, 1, groups, 1)
    return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask).reshape(
        batch, heads, steps, size
    )


class SelfAttention(nn.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, cfg: LanguageModelConfig) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = cfg.num_heads, cfg.num_kv_heads, cfg.head_dim
        self.q_proj = nn.Linear(cfg.hidden_size, cfg.num_heads * cfg.head_dim)
        self.k_proj = nn.Linear(cfg.hidden_size, cfg.num_kv_heads * cfg.head_dim)
        self.v_proj = nn.Linear(cfg.hidden_size, cfg.num_kv_heads * cfg.head_dim)
        self.o_proj = nn.Linear(cfg.num_heads * cfg.head_dim, cfg.hidden_size, bias=False)

    def forward(
        self, x: Tensor, table: tuple[Tensor, Tensor], layer: int, memory: AttentionMemory | None
    ) -> Tensor:
        """(B, T, hidden) → (B, T, hidden)."""
        query = rotate(self._split(self.q_proj(x), self.num_heads), table)
        keys = rotate(self._split(self.k_proj(x), self.num_kv_heads), table)
        values = self._split(self.v_proj(x), self.num_kv_heads)
        mask = None
        if memory is not None:
            keys, values, mask = memory.extend(layer, keys, values)
        attended = grouped_attention(query, keys, values, mask)
        projected: Tensor = self.o_proj(attended.transpose(1, 2).flatten(2))
        return projected

    def _split(self, x: Tensor, heads: int) -> Tensor:
        return x.view(*x.shape[:-1], heads, self.head_dim).transpose(1, 2)


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, cfg: LanguageModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(cfg.hidden_size, cfg.intermediate_size, bias=False)
        self.up_proj = nn.Linear(cfg.hidden_size, cfg.intermediate_size, bias=False)
        self.down_proj = nn.Linear(cfg.intermediate_size, cfg.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, hidden) → (B, T, hidden)."""
        projected: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return projected


class DecoderLayer(nn.Module):
    """Pre-norm attention and feed-forward around a float32 residual stream."""

    def __init__(self, cfg: LanguageModelConfig) -> None:
        super().__init__()
        self.self_attn = SelfAttention(cfg)
        self.mlp = FeedForward(cfg)
        self.input_layernorm = RmsNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.post_attention_layernorm = RmsNorm(cfg.hidden_size, cfg.rms_norm_eps)

    def forward(
        self, x: Tensor, table: tuple[Tensor, Tensor], layer: int, memory: AttentionMemory | None
    ) -> Tensor:
        """(B, T, hidden) float32 → (B, T, hidden) float32."""
        x = x + self.self_attn(self.input_layernorm(x), table, layer, memory)
        x = x + self.mlp(self.post_attention_layernorm(x))
        return x


class Decoder(nn.Module):
    """The Qwen2 body from embeddings to normed hidden states."""

    def __init__(self, cfg: LanguageModelConfig) -> None:
        super().__init__()
        self.head_dim, self.theta = cfg.head_dim, cfg.rope_theta
        self.embed_tokens = nn.Embedding(cfg.vocab_size, cfg.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(cfg) for _ in range(cfg.num_layers))
        self.norm = RmsNorm(cfg.hidden_size, cfg.rms_norm_eps)

    def forward(self, embeddings: Tensor, positions: Tensor, memory: AttentionMemory | None) -> Tensor:
        """embeddings (B, T, hidden), positions (B, T) → hidden states after the last norm (B, T, hidden)."""
        table = rotary_table(positions, self.head_dim, self.theta)
        x = embeddings.float()
        for index, layer in enumerate(self.layers):
            x = layer(x, table, index, memory)
        normed: Tensor = self.norm(x)
        return normed


class _Nested(nn.Module):
    """Gives its child the name `model`: the checkpoint's keys say `llm.model.model.…`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model


class LanguageModel(nn.Module):
    """Embeddings, decoder body and speech head; state and sampling belong to the runtime."""

    def __init__(self, cfg: LanguageModelConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.llm_embedding = nn.Embedding(2, cfg.hidden_size)
        self.llm = _Nested(_Nested(Decoder(cfg)))
        self.llm_decoder = nn.Linear(cfg.hidden_size, cfg.speech_vocab_size)
        self.speech_embedding = nn.Embedding(cfg.speech_vocab_size, cfg.hidden_size)

    @property
    def decoder(self) -> Decoder:
        """The Qwen2 body."""
        body = self.llm.model.model
        if not isinstance(body, Decoder):
            raise TypeError("the language model's body was replaced by something else")
        return body

    @property
    def device(self) -> torch.device:
        return self.llm_decoder.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """What the weights are held in."""
        return self.llm_decoder.weight.dtype

    def embed(self, kinds: Tensor, ids: Tensor) -> Tensor:
        """Input embeddings (B, T, hidden) of symbols: `kinds` (B, T) names the table, `ids` (B, T) the row."""
        text = self.decoder.embed_tokens(torch.where(kinds == TEXT, ids, 0))
        speech = self.speech_embedding(torch.where(kinds == SPEECH, ids, 0))
        service = self.llm_embedding(torch.where(kinds == SERVICE, ids, 0))
        kind = kinds[..., None]
        chosen = torch.where(kind == TEXT, text, torch.where(kind == SPEECH, speech, service))
        return chosen * (kind != PAD)

    def forward(
        self, embeddings: Tensor, positions: Tensor | None = None, memory: AttentionMemory | None = None
    ) -> Tensor:
        """Hidden states after the last norm (B, T, hidden). `positions` (B, T) count from 0 when not given.

        Without `memory` attention is causal over the given positions: items padded on the right get what they get
        alone, as no position sees what lies after it.
        """
        if positions is None:
            batch, length, _ = embeddings.shape
            positions = torch.arange(length, device=embeddings.device).expand(batch, length)
        hidden: Tensor = self.decoder(embeddings, positions, memory)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Speech logits (…, speech_vocab_size), float32, for hidden states (…, hidden)."""
        logits: Tensor = self.llm_decoder(hidden)
        return logits.float()

"""Text and speech tokens → next speech token: a Qwen2 decoder with speech embeddings and a speech head (SPEC 3).

Parameter names are the keys of `llm.pt` (its text head is never used and left out). RMSNorm, rotary tables and the
softmax are float32 whatever the weights are held in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inference.models.config import LanguageModelConfig
from inference.runtime.kv_cache import KVCache

SOS_ROW, TASK_ROW = 0, 1  # of `llm_embedding`


@dataclass(frozen=True)
class Prompt:
    """What one request puts before the first generated token. Ids are 1-D int tensors or lists."""

    text: Sequence[int]  # prompt text and text to speak, in this order
    speech: Sequence[int] = ()  # speech tokens of the reference


class RMSNorm(nn.Module):
    """Scale by the root mean square, computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """(…, size) → (…, size) of the same dtype."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


def rotary_tables(positions: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """positions (B, S) → cos and sin, each (B, 1, S, head_dim) float32, for half-split rotation."""
    exponent = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32) / head_dim
    angle = positions[..., None].float() * theta**-exponent
    angle = torch.cat((angle, angle), dim=-1)[:, None]
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding of x (B, heads, S, head_dim), in float32 inside."""
    wide = x.float()
    first, second = wide.chunk(2, dim=-1)
    return (wide * cos + torch.cat((-second, first), dim=-1) * sin).to(x.dtype)


class Attention(nn.Module):
    """Grouped-query attention with biases on q, k and v only."""

    def __init__(self, cfg: LanguageModelConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = cfg.num_heads, cfg.num_kv_heads, cfg.head_dim
        self.q_proj = nn.Linear(cfg.hidden_size, cfg.num_heads * cfg.head_dim)
        self.k_proj = nn.Linear(cfg.hidden_size, cfg.num_kv_heads * cfg.head_dim)
        self.v_proj = nn.Linear(cfg.hidden_size, cfg.num_kv_heads * cfg.head_dim)
        self.o_proj = nn.Linear(cfg.num_heads * cfg.head_dim, cfg.hidden_size, bias=False)

    def forward(self, x: Tensor, context: Context, layer: int) -> Tensor:
        """(B, S, hidden) → (B, S, hidden)."""
        batch, length, _ = x.shape
        q = self.q_proj(x).view(batch, length, self.heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(batch, length, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, self.kv_heads, self.head_dim).transpose(1, 2)
        q, k = rotate(q, context.cos, context.sin), rotate(k, context.cos, context.sin)
        if context.cache is not None:
            k, v = context.cache.update(layer, k, v, context.positions, context.limit)
        repeat = self.heads // self.kv_heads
        k, v = k.repeat_interleave(repeat, dim=1), v.repeat_interleave(repeat, dim=1)
        mixed = F.scaled_dot_product_attention(
            q, k, v, attn_mask=context.mask, is_causal=context.mask is None and length > 1
        )
        found: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))
        return found


class MLP(nn.Module):
    """SwiGLU feed-forward."""

    def __init__(self, cfg: LanguageModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(cfg.hidden_size, cfg.intermediate_size, bias=False)
        self.up_proj = nn.Linear(cfg.hidden_size, cfg.intermediate_size, bias=False)
        self.down_proj = nn.Linear(cfg.intermediate_size, cfg.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return found


class Layer(nn.Module):
    """One pre-norm decoder layer."""

    def __init__(self, cfg: LanguageModelConfig) -> None:
        super().__init__()
        self.self_attn = Attention(cfg)
        self.mlp = MLP(cfg)
        self.input_layernorm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)

    def forward(self, x: Tensor, context: Context, layer: int) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), context, layer)
        return x + self.mlp(self.post_attention_layernorm(x))


@dataclass(frozen=True)
class Context:
    """What all layers of one pass share."""

    positions: Tensor  # (B, S) of the new tokens
    cos: Tensor
    sin: Tensor
    mask: Tensor | None  # (B, 1, S, keys) True where attended; None = plain causal
    cache: KVCache | None
    limit: int  # cached positions looked at


class _Decoder(nn.Module):
    def __init__(self, cfg: LanguageModelConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(cfg.vocab_size, cfg.hidden_size)
        self.layers = nn.ModuleList(Layer(cfg) for _ in range(cfg.num_layers))
        self.norm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)


class _CausalModel(nn.Module):
    def __init__(self, cfg: LanguageModelConfig) -> None:
        super().__init__()
        self.model = _Decoder(cfg)


class _Encoder(nn.Module):
    # The checkpoint nests the decoder twice: `llm.model.model.*`.
    def __init__(self, cfg: LanguageModelConfig) -> None:
        super().__init__()
        self.model = _CausalModel(cfg)


class LanguageModel(nn.Module):
    """The whole language model; only the speech head is computed."""

    def __init__(self, cfg: LanguageModelConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.llm_embedding = nn.Embedding(2, cfg.hidden_size)
        self.llm = _Encoder(cfg)
        self.llm_decoder = nn.Linear(cfg.hidden_size, cfg.speech_vocab_size)
        self.speech_embedding = nn.Embedding(cfg.speech_vocab_size, cfg.hidden_size)

    @property
    def device(self) -> torch.device:
        return self.llm_decoder.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.llm_decoder.weight.dtype

    def new_cache(self, batch: int, max_len: int) -> KVCache:
        """An empty cache of this model's shape, dtype and device for `batch` rows of `max_len` positions."""
        cfg = self.cfg
        return KVCache(cfg.num_layers, batch, cfg.num_kv_heads, max_len, cfg.head_dim, self.dtype, self.device)

    def embed_text(self, ids: Tensor) -> Tensor:
        """Text ids (…) → (…, hidden)."""
        found: Tensor = self.llm.model.model.embed_tokens(ids)
        return found

    def embed_speech(self, ids: Tensor) -> Tensor:
        """Speech ids (…) → (…, hidden)."""
        found: Tensor = self.speech_embedding(ids)
        return found

    def embed_prompt(self, prompt: Prompt) -> Tensor:
        """`[sos] text [task id] speech` → (P, hidden)."""
        text = torch.as_tensor(prompt.text, dtype=torch.long, device=self.device)
        speech = torch.as_tensor(prompt.speech, dtype=torch.long, device=self.device)
        sos, task = self.llm_embedding.weight[SOS_ROW], self.llm_embedding.weight[TASK_ROW]
        return torch.cat((sos[None], self.embed_text(text), task[None], self.embed_speech(speech)))

    def forward(
        self,
        embeddings: Tensor,
        positions: Tensor | None = None,
        cache: KVCache | None = None,
        limit: int | None = None,
    ) -> Tensor:
        """embeddings (B, S, hidden) → hidden states after the final norm (B, S, hidden).

        Without a cache this is one causal pass from position 0. With one, `positions` (B, S) on the device say where
        each token belongs; rows may be at different places, and `limit` (host) bounds the positions looked at.
        Positions at or past the cache's end are not kept: give padding such a position.
        """
        batch, length, _ = embeddings.shape
        if positions is None:
            positions = torch.arange(length, device=embeddings.device).expand(batch, length)
        cos, sin = rotary_tables(positions, self.cfg.head_dim, self.cfg.rope_theta)
        mask, keys = None, length
        if cache is not None:
            keys = cache.max_len if limit is None else limit
            mask = (torch.arange(keys, device=embeddings.device) <= positions[..., None])[:, None]
        context = Context(positions, cos, sin, mask, cache, keys)
        x = embeddings
        for number, layer in enumerate(self.llm.model.model.layers):
            x = layer(x, context, number)
        found: Tensor = self.llm.model.model.norm(x)
        return found

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states (…, hidden) → speech logits (…, 6564) in float32."""
        found: Tensor = self.llm_decoder(hidden)
        return found.float()

    def prefill(self, prompts: Sequence[Tensor], cache: KVCache) -> Tensor:
        """Embedded prompts, each (P_i, hidden), into rows 0.. of `cache` → last hidden states (B, hidden).

        Shorter prompts are padded on the right; their padding is neither cached nor seen.
        """
        longest = max(len(prompt) for prompt in prompts)
        batch = nn.utils.rnn.pad_sequence(list(prompts), batch_first=True)
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=self.device)
        places = torch.arange(longest, device=self.device).expand(len(prompts), longest)
        positions = torch.where(places < lengths[:, None], places, cache.max_len)
        hidden = self(batch, positions, cache, limit=longest)
        return hidden[torch.arange(len(prompts), device=self.device), lengths - 1]

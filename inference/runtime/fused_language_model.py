"""The language model's arithmetic in fewer, larger pieces: query, key and value in one product, gate and up in another.

Built from a loaded `LanguageModel` and the same to within float32 rounding. The fused matrices take over the storage
of the model's own ones, which become views of them, so that nothing is held twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inference.models.language_model import DecoderLayer, LanguageModel, RmsNorm, rotary_table
from inference.runtime.joined import joined

logger = logging.getLogger(__name__)


class SlotAttention(Protocol):
    """Where keys and values are kept, and what each new position attends over."""

    def attend(self, layer: int, fused: Tensor) -> Tensor:
        """Turned queries and keys, and values (N, heads + 2 kv_heads, head_dim) → attended (N, heads × head_dim)."""
        ...


class FusedLinear:
    """Linear layers of the same input as one product; `x` is (N, in), the result (N, sum of outs)."""

    def __init__(self, linears: Sequence[nn.Linear]) -> None:
        self.weight = joined([linear.weight for linear in linears])
        biases = [linear.bias for linear in linears if linear.bias is not None]
        self.bias = joined(biases) if biases else None
        self._packed: Callable[[Tensor], Tensor] | None = None
        self._packed_rows = 0

    def __call__(self, x: Tensor) -> Tensor:
        if self._packed is not None and len(x) == self._packed_rows:
            return self._packed(x)
        return F.linear(x, self.weight, self.bias)

    def pack(self, rows: int) -> int:
        """Keep a copy of the weights in the layout that is fastest on the CPU for `rows` rows; returns its bytes."""
        self._packed = packed_product(self.weight, self.bias, rows)
        self._packed_rows = rows
        return self.weight.nbytes


@dataclass(frozen=True)
class FusedLayer:
    """Weights of one decoder layer."""

    norm: Tensor  # (hidden,) float32
    qkv: FusedLinear
    out: FusedLinear
    middle_norm: Tensor
    gate_up: FusedLinear
    down: FusedLinear


class FusedLanguageModel:
    """Speech part of a `LanguageModel` for up to `context` positions, over a flat batch of N symbols.

    Norms, rotary angles, the residual stream, softmax and logits are float32 as in the plain model.
    """

    def __init__(self, model: LanguageModel, context: int) -> None:
        cfg = model.cfg
        self.cfg, self.device, self.dtype = cfg, model.device, model.dtype
        self.embed: Callable[[Tensor, Tensor], Tensor] = model.embed
        self.speech = model.speech_embedding.weight
        # Embeddings of the kinds SERVICE, TEXT, SPEECH.
        self.tables = (model.llm_embedding.weight, model.decoder.embed_tokens.weight, self.speech)
        self.layers = [_fuse(layer) for layer in model.decoder.layers if isinstance(layer, DecoderLayer)]
        self.last_norm = _norm_weight(model.decoder.norm)
        self.head = FusedLinear([model.llm_decoder])
        self._turns = _turns(context, cfg.head_dim, cfg.rope_theta, self.device)
        kinds = [0] * (cfg.num_heads + cfg.num_kv_heads) + [1] * cfg.num_kv_heads
        self._head_kinds = torch.tensor(kinds).to(self.device)

    def embed_speech(self, ids: Tensor) -> Tensor:
        """Embeddings (N, hidden) of speech ids (N,)."""
        return self.speech[ids]

    def forward(self, embeddings: Tensor, positions: Tensor, memory: SlotAttention) -> Tensor:
        """embeddings (N, hidden), positions (N,) int64 → hidden states after the last norm (N, hidden)."""
        cosine, sine = self._turns[positions].index_select(2, self._head_kinds).unbind(1)
        shape = (len(positions), len(self._head_kinds), 2, self.cfg.head_dim // 2)
        x = embeddings.float()
        for index, layer in enumerate(self.layers):
            fused = layer.qkv(self._normed(x, layer.norm)).view(shape)
            turned = torch.addcmul(fused * cosine, fused.flip(2), sine).to(self.dtype).flatten(2)
            x = x + layer.out(memory.attend(index, turned))
            gate, up = layer.gate_up(self._normed(x, layer.middle_norm)).chunk(2, dim=-1)
            x = x + layer.down(F.silu(gate) * up)
        return self._normed(x, self.last_norm)

    def logits(self, hidden: Tensor) -> Tensor:
        """Speech logits (N, speech_vocab_size), float32."""
        return self.head(hidden).float()

    def pack(self, rows: int) -> int:
        """Prepare for batches of exactly `rows` symbols on the CPU; returns the bytes that this takes."""
        linears = [self.head]
        for layer in self.layers:
            linears += [layer.qkv, layer.out, layer.gate_up, layer.down]
        return sum(linear.pack(rows) for linear in linears)

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self.cfg.rms_norm_eps).to(self.dtype)


def _fuse(layer: DecoderLayer) -> FusedLayer:
    attention, mlp = layer.self_attn, layer.mlp
    return FusedLayer(
        norm=_norm_weight(layer.input_layernorm),
        qkv=FusedLinear([attention.q_proj, attention.k_proj, attention.v_proj]),
        out=FusedLinear([attention.o_proj]),
        middle_norm=_norm_weight(layer.post_attention_layernorm),
        gate_up=FusedLinear([mlp.gate_proj, mlp.up_proj]),
        down=FusedLinear([mlp.down_proj]),
    )


def _norm_weight(norm: RmsNorm) -> Tensor:
    return norm.weight.detach().float()


def _turns(context: int, head_dim: int, theta: float, device: torch.device) -> Tensor:
    """Factors of a head and of its swapped halves: (context, those two, turned or not, half, head_dim / 2) float32.

    Values stand in the same tensor as queries and keys but are not turned: factors 1 and 0.
    """
    cosine, sine = rotary_table(torch.arange(context, device=device)[None], head_dim, theta)
    cosine, sine = cosine[0, 0], sine[0, 0]
    turned = torch.stack((torch.stack((cosine, cosine), 1), torch.stack((-sine, sine), 1)), 1)
    kept = torch.stack((torch.ones_like(turned[:, 0]), torch.zeros_like(turned[:, 0])), 1)
    return torch.stack((turned, kept), 2)


def packed_product(weight: Tensor, bias: Tensor | None, rows: int) -> Callable[[Tensor], Tensor]:
    """`F.linear` for one number of rows. oneDNN's packed product took 2.0 ms where plain took 4.7 (nano, 8 rows)."""
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
        product = torch.ops.mkldnn._linear_pointwise

        def multiply(x: Tensor) -> Tensor:
            result: Tensor = product(x, packed, bias, "none", [], "")
            return result

        multiply(weight.new_zeros(rows, weight.shape[1]))
        return multiply
    except (AttributeError, RuntimeError, NotImplementedError) as error:
        logger.info("No packed matrix product on this CPU (%s); using a transposed one.", error)
        return transposed_product(weight, bias, rows)


def transposed_product(weight: Tensor, bias: Tensor | None, rows: int) -> Callable[[Tensor], Tensor]:
    """The same from a transposed copy (3.1 ms)."""
    transposed = weight.t().contiguous()
    if bias is None:
        return lambda x: x @ transposed
    return lambda x: torch.addmm(bias, x, transposed)

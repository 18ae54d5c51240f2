"""The language model's step in few kernels: for one new id of some slots, and for prompts. Import this on CUDA only.

Same weights, same arithmetic as `FusedLanguageModel`, but for the order of sums: norms, rotary angles, the residual
stream and softmax are float32. A decode step reads each weight once and launches seven kernels a layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from inference.models.config import LanguageModelConfig
from inference.models.language_model import rotary_table
from inference.runtime.fused_language_model import FusedLanguageModel
from inference.runtime.kv_cache import KvCache
from inference.runtime.lm_attention import RowAttentionKernel
from inference.runtime.lm_kernels import add_norm, embed_speech, embed_symbols
from inference.runtime.lm_products import LEAST_ROWS, Strip, product
from inference.runtime.lm_prompt_attention import PromptAttentionKernel
from inference.runtime.lm_sampler import draw_ids


@dataclass(frozen=True)
class Strips:
    """How each product of a layer is cut. `parts` may depend on nothing but the model."""

    qkv: Strip = Strip(16, stages=7)
    out: Strip = Strip(32, ins=64, parts=2, stages=7)
    gate_up: Strip = Strip(32)
    down: Strip = Strip(32, ins=64, parts=4, stages=6)
    head: Strip = Strip(64)


_DEEP = 200 * 1024
# Prompts: always in one part, so that the size of their batch does not matter.
FEW_SYMBOLS = Strips(out=Strip(32), down=Strip(16, stages=5))
_WIDE = Strip(64, ins=64, warps=8, rows=128, shared=_DEEP)
MANY_SYMBOLS = Strips(qkv=_WIDE, out=_WIDE, gate_up=_WIDE, down=_WIDE)
MANY = 512  # symbols


def supports(cfg: LanguageModelConfig) -> str:
    """What of this model these kernels cannot do; empty if they can run it."""
    if cfg.head_dim not in (32, 64, 128):
        return f"heads of {cfg.head_dim}"
    if cfg.num_heads // cfg.num_kv_heads > 16:
        return "more than 16 query heads a key/value head"
    return ""


class KernelStep:
    """Runs steps over `cache` and the slots' `table` (·, width) int64, of which a decode step takes the first rows.

    `rows`: the most slots of a step.
    """

    def __init__(
        self,
        fused: FusedLanguageModel,
        cache: KvCache,
        table: Tensor,
        rows: int,
        strips: Strips | None = None,
    ) -> None:
        cfg = fused.cfg
        self.cfg, self.fused, self._table = cfg, fused, table
        self.strips = strips or Strips()
        device, dtype = fused.device, fused.dtype
        turns = torch.cat(
            rotary_table(torch.arange(cache.max_len, device=device)[None], cfg.head_dim, cfg.rope_theta), -1
        )
        turns = turns[0, 0].contiguous()
        self.rows_kernel = RowAttentionKernel(cache.data, turns, cfg.num_heads, rows)
        self._prompts = PromptAttentionKernel(cache.data, turns, cfg.num_heads)
        padded = max(LEAST_ROWS, rows)
        self._width = (cfg.num_heads + 2 * cfg.num_kv_heads) * cfg.head_dim

        def buffer(*shape: int, kind: torch.dtype = dtype) -> Tensor:
            return torch.zeros(shape, dtype=kind, device=device)

        self._stream = buffer(padded, cfg.hidden_size, kind=torch.float32)
        self._normed = buffer(padded, cfg.hidden_size)
        self._qkv = buffer(padded, self._width)
        self._attended = buffer(padded, cfg.num_heads * cfg.head_dim)
        self._gated = buffer(padded, cfg.intermediate_size)
        self._parts = buffer(_most_parts(self.strips), padded, cfg.hidden_size, kind=torch.float32)
        self.logits = buffer(padded, cfg.speech_vocab_size, kind=torch.float32)

    # ------------------------------------------------------------------------------------------------ decode
    def decode(self, rows: int, longest: int, drawn: Tensor) -> None:
        """One id of each of the first `rows` slots → drawn (≥ rows,), slots one position longer.

        No live row may have more than `longest` positions, the new one included.
        """
        embed_speech(self._table, self.fused.speech, self._stream[:rows])
        parts: Tensor | None = None
        for index in range(len(self.fused.layers)):
            parts = self._layer(index, rows, longest, parts)
        normed = self._norm(rows, parts, self.fused.last_norm)
        logits = self._head(normed)
        draw_ids(logits, self._table, drawn, self.cfg, advance=True)

    def _layer(self, index: int, rows: int, longest: int, parts: Tensor | None) -> Tensor:
        """Takes and returns what is still to be added to the residual stream."""
        layer, strips = self.fused.layers[index], self.strips
        normed = self._norm(rows, parts, layer.norm)
        qkv, attended, gated = self._qkv[:rows], self._attended[:rows], self._gated[:rows]
        product(normed, layer.qkv.weight, layer.qkv.bias, qkv, strips.qkv)
        heads = qkv.view(rows, -1, self.cfg.head_dim)
        self.rows_kernel(index, heads, self._table, attended, longest)
        parts = self._parts[: strips.out.parts]
        product(attended, layer.out.weight, layer.out.bias, parts, strips.out)
        normed = self._norm(rows, parts, layer.middle_norm)
        product(normed, layer.gate_up.weight, None, gated, strips.gate_up, gated=True)
        parts = self._parts[: strips.down.parts]
        product(gated, layer.down.weight, None, parts, strips.down)
        return parts

    def _norm(self, rows: int, parts: Tensor | None, weight: Tensor) -> Tensor:
        normed = self._normed[:rows]
        add_norm(self._stream[:rows], parts, weight, self.cfg.rms_norm_eps, normed)
        return normed

    def _head(self, normed: Tensor) -> Tensor:
        logits, head = self.logits[: len(normed)], self.fused.head
        product(normed, head.weight, head.bias, logits, self.strips.head)
        return logits

    # ----------------------------------------------------------------------------------------------- prompts
    def prefill(
        self,
        kinds: Tensor,
        ids: Tensor,
        positions: Tensor,
        slots: Tensor,
        blocks: Tensor,
        last: Tensor,
        rows: Tensor,
        drawn: Tensor,
    ) -> Tensor:
        """Symbols (N,) packed one prompt behind the other; draws for each prompt's `last` one (P,); logits (P, V).

        positions, slots (N,): where each one goes; blocks: see `PromptAttentionKernel.attend`; rows (P, width): the
        prompts' rows of the table, which are brought up to date; drawn (≥ P,) int64.
        """
        cfg, count = self.cfg, len(ids)
        device, dtype = self.fused.device, self.fused.dtype
        stream = torch.empty(count, cfg.hidden_size, dtype=torch.float32, device=device)
        normed = torch.empty(count, cfg.hidden_size, dtype=dtype, device=device)
        queries = torch.empty(count, cfg.num_heads * cfg.head_dim, dtype=dtype, device=device)
        attended = torch.zeros_like(queries)  # padding is not attended to, and must not become infinite
        gated = torch.empty(count, cfg.intermediate_size, dtype=dtype, device=device)
        qkv = torch.empty(count, self._width, dtype=dtype, device=device)
        parts = torch.empty(1, count, cfg.hidden_size, dtype=dtype, device=device)
        strips = MANY_SYMBOLS if count >= MANY else FEW_SYMBOLS
        embed_symbols(kinds, ids, self.fused.tables, stream)
        added: Tensor | None = None
        for index, layer in enumerate(self.fused.layers):
            add_norm(stream, added, layer.norm, cfg.rms_norm_eps, normed)
            product(normed, layer.qkv.weight, layer.qkv.bias, qkv, strips.qkv)
            heads = qkv.view(count, -1, cfg.head_dim)
            self._prompts.store(index, heads, positions, slots, queries)
            self._prompts.attend(index, queries, blocks, attended)
            product(attended, layer.out.weight, layer.out.bias, parts, strips.out)
            add_norm(stream, parts, layer.middle_norm, cfg.rms_norm_eps, normed)
            product(normed, layer.gate_up.weight, None, gated, strips.gate_up, gated=True)
            product(gated, layer.down.weight, None, parts, strips.down)
            added = parts
        ends = torch.empty(len(last), cfg.hidden_size, dtype=dtype, device=device)
        add_norm(stream, added, self.fused.last_norm, cfg.rms_norm_eps, ends, picks=last)
        logits = torch.empty(len(last), cfg.speech_vocab_size, dtype=torch.float32, device=device)
        product(ends, self.fused.head.weight, self.fused.head.bias, logits, self.strips.head)
        draw_ids(logits, rows, drawn, cfg, advance=False)
        return logits

    def memory_bytes(self) -> int:
        """Of the buffers."""
        kept = (self._stream, self._normed, self._qkv, self._attended, self._gated, self._parts, self.logits)
        return sum(buffer.nbytes for buffer in kept) + self.rows_kernel.memory_bytes()


def _most_parts(strips: Strips) -> int:
    return max(strips.out.parts, strips.down.parts)

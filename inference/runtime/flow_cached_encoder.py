"""The flow encoder on new chunks alone; what they need of earlier ones is read from pages (SPEC 4, 5.4)."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inference.models.flow import FlowModel
from inference.models.flow_encoder import ConformerLayer, RelativeAttention
from inference.runtime.flow_block import Block
from inference.runtime.flow_cached_attention import recall, remember
from inference.runtime.flow_pages import TAIL, PageStore
from inference.runtime.flow_position_tables import PositionTables


class CachedEncoder:
    """Tokens of a block → mu (C, 2n, 80), with a flow model's own weights."""

    def __init__(self, flow: FlowModel) -> None:
        self._flow = flow
        self._token_tables = PositionTables(flow.encoder.encoders)
        self._frame_tables = PositionTables(flow.encoder.up_encoders)

    def __call__(self, block: Block, store: PageStore) -> Tensor:
        """Encode a block and write what later chunks need into its pages."""
        encoder = self._flow.encoder
        ids = block.inputs.tokens.clamp(0, self._flow.cfg.vocab_size - 1)
        embedded = encoder.embed(self._flow.input_embedding(ids))
        x = self._look_ahead(torch.where(block.inputs.real, embedded, 0.0), block, store)
        x = _layers(encoder.encoders, self._token_tables, x, block, store.token_keys)
        x = self._upsample(x.to(encoder.up_layer.conv.weight.dtype), block, store)
        x = _layers(encoder.up_encoders, self._frame_tables, encoder.up_embed(x), block, store.frame_keys)
        return cast(Tensor, self._flow.encoder_proj(encoder.after_norm(x)))

    def _look_ahead(self, embedded: Tensor, block: Block, store: PageStore) -> Tensor:
        layer = self._flow.encoder.pre_lookahead_layer
        hidden = F.leaky_relu(layer.conv1(embedded.transpose(1, 2))).transpose(1, 2)
        joined = _with_tail(store.lookahead_tails, hidden, block)
        mixed: Tensor = layer.conv2(joined.transpose(1, 2)).transpose(1, 2)
        return embedded[:, : block.size] + mixed

    def _upsample(self, x: Tensor, block: Block, store: PageStore) -> Tensor:
        layer = self._flow.encoder.up_layer
        joined = _with_tail(store.upsample_tails, x, block)
        repeated = joined.repeat_interleave(layer.factor, dim=1).transpose(1, 2)
        output: Tensor = layer.conv(repeated).transpose(1, 2)
        return output


def _layers(layers: nn.ModuleList, tables: PositionTables, x: Tensor, block: Block, memory: Tensor) -> Tensor:
    rate = memory.shape[2] // block.chunk
    x = x.float()
    for module, pages, table in zip(layers, memory, tables.select(block, rate)):
        layer = cast(ConformerLayer, module)
        normed = layer.norm_mha(x)
        x = x + _attend(layer.self_attn, normed, block, pages, table).float()
        x = x + layer.feed_forward(layer.norm_ff(x)).float()
    return x


def _attend(
    attention: RelativeAttention,
    x: Tensor,
    block: Block,
    memory: Tensor,
    table: Tensor,
) -> Tensor:
    """x (C, n, D) → (C, n, D)."""
    remember(memory, torch.stack((attention.linear_k(x), attention.linear_v(x)), dim=2), block)
    known = recall(memory, block).unbind(2)
    parts = (attention.linear_q(x), *known, table)
    query, key, value, distances = (attention.split_heads(part) for part in parts)
    mixed = attention.attend(query, key, value, distances, None)
    output: Tensor = attention.linear_out(mixed.transpose(1, 2).flatten(2))
    return output


def _with_tail(tails: Tensor, x: Tensor, block: Block) -> Tensor:
    """x (1, n, D) with the two positions before the chunk (1, 2 + n, D); keeps the chunk's last two."""
    before = tails.index_select(0, block.tail_before)
    ends = x[:, -TAIL:]
    if block.tail_after is not None:
        tails.index_copy_(0, block.tail_after, ends)
    return torch.cat((before, x), dim=1)

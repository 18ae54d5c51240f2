"""Keys and values in pages: written once a chunk, read by that chunk and all later ones of its stream."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from inference.runtime.flow_block import Block
from inference.runtime.flow_pages import PAIR


def remember(memory: Tensor, rows: Tensor, block: Block) -> None:
    """Write keys and values (1, n, 2, …), of any strides, into the chunk's page of memory (pages, positions, 2, …)."""
    memory[block.written, : rows.shape[1]] = rows[0]


def recall(memory: Tensor, block: Block) -> Tensor:
    """All that the chunk may see: (1, K, 2, W), K being `block.most` positions."""
    keys = block.most * memory.shape[1] // block.chunk
    if block.run is not None:
        return memory[block.run : block.run + block.pages.shape[1]].flatten(0, 1)[None, :keys]
    known = memory.index_select(0, block.pages.flatten())
    return known.view(len(block.pages), -1, *memory.shape[2:])[:, :keys]


def attend(query: Tensor, memory: Tensor, block: Block) -> Tensor:
    """Attention of the velocity network: query (1, pair, 2n, heads, head size), memory (pages, frames, key or value,
    pair · heads · head size) → like query."""
    heads = query.shape[3]
    known = recall(memory, block)
    # The pair counts as more heads: its rows lie side by side in the pages.
    key, value = (part.unflatten(2, (PAIR * heads, -1)).transpose(1, 2) for part in known.unbind(2))
    mixed = F.scaled_dot_product_attention(query.transpose(2, 3).flatten(1, 2), key, value)
    output: Tensor = mixed.unflatten(1, (PAIR, heads)).transpose(2, 3)
    return output

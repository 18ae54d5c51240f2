"""Attention that reads keys and values straight from pages: a Triton kernel. Import this on CUDA only."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from inference.runtime.flow_block import Block

_LOG2_E = math.log2(math.e)


@triton.jit(do_not_specialize=["page_row"])
def _attend_pages(  # type: ignore[no-untyped-def]
    query, memory, pages, counts, output,
    query_chunk, query_half, query_frame, query_head,
    output_chunk, output_half, output_frame, output_head,
    page_row, width, heads, rate, scale,
    frames: tl.constexpr, padded: tl.constexpr, head_size: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """One chunk's queries of one head and guidance half against its pages, with a running softmax."""
    chunk = tl.program_id(0).to(tl.int64)
    wide_head = tl.program_id(1)
    half, head = wide_head // heads, wide_head % heads
    rows, dims = tl.arange(0, padded), tl.arange(0, head_size)
    inside = rows[:, None] < frames
    start = query + chunk * query_chunk + half * query_half + head * query_head
    q = tl.load(start + rows[:, None] * query_frame + dims[None, :], mask=inside, other=0.0)
    count = (tl.load(counts + chunk) * rate).to(tl.int32)
    best = tl.full([padded], float("-inf"), tl.float32)
    total = tl.zeros([padded], tl.float32)
    mixed = tl.zeros([padded, head_size], tl.float32)
    for first in range(0, count, frames):
        page = tl.load(pages + chunk * page_row + first // frames)
        there = rows < tl.minimum(count - first, frames)
        at = memory + (page * frames + rows[:, None]) * (2 * width) + wide_head * head_size + dims[None, :]
        key = tl.load(at, mask=there[:, None], other=0.0)
        score = tl.dot(q, tl.trans(key), input_precision=precision) * scale
        score = tl.where(there[None, :], score, float("-inf"))
        better = tl.maximum(best, tl.max(score, 1))
        share = tl.exp2(score - better[:, None])
        fade = tl.exp2(best - better)
        total = total * fade + tl.sum(share, 1)
        value = tl.load(at + width, mask=there[:, None], other=0.0)
        mixed = mixed * fade[:, None] + tl.dot(share.to(value.dtype), value, input_precision=precision)
        best = better
    mixed = mixed / total[:, None]
    end = output + chunk * output_chunk + half * output_half + head * output_head
    tl.store(
        end + rows[:, None] * output_frame + dims[None, :], mixed.to(output.dtype.element_ty), mask=inside
    )


class PagedAttention:
    """`CachedAttention` without copies and without masks; its launch does not depend on the streams' lengths."""

    any_width = True

    def __call__(self, query: Tensor, memory: Tensor, block: Block) -> Tensor:
        chunks, pair, frames, heads, head_size = query.shape
        if memory.shape[1] != frames or query.stride(4) != 1:
            raise ValueError("whole chunks are needed")
        pages, counts = block.pages.contiguous(), block.counts.contiguous()
        output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        _attend_pages[(chunks, pair * heads)](
            query, memory, pages, counts, output,
            *query.stride()[:4], *output.stride()[:4],
            pages.stride(0), memory.shape[3], heads, frames // block.chunk, _LOG2_E / math.sqrt(head_size),
            frames=frames, padded=max(16, triton.next_power_of_2(frames)), head_size=head_size,
            precision="ieee" if query.dtype == torch.float32 else "tf32",
        )  # fmt: skip
        return output

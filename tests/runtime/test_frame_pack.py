"""The packed row: buckets, who sees whom, and attention over blocks against plain masks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.models.masks import Visibility
from inference.runtime.frame_pack import (
    GAP,
    QUERY_BLOCK,
    FramePack,
    PackedMel,
    bucket,
    device_layout,
    table_size,
)
from inference.runtime.packed_attention import block_by_block, choose_attention

pytestmark = pytest.mark.unit
_ITEMS = st.lists(st.tuples(st.integers(1, 420), st.booleans()), min_size=1, max_size=8)


def test_buckets_waste_little_and_are_few() -> None:
    sizes = sorted({bucket(size) for size in range(1, 16385)})
    assert len(sizes) <= 8 + 8 * 5
    for size in range(1, 16385):
        found = bucket(size)
        assert found in sizes and size <= found and (found - size < 64 or found <= 1.15 * size)


@given(items=_ITEMS, chunk=st.sampled_from([20, 50, 200]))
@settings(max_examples=60, deadline=None)
def test_blocks_show_each_frame_what_its_mask_shows(items: list[tuple[int, bool]], chunk: int) -> None:
    pack = FramePack([PackedMel(*item) for item in items], 8, chunk)
    assert len(pack.table) == table_size(pack.rows, pack.blocks)
    layout = device_layout(torch.from_numpy(pack.table), pack.rows, pack.blocks)
    bounds, starts = layout.blocks.bounds.tolist(), layout.blocks.key_starts.tolist()
    counts = layout.blocks.key_counts.tolist()
    assert bounds[0] == 0 and bounds[-1] == 2 * pack.rows
    assert all(0 <= b - a <= QUERY_BLOCK for a, b in zip(bounds, bounds[1:]))
    seen = np.zeros((2 * pack.rows, 2 * pack.rows), dtype=bool)
    for first, end, start, count in zip(bounds, bounds[1:], starts, counts):
        assert count >= 1
        seen[first:end, start : start + count] = True
    assert seen.any(axis=1).all()  # no frame without a key
    for half in (0, pack.rows):
        for (length, causal), start in zip(items, pack.starts + half):
            mask = Visibility(length, chunk if causal else None).full_mask(torch.device("cpu"))
            expected = np.ones((length, length), bool) if mask is None else mask[0, 0].numpy()
            rows = seen[start : start + length]
            assert np.array_equal(rows[:, start : start + length], expected)
            assert rows.sum() == expected.sum()  # and nothing else


@given(items=_ITEMS)
@settings(max_examples=30, deadline=None)
def test_rows_know_their_item_and_frame(items: list[tuple[int, bool]]) -> None:
    pack = FramePack([PackedMel(*item) for item in items], 8)
    layout = device_layout(torch.from_numpy(pack.table), pack.rows, pack.blocks)
    inside = layout.inside.numpy()
    assert inside.sum() == sum(length for length, _ in items)
    for number, ((length, _), start) in enumerate(zip(items, pack.starts)):
        assert (layout.item[start : start + length] == number).all()
        assert layout.place[start : start + length].tolist() == list(range(length))
        assert not inside[start + length : start + length + GAP].any()


def _plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, pack: FramePack) -> torch.Tensor:
    """Attention with one dense mask, for the rows inside an item; zero elsewhere."""
    found = torch.zeros_like(q)
    for half in (0, pack.rows):
        for item, start in zip(pack.items, pack.starts + half):
            mask = Visibility(item.frames, pack.chunk if item.causal else None).full_mask(q.device)
            part = slice(int(start), int(start) + item.frames)
            query, key, value = (x[part].transpose(0, 1)[None] for x in (q, k, v))
            found[part] = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)[0].transpose(0, 1)
    return found


def _compare(attention: object, device: torch.device, dtype: torch.dtype, bound: float) -> None:
    pack = FramePack([PackedMel(130, True), PackedMel(300), PackedMel(7, True), PackedMel(128)], 6)
    layout = device_layout(torch.from_numpy(pack.table).to(device), pack.rows, pack.blocks)
    q, k, v = torch.randn(3, 2 * pack.rows, 2, 16, device=device).to(dtype)
    found = attention(q, k, v, layout.blocks)  # type: ignore[operator]
    assert torch.isfinite(found).all()
    inside = torch.cat((layout.inside, layout.inside))
    expected = _plain(q.float(), k.float(), v.float(), pack)
    assert (found.float() - expected)[inside].abs().max() <= bound


def test_block_attention_equals_masked_attention() -> None:
    _compare(block_by_block, torch.device("cpu"), torch.float32, 1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_kernels_equal_masked_attention(cuda: torch.device, dtype: torch.dtype) -> None:
    attention = choose_attention(cuda, dtype, 16)
    assert attention is not block_by_block
    _compare(attention, cuda, dtype, 1e-4 if dtype == torch.float32 else 0.02)

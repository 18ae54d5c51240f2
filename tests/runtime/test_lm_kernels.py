"""Each kernel of the language model's step against the same in plain torch, odd sizes and padding among them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from inference.runtime.precision import relative_error
from inference.runtime.slot_attention import PrefixAttention, PromptAttention
from inference.runtime.slot_table import ACTIVE, LENGTH
from tests.runtime.lm_kernel_support import HEADS, KV_HEADS, SIZE, Slots, kernel_model, turned, turns_of
from tests.triton_interpreter import need_triton

DEVICE = need_triton()
pytestmark = [pytest.mark.gpu] if DEVICE.type == "cuda" else []

from inference.runtime.lm_attention import SPAN, RowAttentionKernel  # noqa: E402
from inference.runtime.lm_kernels import add_norm, embed_speech, embed_symbols  # noqa: E402
from inference.runtime.lm_products import Strip, product  # noqa: E402
from inference.runtime.lm_prompt_attention import QUERY_BLOCK, PromptAttentionKernel  # noqa: E402

HALF = torch.float16


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape).to(DEVICE, dtype)


# ---------------------------------------------------------------------------------------------- embed, norm
def test_embeddings_of_every_kind() -> None:
    model = kernel_model().to(DEVICE, HALF)
    kinds = torch.tensor([0, 1, 2, 3, 3, 0, 1], device=DEVICE)
    ids = torch.tensor([0, 1, 49, 42, 0, 0, 0], device=DEVICE)
    tables = (model.llm_embedding.weight, model.decoder.embed_tokens.weight, model.speech_embedding.weight)
    stream = randn(7, 128)
    embed_symbols(kinds, ids, tables, stream)
    assert torch.equal(stream, model.embed(kinds, ids).float())
    table = torch.tensor([[5, 7], [0, 7], [42, 7]], device=DEVICE)
    embed_speech(table, tables[2], stream[:2])
    assert torch.equal(stream[:2], tables[2][[5, 0]].float())


@pytest.mark.parametrize("parts", [0, 1, 3])
@pytest.mark.parametrize("hidden", [96, 128])
def test_norm_of_a_sum(parts: int, hidden: int) -> None:
    stream, added, weight = randn(5, hidden), randn(3, 9, hidden, dtype=HALF)[:parts], randn(hidden)
    expected = stream + added[:, :5].float().sum(0)
    normed = torch.empty(5, hidden, dtype=HALF, device=DEVICE)
    before = stream.clone()
    add_norm(stream, added if parts else None, weight, 1e-6, normed)
    assert relative_error(stream, expected) < 1e-6
    assert relative_error(normed, F.rms_norm(expected, (hidden,), weight, 1e-6)) < 1e-3
    picks = torch.tensor([4, 0], device=DEVICE)
    add_norm(before, added if parts else None, weight, 1e-6, some := torch.empty_like(normed[:2]), picks)
    assert torch.equal(some, normed[picks])


# ------------------------------------------------------------------------------------------------------ products
@pytest.mark.parametrize(
    ("strip", "rows", "outs", "ins"),
    [
        (Strip(16, 64), 1, 45, 128),
        (Strip(32, 32, parts=2), 17, 64, 96),  # the second part is shorter
        (Strip(16, 32, parts=4), 70, 32, 128),
        (Strip(64, 64, warps=8, rows=128), 150, 70, 96),
    ],
)
def test_products(strip: Strip, rows: int, outs: int, ins: int) -> None:
    inputs, weights = randn(rows, ins, dtype=HALF), randn(outs, ins, dtype=HALF)
    parts = torch.full((strip.parts, rows + 2, outs), 7.0, device=DEVICE)
    product(inputs, weights, None, parts, strip)
    expected = inputs.float() @ weights.float().T
    assert relative_error(parts[:, :rows].sum(0), expected) < 1e-3
    assert (parts[:, rows:] == 7.0).all()  # rows beyond those given


@pytest.mark.parametrize("ins", [128, 96])
def test_products_with_a_bias_or_a_gate(ins: int) -> None:
    inputs, weights, bias = randn(3, ins, dtype=HALF), randn(90, ins, dtype=HALF), randn(90, dtype=HALF)
    strip = Strip(16, 64)
    plain = F.linear(inputs.float(), weights.float(), bias.float())
    result = torch.empty(3, 90, dtype=HALF, device=DEVICE)
    product(inputs, weights, bias, result, strip)
    assert relative_error(result, plain) < 2e-3
    left, up = F.linear(inputs.float(), weights.float()).chunk(2, dim=-1)
    result = torch.empty(3, 45, dtype=HALF, device=DEVICE)
    product(inputs, weights, None, result, strip, gated=True)
    assert relative_error(result, F.silu(left) * up) < 2e-3


def test_a_product_does_not_depend_on_company() -> None:
    """The same bits alone and among others, however strips are cut."""
    inputs, weights = randn(300, 96, dtype=HALF), randn(48, 96, dtype=HALF)
    found = []
    for rows, strip in (
        (1, Strip(16, 32)),
        (2, Strip(16, 64, warps=2)),
        (16, Strip(32, 32)),
        (32, Strip(16, 32)),
        (64, Strip(16, 32)),
        (64, Strip(32, 64, warps=8, rows=32)),
        (300, Strip(64, 32, warps=8, rows=128)),
    ):
        result = torch.empty(rows, 48, device=DEVICE)
        product(inputs[:rows], weights, None, result, strip)
        found.append(result[0])
    if DEVICE.type == "cuda":
        assert all(torch.equal(one, found[0]) for one in found)
    for one in found:  # NumPy's products, in the interpreter, do depend on their shape
        assert relative_error(one, found[0]) < 1e-6


# ----------------------------------------------------------------------------------------------------- attention
def by_plain(slots: Slots, prefix: int, layer: int = 1) -> tuple[Tensor, Tensor]:
    """What torch's operations give: attended (B, heads × size), the cache afterwards."""
    cache, rows = slots.cache, len(slots.fused)
    kept = cache.data.clone()
    positions = slots.table[:rows, LENGTH].clone()
    live = slots.table[:rows, ACTIVE] > 0
    write_rows = torch.where(live, torch.arange(rows, device=DEVICE), rows)
    memory = PrefixAttention(cache, write_rows, positions, prefix, slots.fused.dtype)
    attended = memory.attend(layer, turned(slots.fused, slots.turns[positions]))
    after, cache.data = cache.data, kept
    return attended * live[:, None], after


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.parametrize("longest", [SPAN, 1100])
def test_rows_attend_as_in_plain_torch(longest: int, dtype: torch.dtype) -> None:
    lengths = [0, 1, 130, SPAN - 1, 64] if longest == SPAN else [0, SPAN - 1, SPAN, 1099, 600]
    slots = Slots(lengths, 1100, DEVICE, dtype)
    slots.table[4, ACTIVE] = 0
    expected, after = by_plain(slots, longest)
    kernel = RowAttentionKernel(slots.cache.data, slots.turns, HEADS, len(lengths))
    result = torch.full_like(expected, 7.0)
    kernel(1, slots.fused, slots.table, result, longest)
    bound = 2e-6 if dtype == torch.float32 else 2e-3
    assert relative_error(result, expected) < bound
    assert not result[4].any()  # not live
    spare = len(lengths)
    for slot, length in enumerate(lengths[:4]):
        new = slots.cache.data[1, :, slot, :, length]
        assert relative_error(new, after[1, :, slot, :, length]) < 1e-3
        slots.cache.data[1, :, slot, :, length] = after[1, :, slot, :, length]
    assert torch.equal(slots.cache.data[:, :, :spare], after[:, :, :spare])  # nothing else was written


def test_a_row_attends_the_same_alone_and_in_company() -> None:
    slots = Slots([300, 700, 20], 1024, DEVICE, HALF)
    kernel = RowAttentionKernel(slots.cache.data, slots.turns, HEADS, 3)
    alone, among = (torch.empty(3, HEADS * SIZE, dtype=HALF, device=DEVICE) for _ in range(2))
    kernel(0, slots.fused[:1], slots.table, alone[:1], SPAN)
    kernel(0, slots.fused, slots.table, among, 1024)  # the company needs more than one span
    assert torch.equal(alone[0], among[0])


def test_prompts_attend_as_in_plain_torch() -> None:
    """A beginning, a continuation and padding, packed one behind the other."""
    runs = [(2, 0, 70), (0, 33, 20), (1, 130, 1)]  # slot, start, symbols
    slots = Slots([200, 200, 200], 200, DEVICE, HALF)
    count = sum(size for _, _, size in runs)
    fused = randn(count + 5, HEADS + 2 * KV_HEADS, SIZE, dtype=HALF)
    positions = torch.cat([start + torch.arange(size) for _, start, size in runs] + [torch.zeros(5)])
    owners = torch.cat([torch.full((size,), slot) for slot, _, size in runs] + [torch.full((5,), 3)])
    positions, owners = positions.long().to(DEVICE), owners.to(DEVICE)
    blocks, expected, begin = [], [], 0
    plain = Slots([200, 200, 200], 200, DEVICE, HALF)
    plain.cache.data.copy_(slots.cache.data)
    for slot, start, size in runs:
        for first in range(0, size, QUERY_BLOCK):
            blocks.append([begin + first, min(QUERY_BLOCK, size - first), slot, start + first])
        own = slice(begin, begin + size)
        row = torch.tensor([slot], device=DEVICE)
        memory = PromptAttention(plain.cache, row, owners[own], positions[own], start + size)
        expected.append(memory.attend(0, turned(fused[own], slots.turns[positions[own]])))
        begin += size
    blocks += [[0, 0, 0, 0]] * 2
    kernel = PromptAttentionKernel(slots.cache.data, turns_of(200, DEVICE), HEADS)
    queries = torch.empty(count + 5, HEADS * SIZE, dtype=HALF, device=DEVICE)
    result = torch.full_like(queries, 7.0)
    kernel.store(0, fused, positions, owners, queries)
    kernel.attend(0, queries, torch.tensor(blocks, device=DEVICE), result)
    assert relative_error(result[:count], torch.cat(expected)) < 2e-3
    assert (result[count:] == 7.0).all()
    assert relative_error(slots.cache.data[:, :, :3], plain.cache.data[:, :, :3]) < 1e-3

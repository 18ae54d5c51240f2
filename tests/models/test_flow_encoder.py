"""The conformer encoder: recorded stages, relative positions against their definition, batching."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from inference.models import flow_encoder
from inference.models.flow import FlowModel
from inference.models.flow_encoder import RelativeAttention, relative_positions
from inference.models.masks import visibility
from tests.golden_data import Case, load_case, parametrize, relative_error
from tests.models.flow_support import full_size_flow, random_flow, tiny_flow


def check_stages(model: FlowModel, case: Case, bound: float) -> None:
    encoder, x = model.encoder, case.tensor("embedded")
    positions = relative_positions(x.shape[1], x.shape[2], x.device)
    assert relative_error(model.input_embedding(case.tensor("token").long())[None], x) <= bound
    assert relative_error(positions[None], case.tensor("stage_pos_emb")) <= bound
    embedded = encoder.embed(x)
    assert relative_error(embedded, case.tensor("stage_embed")) <= bound
    mixed = encoder.pre_lookahead_layer(embedded, True)
    assert relative_error(mixed, case.tensor("stage_prelookahead")) <= bound
    layer = encoder.encoders[0](mixed, positions, visibility(x.shape[1], None, None))
    assert relative_error(layer, case.tensor("stage_layer0")) <= bound


def check_outputs(model: FlowModel, case: Case, bound: float) -> None:
    for streaming in (False, True):
        for finalize in (False, True):
            found, _ = model.encoder(case.tensor("embedded"), None, streaming=streaming, finalize=finalize)
            key = f"{'final' if finalize else 'ctx'}_streaming{int(streaming)}"
            assert relative_error(found, case.tensor(key)) <= bound, key
        mu, _ = model.encode(case.tensor("token")[None], None, streaming=streaming)
        assert (
            relative_error(mu.transpose(1, 2), case.tensor(f"proj_final_streaming{int(streaming)}")) <= bound
        )


@pytest.mark.golden
@parametrize("name", "flow_encoder")
@torch.inference_mode()
def test_recorded_encoder(name: str) -> None:
    case = load_case(name)
    if "full size" in case.meta["config"]["weights"]:
        pytest.skip("a full-size case, see test_full_size_encoder")
    check_stages(tiny_flow(), case, 1e-5)
    check_outputs(tiny_flow(), case, 1e-4)


@pytest.mark.golden
@pytest.mark.slow
@parametrize("name", "full_flow_encoder")
@torch.inference_mode()
def test_full_size_encoder(name: str) -> None:
    case = load_case(name)
    check_stages(full_size_flow(), case, 1e-5)
    check_outputs(full_size_flow(), case, 1e-4)


def attention_by_definition(layer: RelativeAttention, x: Tensor, allowed: Tensor) -> Tensor:
    """SPEC 4, one pair (i, j) at a time, for a single item."""
    size, width = x.shape[1:]
    heads, dim = layer.heads, layer.head_dim
    query, key, value = (
        f(x)[0].view(size, heads, dim) for f in (layer.linear_q, layer.linear_k, layer.linear_v)
    )
    scores = torch.full((heads, size, size), -math.inf)
    rates = 10000.0 ** (-torch.arange(0, width, 2) / width)
    for i in range(size):
        for j in range(size):
            if allowed[i, j]:
                angles = (i - j) * rates
                wave = torch.stack((angles.sin(), angles.cos()), 1).flatten()
                place = layer.linear_pos(wave).view(heads, dim)
                content = ((query[i] + layer.pos_bias_u) * key[j]).sum(1)
                scores[:, i, j] = (content + ((query[i] + layer.pos_bias_v) * place).sum(1)) / math.sqrt(dim)
    mixed = torch.einsum("hij,jhd->ihd", scores.softmax(-1), value)
    return layer.linear_out(mixed.reshape(1, size, width))


@pytest.mark.unit
@pytest.mark.parametrize("size", [1, 2, 13])
@pytest.mark.parametrize("chunk", [None, 5])
@pytest.mark.parametrize("block", [1, 4, 1024])
@torch.inference_mode()
def test_attention_equals_its_definition(
    size: int, chunk: int | None, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow_encoder, "CPU_QUERY_BLOCK", block)
    layer = random_flow().encoder.encoders[0].self_attn
    x = torch.randn(1, size, 64)
    place = torch.arange(size)
    allowed = torch.ones(size, size, dtype=torch.bool)
    if chunk is not None:
        allowed = place[None] < (place[:, None] // chunk + 1) * chunk
    found = layer(x, relative_positions(size, 64, x.device), visibility(size, None, chunk))
    assert relative_error(found, attention_by_definition(layer, x, allowed)) <= 1e-5


@pytest.mark.unit
@pytest.mark.parametrize("block", [7, 1024])
@torch.inference_mode()
def test_padding_and_blocks_change_nothing(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_flow()
    lengths = torch.tensor([40, 4, 26])
    x = torch.randn(3, 40, 64)
    for streaming in (False, True):
        for finalize in (False, True):
            flags = {"streaming": streaming, "finalize": finalize}
            with monkeypatch.context() as patch:
                patch.setattr(flow_encoder, "CPU_QUERY_BLOCK", block)
                found, sizes = model.encoder(x, lengths, **flags)
            assert sizes is not None
            for row, n, size in zip(range(3), lengths.tolist(), sizes.tolist()):
                alone, _ = model.encoder(x[row : row + 1, :n], None, **flags)
                assert alone.shape[1] == size
                assert relative_error(found[row : row + 1, :size], alone) <= 1e-5


@pytest.mark.unit
def test_position_tables_grow_without_changing() -> None:
    small, large = (relative_positions(n, 16, torch.device("cpu")) for n in (5, 3000))
    assert small.shape == (9, 16) and large.shape == (5999, 16)
    assert torch.equal(large[2999 - 4 : 2999 + 5], small)


@pytest.mark.unit
@torch.inference_mode()
def test_a_lone_padded_item_of_length_zero_stays_finite() -> None:
    # Fixed-size batches carry empty items along.
    found, lengths = random_flow().encode(torch.zeros(2, 10, dtype=torch.long), torch.tensor([10, 0]))
    assert torch.isfinite(found).all()
    assert lengths is not None and lengths.tolist() == [20, 0]
    assert not found[1].any()

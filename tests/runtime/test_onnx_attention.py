"""Attention by ONNX Runtime: PyTorch's numbers, on any number of threads, and PyTorch's own where it is missing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from inference.runtime import onnx_attention
from inference.runtime.onnx_attention import FullAttention

pytestmark = pytest.mark.unit


def parts(rows: int, width: int, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(rows, width, generator=generator) for _ in range(3)]


def expected(query: Tensor, key: Tensor, value: Tensor, heads: int) -> Tensor:
    query, key, value = (part.double().unflatten(1, (heads, -1)) for part in (query, key, value))
    scores = torch.einsum("qhd,khd->hqk", query, key) / query.shape[2] ** 0.5
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), value).flatten(1)


@pytest.fixture(params=["onnxruntime", "pytorch"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "pytorch":
        monkeypatch.setattr(onnx_attention, "_works", lambda: False)
    elif not onnx_attention._works():
        pytest.skip("this ONNX Runtime has no such operator")
    return str(request.param)


@pytest.mark.parametrize(("rows", "heads", "width"), [(1, 1, 4), (7, 2, 6), (300, 4, 128), (1100, 8, 512)])
@torch.inference_mode()
def test_equals_the_formula(way: str, rows: int, heads: int, width: int) -> None:
    given = parts(rows, width)
    before = [part.clone() for part in given]
    found = FullAttention(heads, width)(*given)
    torch.testing.assert_close(found.double(), expected(*given, heads), atol=5e-6, rtol=0)
    assert all(torch.equal(part, kept) for part, kept in zip(given, before))


@torch.inference_mode()
def test_great_scores_do_not_overflow(way: str) -> None:
    query, key, value = parts(64, 32)
    found = FullAttention(2, 32)(600.0 * query, 600.0 * key, value)
    torch.testing.assert_close(
        found.double(), expected(600.0 * query, 600.0 * key, value, 2), atol=1e-4, rtol=0
    )


def test_company_changes_no_bit() -> None:
    attention = FullAttention(4, 64)
    given = [parts(rows, 64, seed) for seed, rows in enumerate((40, 333, 512, 700) * 3)]
    alone = [attention(*some) for some in given]
    with ThreadPoolExecutor(4) as threads:
        for found, kept in zip(threads.map(lambda some: attention(*some), given), alone):
            assert torch.equal(found, kept)


def test_the_bytes_are_a_model_of_onnx() -> None:
    model = onnx.load_from_string(onnx_attention._model(300, 4800))  # numbers of more than one byte
    (node,) = model.graph.node
    assert (node.op_type, node.domain, list(node.input)) == (
        "MultiHeadAttention",
        "com.microsoft",
        ["query", "key", "value"],
    )
    assert {given.name: given.i for given in node.attribute} == {"num_heads": 300}
    assert [dim.dim_value or dim.dim_param for dim in model.graph.input[0].type.tensor_type.shape.dim] == [
        1,
        "n",
        4800,
    ]
    assert [(operators.domain, operators.version) for operators in model.opset_import] == [
        ("", 17),
        ("com.microsoft", 1),
    ]


def test_an_old_or_broken_runtime_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    works = onnx_attention._works.__wrapped__
    monkeypatch.setattr(onnxruntime, "__version__", "1.18.1")
    assert not works()
    monkeypatch.setattr(onnxruntime, "__version__", "1.32.0")

    def refuse(*_: object) -> None:
        raise RuntimeError("no such operator")

    monkeypatch.setattr(onnx_attention, "_session", refuse)
    assert not works()
    monkeypatch.setattr(onnx_attention, "_session", lambda *_: None)
    monkeypatch.setattr(onnx_attention, "_run", lambda session, query, key, value: F.relu(query))
    assert not works()

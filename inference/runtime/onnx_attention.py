"""Attention on one CPU core by ONNX Runtime's operator: a fifth faster than PyTorch's where both use AVX-512.

`MultiHeadAttention` (of the domain com.microsoft, since ONNX Runtime 1.20 without the whole table of scores in memory)
takes each position's heads side by side, which is also how the products before and behind it have them. The model
that holds this one operator is written here, byte by byte: the package `onnx` would be needed for nothing else.
"""

from __future__ import annotations

import logging
from functools import lru_cache

import onnxruntime
import torch
import torch.nn.functional as F
from torch import Tensor

logger = logging.getLogger(__name__)

_FLOAT = 1  # onnx.TensorProto
_INTEGER = 2  # onnx.AttributeProto
_IR_VERSION, _OPERATORS, _CONTRIBUTED = 8, 17, 1
_DOMAIN = "com.microsoft"
_LEAST_VERSION = (1, 20)


class FullAttention:
    """softmax(q kᵀ / √head size) v of `heads` heads, in which everything sees everything.

    Keeps no state between calls; may be used from several threads. The result's bits depend on the numbers given and on
    how many rows there are.
    """

    def __init__(self, heads: int, width: int) -> None:
        self._heads = heads
        self._session = _session(heads, width) if _works() else None

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Contiguous float32 (n, width) each → (n, width)."""
        if self._session is None:
            return _by_pytorch(query, key, value, self._heads)
        return _run(self._session, query, key, value)


def _run(session: onnxruntime.InferenceSession, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    given = {"query": query[None].numpy(), "key": key[None].numpy(), "value": value[None].numpy()}
    return torch.from_numpy(session.run(None, given)[0])[0]


def _by_pytorch(query: Tensor, key: Tensor, value: Tensor, heads: int) -> Tensor:
    query, key, value = (part.unflatten(1, (heads, -1)).transpose(0, 1)[None] for part in (query, key, value))
    mixed = F.scaled_dot_product_attention(query, key, value)
    return mixed[0].transpose(0, 1).flatten(1)


@lru_cache(maxsize=8)
def _session(heads: int, width: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_mem_pattern = False  # would keep a plan of every length
    return onnxruntime.InferenceSession(_model(heads, width), options, providers=["CPUExecutionProvider"])


@lru_cache(maxsize=1)
def _works() -> bool:
    """Whether this ONNX Runtime has the operator, and it is right."""
    version = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])
    if version < _LEAST_VERSION:
        logger.info("Attention by PyTorch: ONNX Runtime %s is too old.", onnxruntime.__version__)
        return False
    with torch.inference_mode():
        query, key, value = (
            torch.linspace(-2.0, 2.0, 20 * 8).roll(shift).view(20, 8) for shift in (0, 33, 70)
        )
        try:
            found = _run(_session(2, 8), query, key, value)
        except Exception as error:  # ONNX Runtime's own kinds, of which there are many
            logger.info("Attention by PyTorch: %s", error)
            return False
        return torch.allclose(found, _by_pytorch(query, key, value, heads=2), atol=1e-5)


def _model(heads: int, width: int) -> bytes:
    """A serialised onnx.ModelProto; the numbers are those of the fields in ONNX's onnx.proto."""
    names = ("query", "key", "value")
    attribute = _text(1, "num_heads") + _number(3, heads) + _number(20, _INTEGER)
    node = b"".join(_text(1, name) for name in names) + _text(2, "mixed")
    node += _text(4, "MultiHeadAttention") + _part(5, attribute) + _text(7, _DOMAIN)
    graph = _part(1, node) + _text(2, "attention")
    graph += b"".join(_part(11, _value(name, width)) for name in names) + _part(12, _value("mixed", width))
    operators = _part(8, _text(1, "") + _number(2, _OPERATORS))
    operators += _part(8, _text(1, _DOMAIN) + _number(2, _CONTRIBUTED))
    return _number(1, _IR_VERSION) + _part(7, graph) + operators


def _value(name: str, width: int) -> bytes:
    """A float tensor (1, n, width)."""
    shape = _part(1, _number(1, 1)) + _part(1, _text(2, "n")) + _part(1, _number(1, width))
    return _text(1, name) + _part(2, _part(1, _number(1, _FLOAT) + _part(2, shape)))


def _number(field: int, number: int) -> bytes:
    return _varint(field << 3) + _varint(number)


def _text(field: int, text: str) -> bytes:
    return _part(field, text.encode())


def _part(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])

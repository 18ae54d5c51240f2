"""Triton kernels between the language model's matrix products: embedding and norm. Import this on CUDA only."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from inference.models.language_model import SERVICE, SPEECH, TEXT

_SERVICE, _TEXT, _SPEECH = tl.constexpr(SERVICE), tl.constexpr(TEXT), tl.constexpr(SPEECH)
# Columns of the slots' table (`slot_table`), of which the embedding reads the last id.


@triton.jit
def _embed_speech(  # type: ignore[no-untyped-def]
    table, speech, stream,
    width: tl.constexpr, hidden: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Residual stream of one row: the embedding of the id in the first column of its state."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, block)
    inside = place < hidden
    token = tl.load(table + row * width)
    value = tl.load(speech + token * hidden + place, mask=inside, other=0.0)
    tl.store(stream + row * hidden + place, value.to(tl.float32), mask=inside)


@triton.jit
def _embed_symbols(  # type: ignore[no-untyped-def]
    kinds, ids, service, text, speech, stream,
    hidden: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Residual stream of one symbol of a prompt, from the table its kind names; zeros for padding."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, block)
    inside = place < hidden
    kind, token = tl.load(kinds + row), tl.load(ids + row)
    at = token * hidden + place
    value = tl.load(service + at, mask=inside & (kind == _SERVICE), other=0.0).to(tl.float32)
    value += tl.load(text + at, mask=inside & (kind == _TEXT), other=0.0).to(tl.float32)
    value += tl.load(speech + at, mask=inside & (kind == _SPEECH), other=0.0).to(tl.float32)
    tl.store(stream + row * hidden + place, value, mask=inside)


@triton.jit(do_not_specialize=["part_size"])
def _add_norm(  # type: ignore[no-untyped-def]
    stream, parts, weight, normed, picks, eps, part_size,
    count: tl.constexpr, hidden: tl.constexpr, block: tl.constexpr, picked: tl.constexpr,
):  # fmt: skip
    """stream += the `count` parts, in their order; then its root-mean-square norm.

    With `picked` row i of the result is that of stream's row picks[i], and the stream stays as it is.
    """
    target = tl.program_id(0).to(tl.int64)
    row = target
    if picked:
        row = tl.load(picks + target)
    place = tl.arange(0, block)
    inside = place < hidden
    at = row * hidden + place
    value = tl.load(stream + at, mask=inside, other=0.0)
    for part in tl.static_range(count):
        value += tl.load(parts + part * part_size + at, mask=inside, other=0.0).to(tl.float32)
    if count > 0 and not picked:
        tl.store(stream + at, value, mask=inside)
    scale = tl.rsqrt(tl.sum(value * value, 0) / hidden + eps)
    value = value * scale * tl.load(weight + place, mask=inside, other=0.0)
    tl.store(normed + target * hidden + place, value.to(normed.dtype.element_ty), mask=inside)


def embed_speech(table: Tensor, speech: Tensor, stream: Tensor) -> None:
    """stream (B, hidden) float32 from the last ids of the first B rows of the slots' table (·, width) int64."""
    rows, hidden = stream.shape
    _embed_speech[(rows,)](
        table, speech, stream, width=table.stride(0), hidden=hidden, block=triton.next_power_of_2(hidden),
        num_warps=4,
    )  # fmt: skip


def embed_symbols(kinds: Tensor, ids: Tensor, tables: tuple[Tensor, Tensor, Tensor], stream: Tensor) -> None:
    """stream (N, hidden) float32 of symbols (N,); `tables`: service, text, speech."""
    rows, hidden = stream.shape
    _embed_symbols[(rows,)](
        kinds, ids, *tables, stream, hidden=hidden, block=triton.next_power_of_2(hidden),
        num_warps=4,
    )  # fmt: skip


def add_norm(
    stream: Tensor,
    parts: Tensor | None,
    weight: Tensor,
    eps: float,
    normed: Tensor,
    picks: Tensor | None = None,
) -> None:
    """stream (N, hidden) float32 += sum of parts (S, ≥ N, hidden); normed (N, hidden) = its norm times `weight`.

    `picks` (M,) int64: only these rows, into normed (M, hidden), and nothing is added to the stream itself.
    """
    rows, hidden = normed.shape
    _add_norm[(rows,)](
        stream, stream if parts is None else parts, weight, normed, stream if picks is None else picks,
        eps, 0 if parts is None else parts.stride(0),
        count=0 if parts is None else len(parts), hidden=hidden, block=triton.next_power_of_2(hidden),
        picked=picks is not None, num_warps=4,
    )  # fmt: skip

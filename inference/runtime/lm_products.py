"""Matrix products whose rows do not depend on their company. Import this on CUDA only.

With few rows a product is reading weights as fast as memory gives them. One program takes a strip of outputs for some
rows. The sum over the inputs is cut into a number of parts that depends on the layer only, and each is added up in
ascending order, however wide strips are: a row gets the same bits alone, among 64 or in a batch of prompts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from inference.runtime import gpu_traits

MOST_ROWS = 64  # of one program
LEAST_ROWS = 16  # what the matrix units take
# What a small card has is half of what a large one has: there two programs run beside each other.
_SHARED_BYTES = gpu_traits.LEAST_SHARED


@dataclass(frozen=True)
class Strip:
    """How a product is cut: outputs of a program, inputs of a round, parts of the sum, and how it is run.

    `rows`: the most of one program; `shared`: bytes of shared memory that its rounds may take on the device.
    """

    outs: int
    ins: int = 128
    parts: int = 1
    warps: int = 4
    stages: int = 4
    rows: int = MOST_ROWS
    shared: int = _SHARED_BYTES


@triton.jit(do_not_specialize=["rows"])
def _product(  # type: ignore[no-untyped-def]
    inputs, weights, bias, result, rows,
    outs: tl.constexpr, ins: tl.constexpr, part_size: tl.constexpr, block_rows: tl.constexpr,
    block_outs: tl.constexpr, block_ins: tl.constexpr, rounds: tl.constexpr, even: tl.constexpr,
    biased: tl.constexpr, gated: tl.constexpr, stages: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """result[part, row, out] = inputs[row] · weights[out] (+ bias), or SiLU of one product times another (`gated`)."""
    first_out = tl.program_id(2) * block_outs
    part = tl.program_id(1)
    row = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    out = first_out + tl.arange(0, block_outs)
    place = part * rounds * block_ins + tl.arange(0, block_ins)
    there = row[:, None] < rows
    wanted = out[None, :] < outs
    at = inputs + row[:, None].to(tl.int64) * ins + place[None, :]
    strip = weights + out[None, :].to(tl.int64) * ins + place[:, None]
    total = tl.zeros([block_rows, block_outs], tl.float32)
    other = tl.zeros([block_rows, block_outs], tl.float32)
    for step in tl.range(rounds, num_stages=stages):
        if even:
            x = tl.load(at, mask=there, other=0.0)
            w = tl.load(strip, mask=wanted, other=0.0)
        else:
            left = ins - step * block_ins
            x = tl.load(at, mask=there & (place[None, :] < left), other=0.0)
            w = tl.load(strip, mask=wanted & (place[:, None] < left), other=0.0)
        total = tl.dot(x, w, total, input_precision=precision)
        if gated:
            if even:
                u = tl.load(strip + outs * ins, mask=wanted, other=0.0)
            else:
                u = tl.load(strip + outs * ins, mask=wanted & (place[:, None] < left), other=0.0)
            other = tl.dot(x, u, other, input_precision=precision)
        at += block_ins
        strip += block_ins
    if biased:
        total += tl.load(bias + out, mask=out < outs, other=0.0).to(tl.float32)[None, :]
    if gated:
        total = total / (1.0 + tl.exp(-total)) * other
    end = result + part * part_size + row[:, None].to(tl.int64) * outs + out[None, :]
    tl.store(end, total.to(result.dtype.element_ty), mask=there & wanted)


def product(
    inputs: Tensor,
    weights: Tensor,
    bias: Tensor | None,
    result: Tensor,
    strip: Strip,
    gated: bool = False,
) -> None:
    """inputs (B, ins) × weights (outs, ins) → result (parts, ≥ B, outs), to be added up, or (B, outs) for one part.

    `gated`: weights (2 outs, ins), those of the gate first; the result is SiLU(gate) × up.
    """
    rows, ins = inputs.shape
    outs = result.shape[-1]
    most = strip.rows if rows > MOST_ROWS else min(strip.rows, MOST_ROWS)
    block_rows = LEAST_ROWS if rows <= LEAST_ROWS else most
    rounds = triton.cdiv(ins, strip.ins * strip.parts)
    # Rounds that are on their way at once: as many as the shared memory holds.
    room = (block_rows + strip.outs * (2 if gated else 1)) * strip.ins * weights.element_size()
    shared = min(strip.shared, gpu_traits.shared_bytes(inputs.device) - 1024)
    stages = max(2, min(strip.stages, shared // room))
    # Programs that run at once share a strip of weights.
    _product[(triton.cdiv(rows, block_rows), strip.parts, triton.cdiv(outs, strip.outs))](
        inputs, weights, inputs if bias is None else bias, result, rows,
        outs=outs, ins=ins, part_size=result.stride(0) if strip.parts > 1 else 0, block_rows=block_rows,
        block_outs=strip.outs, block_ins=strip.ins, rounds=rounds,
        even=rounds * strip.ins * strip.parts == ins,
        biased=bias is not None, gated=gated, stages=stages,
        precision="ieee" if inputs.dtype == torch.float32 else "tf32",
        num_warps=strip.warps, num_stages=stages,
    )  # fmt: skip

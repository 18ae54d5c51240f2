"""Weight-only int8, symmetric, one scale per output channel.

The bundled speech tokenizer is stored so. Everything that must agree with the stored file (the training tokens above
all) runs on the rounded weights, so rounding happens here once and the export only re-finds the same integers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

MIN_ELEMENTS = 20_000  # smaller weights stay float32


def quantize_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight: (out, ...) float; returns int8 of the same shape and (out,) float32 scales, largest magnitude 127."""
    flat = weight.detach().float().reshape(weight.shape[0], -1)
    scale = flat.abs().amax(dim=1).clamp_min(1e-8) / 127.0
    integers = (flat / scale[:, None]).round().clamp(-127, 127).to(torch.int8)
    return integers.reshape(weight.shape), scale


def dequantize_rows(integers: Tensor, scale: Tensor) -> Tensor:
    """The inverse of `quantize_rows`, float32."""
    return integers.float() * scale.reshape(-1, *[1] * (integers.dim() - 1))


def is_quantized(weight: Tensor) -> bool:
    """Whether a weight of this shape is stored as int8."""
    return weight.dim() >= 2 and weight.numel() >= MIN_ELEMENTS


def round_weights(module: nn.Module) -> None:
    """Replace every large Linear and Conv1d weight by what the int8 file will hold. Doing it twice changes nothing."""
    for layer in module.modules():
        if isinstance(layer, (nn.Linear, nn.Conv1d)) and is_quantized(layer.weight):
            with torch.no_grad():
                layer.weight.copy_(dequantize_rows(*quantize_rows(layer.weight)))

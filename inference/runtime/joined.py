"""Parameters of one product as one tensor, without holding them twice."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor


def joined(parameters: Sequence[Tensor]) -> Tensor:
    """One tensor of all parameters, equal but for the first size, behind each other; they become views of it.

    Where they are that already nothing is copied, so that all who ask share one tensor.
    """
    if len(parameters) == 1:
        return parameters[0].detach()
    if _lie_together(parameters):
        first = parameters[0].detach()
        rows = sum(len(parameter) for parameter in parameters)
        return first.as_strided((rows, *first.shape[1:]), first.stride())
    with torch.inference_mode(False), torch.no_grad():  # as parameters are made, wherever this is called
        fused = torch.cat([parameter.detach() for parameter in parameters])
        for parameter, part in zip(parameters, fused.split([len(parameter) for parameter in parameters])):
            parameter.data = part
    return fused


def _lie_together(parameters: Sequence[Tensor]) -> bool:
    return all(
        before.is_contiguous()
        and behind.is_contiguous()
        and before.untyped_storage()._cdata == behind.untyped_storage()._cdata
        and before.storage_offset() + before.numel() == behind.storage_offset()
        for before, behind in pairwise(parameters)
    )

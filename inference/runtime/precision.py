"""Half precision where it is sound: chosen per module by a self-test, and given up loudly when it is not.

SPEC 8 lists what stays float32 inside the modules; this file decides what the modules' weights are held in.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from inference.types import RequestError

logger = logging.getLogger(__name__)

ModuleT = TypeVar("ModuleT", bound=nn.Module)

PRECISIONS = ("auto", "fp32", "fp16", "bf16")
_DEVICE_TYPES = ("cpu", "cuda")
_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
# Relative 2-norm distance from float32 above which a half-precision module counts as broken. Rounding alone
# gives about 1e-3 (fp16) to 1e-2 (bf16) after ten solver steps.
SELF_TEST_BOUND = 0.1


def choose_dtype(precision: str, device: torch.device) -> torch.dtype:
    """The dtype to try for the language model and the flow model.

    `auto` is float16 on CUDA and float32 elsewhere: half precision is slower than float32 on most CPUs.
    Raises `RequestError("unknown_precision")`.
    """
    if precision not in PRECISIONS:
        raise RequestError(
            "unknown_precision",
            f"Unknown precision {precision!r}; choose one of {', '.join(PRECISIONS)}.",
            precision=precision,
        )
    if device.type != "cuda":
        if precision in ("fp16", "bf16"):
            logger.warning("%s is for CUDA; running in fp32 on %s.", precision, device.type)
        return torch.float32
    return torch.float16 if precision == "auto" else _DTYPES[precision]


def choose_device(device: str) -> torch.device:
    """`auto` is CUDA when there is one. Raises `RequestError("unknown_device")` for what this machine lacks."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        if chosen.type not in _DEVICE_TYPES:
            raise RuntimeError(f"no support for {chosen.type}")
        torch.empty(1, device=chosen)
    except torch.OutOfMemoryError:  # there, but full
        raise
    except (RuntimeError, AssertionError) as error:
        raise RequestError(
            "unknown_device", f"The device {device!r} cannot be used here; try cpu or auto.", device=device
        ) from error
    return chosen


def with_precision(
    module: ModuleT, dtype: torch.dtype, probe: Callable[[ModuleT], Tensor], name: str
) -> ModuleT:
    """`module` in `dtype` if `probe` gives a finite result near the float32 one, else unchanged (with a warning)."""
    if dtype == torch.float32:
        return module
    half = in_precision(module, dtype)
    with torch.inference_mode():
        error = relative_error(probe(half).float(), probe(module).float())
    if not error <= SELF_TEST_BOUND:  # NaN counts as broken
        logger.warning(
            "The %s is unsound in %s on this device (error %.3g); it runs in float32.", name, dtype, error
        )
        return module
    return half


def in_precision(module: ModuleT, dtype: torch.dtype) -> ModuleT:
    """A copy whose floating-point tensors are of `dtype`; of no tensor is there ever a second one as it was."""
    copies: dict[int, Any] = {}
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.is_floating_point():
                other = tensor.detach().to(dtype, copy=True)
                wanted = isinstance(tensor, nn.Parameter)
                copies[id(tensor)] = nn.Parameter(other, tensor.requires_grad) if wanted else other
    return copy.deepcopy(module, copies)


def relative_error(found: Tensor, expected: Tensor) -> float:
    """‖found − expected‖ / ‖expected‖; NaN when `found` is not finite."""
    if not torch.isfinite(found).all():
        return float("nan")
    return float(
        torch.linalg.vector_norm(found - expected) / torch.linalg.vector_norm(expected).clamp_min(1e-12)
    )

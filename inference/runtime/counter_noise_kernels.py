"""`counter_noise`'s hash as Triton functions, for kernels that draw by it. Import this only where Triton is."""

from __future__ import annotations

import triton
import triton.language as tl

from inference.models import counter_noise

STEP = tl.constexpr(counter_noise.STEP)
_FIRST, _SECOND = tl.constexpr(counter_noise.FIRST), tl.constexpr(counter_noise.SECOND)


@triton.jit
def shifted(bits, places: tl.constexpr):  # type: ignore[no-untyped-def]
    """Logical shift to the right of int64."""
    return (bits >> places) & ((1 << (64 - places)) - 1)


@triton.jit
def mixed(bits):  # type: ignore[no-untyped-def]
    """`counter_noise.mix`."""
    bits = (bits ^ shifted(bits, 30)) * _FIRST
    bits = (bits ^ shifted(bits, 27)) * _SECOND
    return bits ^ shifted(bits, 31)

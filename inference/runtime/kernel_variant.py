"""Which Triton kernels a program needs: named, described and found without launching any (see `kernel_build`)."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

_ROOM = 64  # elements of a stand-in tensor
_RECORDING = threading.Lock()


@dataclass(frozen=True)
class Pointer:
    """A tensor of which only the element type matters, and whether its address is a multiple of 16."""

    dtype: torch.dtype
    aligned: bool = True


@dataclass(frozen=True)
class Blocks:
    """A tensor descriptor: element type and the shape of its blocks."""

    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Variant:
    """A kernel (by module and name), what it is launched with, and its constants and options by name."""

    module: str
    name: str
    arguments: tuple[object, ...]  # `Pointer`, `Blocks`, numbers or None
    constants: tuple[tuple[str, object], ...]

    @property
    def key(self) -> str:
        """Equal for variants that are compiled to the same thing."""
        return repr((self.module, self.name, self.arguments, self.constants))


def variant(kernel: Any, arguments: Sequence[object], constants: dict[str, object]) -> Variant:
    """Of a launch `kernel[grid](*arguments, **constants)`; a `torch.dtype` stands for a tensor too."""
    values = (_usual(parameter, value) for parameter, value in zip(kernel.params, arguments))
    plain = tuple(_described(value) for value in values)
    named = tuple(sorted((name, _described(value)) for name, value in constants.items()))
    return Variant(kernel.fn.__module__, kernel.fn.__name__, plain, named)


def recorded(work: Callable[[], None]) -> list[Variant]:
    """The variants that `work` would launch on this thread; none is, so what it computes is garbage.

    `work` must not depend on values (indices read from fresh tensors, say). Other threads launch as usual.
    """
    found: dict[str, Variant] = {}
    thread = threading.get_ident()
    with _RECORDING:
        jit = importlib.import_module("triton.runtime.jit").JITFunction
        launch = jit.run

        def run(self: Any, *arguments: Any, grid: Any, warmup: bool, **constants: Any) -> Any:
            if threading.get_ident() != thread:
                return launch(self, *arguments, grid=grid, warmup=warmup, **constants)
            one = variant(self, arguments, constants)
            found.setdefault(one.key, one)
            return None

        jit.run = run
        try:
            work()
        finally:
            jit.run = launch
    return list(found.values())


def stand_in(value: object) -> object:
    """What a kernel can be compiled with in the place of what it is launched with."""
    if isinstance(value, Pointer):
        whole = torch.empty(_ROOM, dtype=value.dtype)
        return whole if value.aligned else whole[1:]
    if isinstance(value, Blocks):
        from triton.tools.tensor_descriptor import TensorDescriptor

        shape = list(value.shape)
        strides = [1] * len(shape)
        for place in range(len(shape) - 2, -1, -1):
            strides[place] = strides[place + 1] * shape[place + 1]
        return TensorDescriptor(torch.empty(shape, dtype=value.dtype), shape, strides, shape)
    return value


def _described(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return Pointer(value.dtype, value.data_ptr() % 16 == 0)
    if isinstance(value, torch.dtype):
        return Pointer(value)
    if type(value).__name__ == "TensorDescriptor":
        base, shape = value.base, value.block_shape  # type: ignore[attr-defined]
        return Blocks(base.dtype, tuple(shape))
    return value


def _usual(parameter: Any, value: object) -> object:
    """A number that a kernel is specialised for like `value`: being 1 counts, and being a multiple of 16."""
    if parameter.is_constexpr or isinstance(value, bool):
        return value
    if isinstance(value, float):
        return 1.0
    if not isinstance(value, int):
        return value
    base = 0 if -(1 << 31) <= value < 1 << 31 else 1 << 40
    if value == 1 and not parameter.do_not_specialize:
        return 1
    return base + (16 if parameter.do_not_specialize or value % 16 == 0 else 17)

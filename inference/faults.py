"""Tells failures apart: one request's, the memory's, the device's."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from inference.types import EngineError, SynthesisError

_MEMORY_WORDS = ("out of memory", "can't allocate memory", "not enough memory", "alloc_failed")
_DEVICE_WORDS = (
    "cuda error", "cuda driver error", "triton error [cuda]", "cudnn_status", "cublas_status", "device-side assert",
    "illegal memory access", "unspecified launch failure", "misaligned address",
)  # fmt: skip


def is_out_of_memory(error: BaseException) -> bool:
    """Too little memory, on the device or the host. Smaller work may still succeed."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and _has(error, _MEMORY_WORDS)


def is_device_fault(error: BaseException) -> bool:
    """An error of the CUDA context itself, here or in what caused `error`: only a new process helps."""
    return any(
        isinstance(link, RuntimeError) and not is_out_of_memory(link) and _has(link, _DEVICE_WORDS)
        for link in _chain(error)
    )


def as_request_error(error: BaseException) -> SynthesisError:
    """What a request is told when `error` ended it: itself where it was raised on purpose."""
    if isinstance(error, SynthesisError):
        return error
    if is_out_of_memory(error):
        return out_of_memory()
    return EngineError("engine_failed", "Something unexpected went wrong with this request; see the log.")


def out_of_memory() -> EngineError:
    """What a request gets that does not fit."""
    return EngineError(
        "out_of_memory",
        "The device has too little free memory for this request; shorten it or try again later.",
    )


def _has(error: BaseException, words: tuple[str, ...]) -> bool:
    text = str(error).lower()
    return any(word in text for word in words)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__

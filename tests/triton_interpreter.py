"""Triton kernels without a GPU: its interpreter, where Triton is installed. Call before importing a kernel."""

from __future__ import annotations

import importlib
import os
from typing import Any

import pytest
import torch


def need_triton() -> torch.device:
    """The device to run kernels on: CUDA, or the CPU through the interpreter. Skips where Triton is missing."""
    if torch.cuda.is_available():
        pytest.importorskip("triton")
        return torch.device("cuda")
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined
    pytest.importorskip("triton", reason="Triton is not installed here")
    _mend_loops(importlib.import_module("triton.runtime.interpreter"))
    return torch.device("cpu")


def _mend_loops(interpreter: Any) -> None:
    """Loop bounds read from memory are arrays of one element, which newer NumPy does not take for integers."""
    patch = interpreter._patch_lang_tensor
    if getattr(patch, "mended", False):
        return

    def mended(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    mended.mended = True  # type: ignore[attr-defined]
    interpreter._patch_lang_tensor = mended

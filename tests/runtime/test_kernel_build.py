"""Kernels compiled ahead: variants found without a launch, compiled by child processes, found again in the cache."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from inference.runtime.kernel_build import Blocks, Pointer, Variant

pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed here"),
]

# In a process of its own, because tests of other modules may have set Triton to interpret. No GPU is needed.
_SCRIPT = """
import sys, torch
from inference.runtime import kernel_build, vocoder_source_kernels as kernels
from inference.runtime.kernel_build import build, recorded, variant

kernel_build._capability = lambda device: 90
hidden, flags = torch.zeros(64, 64).half(), torch.zeros(70, dtype=torch.int8)
weight, f0 = torch.zeros(32), torch.full((64,), 7.0)

def work():
    for rows in (64, 63):  # a number that kernels are not specialised for
        kernels.classify[(8,)](hidden, weight, weight, flags, f0, rows, width=32, block=8, lanes=32)

found = recorded(work)
assert len(found) == 1 and bool((f0 == 7.0).all()), found
told = []
assert build(found, progress=told.append) == 1 and len(told) == 2
assert build(found, progress=told.append) == 0 and len(told) == 2
by_hand = variant(
    kernels.classify,
    [torch.float16, torch.float32, torch.float32, torch.int8, torch.float32, 64],
    {"width": 32, "block": 8, "lanes": 32},
)
assert build([by_hand], progress=told.append) == 0, "not the same as the recorded one"
as_tuple = (kernels.classify, [torch.float16, torch.float32, torch.float32, torch.int8, torch.float32, 64])
wrong = (*as_tuple, {"width": 32, "block": 8, "lanes": 33})  # not a power of two
assert build([wrong], progress=told.append) == 1
assert build([wrong], progress=told.append) == 1, "what failed is tried again"
"""


def test_variants_are_compiled_once(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {
        "TRITON_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(part for part in sys.path if part),
    }
    folder = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.rglob("classify.cubin"))


def test_a_key_tells_types_constants_and_alignment_apart() -> None:
    def one(*arguments: object, **constants: object) -> str:
        return Variant("module", "kernel", arguments, tuple(constants.items())).key

    keys = {
        one(Pointer(torch.float16), block=32),
        one(Pointer(torch.float32), block=32),
        one(Pointer(torch.float16, aligned=False), block=32),
        one(Pointer(torch.float16), block=64),
        one(Blocks(torch.float16, (64, 32)), block=32),
    }
    assert len(keys) == 5

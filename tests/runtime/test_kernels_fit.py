"""The lanes' kernels at the public sizes, compiled by Triton for cards that are not there: each must fit its memory."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed here"),
]
# Compute capability → KiB of shared memory that a program may take.
CARDS = {"A100": (80, 163), "RTX 40, L4, L40S": (89, 99), "RTX 50": (120, 99)}


def _compiled(capability: int, shared: int, cache: Path) -> list[dict[str, Any]]:
    """In a process of its own: this one may interpret kernels."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(cache), "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    command = [sys.executable, "-m", "tests.runtime.compile_for", str(capability), str(shared * 1024)]
    found = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stderr[-2000:]
    kernels: list[dict[str, Any]] = json.loads(found.stdout.splitlines()[-1])
    return kernels


@pytest.mark.parametrize(("capability", "shared"), CARDS.values(), ids=CARDS)
def test_the_flow_s_kernels_fit_and_read_whole_words(capability: int, shared: int, tmp_path: Path) -> None:
    kernels = _compiled(capability, shared, tmp_path)
    assert len(kernels) > 20
    for kernel in kernels:
        assert not kernel["error"], kernel
        assert kernel["shared"] <= shared * 1024, kernel
        # Norms and biases take some; weights read so would take 64 and more.
        assert kernel["loads_of_two_bytes"] < 48, kernel

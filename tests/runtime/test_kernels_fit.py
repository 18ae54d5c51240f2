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
Card = tuple[int, int]  # compute capability, KiB of shared memory that a program may take
A100, AMPERE, BLACKWELL = (80, 163), (86, 99), (120, 99)  # the second: RTX 30, A10, A40; the third: RTX 50
LANES = {"language model", "flow", "streams", "vocoder"}
# Loads of two bytes seen at most: 36 of norms and biases in the flow's convolutions, 3 elsewhere. Weights that are
# read value by value (as they are if taken for unaligned) make them 65 and more there, and 16 and more elsewhere.
MOST_LOADS, CONVOLUTION_LOADS = 8, 48


def _compiled(card: Card, known: Card | None, cache: Path) -> list[dict[str, Any]]:
    """In a process of its own: this one may interpret kernels. Without what the `known` card launches alike."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(cache), "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    command = [sys.executable, "-m", "tests.runtime.compile_for"]
    for capability, shared in filter(None, (card, known)):
        command += [str(capability), str(shared * 1024)]
    found = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stderr[-2000:]
    kernels: list[dict[str, Any]] = json.loads(found.stdout.splitlines()[-1])
    return kernels


# Every lane's list for the earliest cards with the least memory. Of the other cards', which take half a minute each,
# what differs from it: larger tiles on the A100, and on the RTX 50 what moves blocks or starts before the one before.
@pytest.mark.parametrize(
    ("card", "known", "lanes"),
    [(AMPERE, None, LANES), (A100, AMPERE, {"flow"}), (BLACKWELL, AMPERE, {"flow", "streams"})],
    ids=["RTX 30", "A100", "RTX 50"],
)
def test_the_lanes_kernels_fit_and_read_whole_words(
    card: Card, known: Card | None, lanes: set[str], tmp_path: Path
) -> None:
    kernels = _compiled(card, known, tmp_path)
    assert lanes <= {kernel["lane"] for kernel in kernels}
    assert len(kernels) > (90 if known is None else 12)
    for kernel in kernels:
        assert not kernel["error"], kernel
        assert kernel["shared"] <= card[1] * 1024, kernel
        most = CONVOLUTION_LOADS if kernel["name"] == "causal_conv_kernel" else MOST_LOADS
        assert kernel["loads_of_two_bytes"] <= most, kernel

"""Kernels compiled ahead: variants found without a launch, compiled by child processes, found again in the cache."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from inference.runtime import kernel_build
from inference.runtime.kernel_build import Blocks, Outcome, Pointer, Variant

ROOT, GB = Path(__file__).parents[2], 10**9

pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed here"),
]

# In a process of its own, because tests of other modules may have set Triton to interpret. No GPU is needed.
_START = """
import sys, torch
from inference.runtime import kernel_build, vocoder_source_kernels as kernels
from inference.runtime.kernel_build import build, recorded, variant

kernel_build._capability = lambda device: 90
as_tuple = (kernels.classify, [torch.float16, torch.float32, torch.float32, torch.int8, torch.float32, 64])
constants = {"width": 32, "block": 8, "lanes": 32}
"""
_RECORDING = """
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
assert build([variant(*as_tuple, constants)], progress=told.append) == 0, "not the same as the recorded one"
wrong = (*as_tuple, {**constants, "lanes": 33})  # not a power of two
assert build([wrong], progress=told.append) == 1
assert build([wrong], progress=told.append) == 1, "what failed is tried again"
"""
_ONE = "assert build([(*as_tuple, constants)]) == 1"
_MOVED = """
import pathlib, triton
triton.knobs.cache.dir = pathlib.Path(sys.argv[1], "elsewhere")
"""


def _run(script: str, folder: Path, **settings: str) -> str:
    """What a script wrote to stderr: warnings, for one. `settings`: its environment, where no cache is named else."""
    others = ("TRITON_INTERPRET", "TRITON_CACHE_DIR", "TRITON_HOME")
    environment = {key: value for key, value in os.environ.items() if key not in others}
    environment |= {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]), **settings}
    done = subprocess.run(
        [sys.executable, "-c", _START + script, str(folder)],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_variants_are_compiled_once(tmp_path: Path) -> None:
    said = _run(_RECORDING, tmp_path, TRITON_CACHE_DIR=str(tmp_path))
    assert list(tmp_path.rglob("classify.cubin"))
    warnings = [line for line in said.splitlines() if "could not be compiled ahead" in line]
    assert len(warnings) == 2 and all(": classify: " in line and "power of 2" in line for line in warnings), (
        said
    )


@pytest.mark.parametrize(
    ("before", "settings", "expected"),
    [
        ("", {"TRITON_HOME": "home"}, "home/.triton/cache"),
        ("", {"TRITON_CACHE_DIR": "cache"}, "cache"),  # seen from here, not from where the children are
        (_MOVED, {"TRITON_CACHE_DIR": "cache"}, "elsewhere"),
    ],
    ids=["home", "folder", "knob"],
)
def test_marks_lie_beside_the_kernels(
    before: str, settings: dict[str, str], expected: str, tmp_path: Path
) -> None:
    if importlib.util.find_spec("triton.knobs") is None:
        pytest.skip("this Triton has other rules")
    _run(before + _ONE, tmp_path, **settings)
    folder = tmp_path / expected
    assert len(list(folder.rglob("classify.cubin"))) == len(list(tmp_path.rglob("classify.cubin"))) == 1
    assert {path.name for path in (folder / "cosyvoice-built").iterdir()} > {"lock"}


def test_what_children_say_and_how_they_die(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead child counts for its whole share, whatever its status; one that talks much holds nobody up."""
    modules = {
        "dies": "import os; os.kill(os.getpid(), 9)",
        "leaves": "import sys; sys.exit('tired')",
        "leaves_well": "import sys; sys.exit(0)",
        "talks": "import sys; print('kernel ' * 100_000); raise ValueError('enough\\nof it') from KeyError('that')",
    }
    for name, text in modules.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    shares = [[Variant(name, f"{name}_{number}", (), ()) for number in range(3)] for name in modules]
    dead, left, left_well, talked = kernel_build._compile(shares, 90, tmp_path)
    assert dead == Outcome(3, "a process ended with status -9: no word")
    assert left == Outcome(3, "a process ended with status 1: tired")
    assert left_well == Outcome(3, "a process ended with status 0: no word")
    assert talked == Outcome(3, "talks_0: KeyError: 'that'")


def test_a_child_that_hangs_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hangs.py").write_text("import time; time.sleep(300)")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(kernel_build, "_LIMIT", 0.5)
    started = time.monotonic()
    share = [Variant("hangs", "kernel", (), ())] * 2
    assert [outcome.failed for outcome in kernel_build._compile([share], 90, tmp_path)] == [2]
    assert time.monotonic() - started < 30


@pytest.mark.parametrize(
    ("cores", "free", "missing", "expected"),
    [
        (4, 64 * GB, 100, 4),
        (64, 64 * GB, 100, 12),
        (8, 2.5 * GB, 100, 3),
        (8, 0.1 * GB, 100, 1),
        (8, 64 * GB, 2, 2),
    ],
)
def test_as_many_processes_as_there_is_room_for(
    cores: int, free: float, missing: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_build, "cpu_count", lambda: cores)
    monkeypatch.setattr(kernel_build, "_available_memory", lambda: int(free))
    assert kernel_build._process_count(missing) == expected


def test_memory_that_may_be_taken() -> None:
    assert 2**26 < kernel_build._available_memory() < 2**46


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

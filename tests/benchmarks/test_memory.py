"""The account of a worker's memory: its own start and load, in this process, on the CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import memory
from benchmarks.forced_length import forced_length

pytestmark = pytest.mark.unit


def test_a_site_is_our_innermost_lines() -> None:
    frames = [
        {"filename": "/lib/torch/functional.py", "name": "empty", "line": 3},
        {"filename": "/work/inference/runtime/kv_cache.py", "name": "__init__", "line": 26},
        {"filename": "/work/inference/worker.py", "name": "_load", "line": 160},
    ]
    assert memory._site(frames) == "kv_cache.__init__:26 < worker._load:160"
    assert memory._site(frames[:1]) == memory._site([]) == "elsewhere"


def test_every_phase_of_a_worker_is_counted(
    random_model_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(memory, "_IDLE", 0.0)
    out = tmp_path / "memory.json"
    words = (
        f"--device cpu --model-dir {random_model_dir} --users 2 --turns 1 --speech-tokens 30 --long-tokens 0"
    )
    with forced_length(0):  # so that the length is this test's only
        assert memory.main([*words.split(), "--out", str(out)]) == 0
    phases = {phase["phase"]: phase for phase in json.loads(out.read_text())["phases"]}
    for name in (
        "process",
        "loaded the model",
        "ready",
        "2 whole files of 1 s",
        "2 streams of 1 s",
        "idle again",
    ):
        assert phases[name]["held"] > 0
    assert phases["2 streams of 1 s"]["load"]["complete"] == 2
    assert "audio s/s" in capsys.readouterr().out

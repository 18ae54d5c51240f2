"""The comparison and the soak, run as people run them, on tiny random weights."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.pool import ROWS, SETUPS
from benchmarks.random_folder import write_random_folder
from tests.model_folder import TINY_CONFIG
from tests.model_folder import write_random_folder as write_complete_folder

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).resolve().parents[2]


def run(module: str, out: Path, *flags: str) -> tuple[dict[str, Any], str]:
    """The JSON and the printed words of a benchmark."""
    command = [sys.executable, "-m", f"benchmarks.{module}", "--device", "cpu", "--out", str(out), *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return json.loads(out.read_text()), done.stdout


def test_every_row_has_a_setup() -> None:
    assert {row.setup for row in ROWS.values()} == set(SETUPS)


def test_the_pool_beside_the_naive_path(tmp_path: Path) -> None:
    language_model = replace(TINY_CONFIG.language_model, vocab_size=4400)
    folder = write_random_folder(tmp_path / "model", replace(TINY_CONFIG, language_model=language_model))
    rows = ("naive", "pool", "pool_stream")
    report, printed = run(
        "pool", tmp_path / "pool.json", "--model-dir", str(folder), "--rows", ",".join(rows), "--users", "1,3",
        "--serial-users", "1,3", "--requests", "3", "--speech-tokens", "75", "--limit", "60",
    )  # fmt: skip
    for name in rows:
        assert [cell["users"] for cell in report["rows"][name]] == [1, 3]
        for cell in report["rows"][name]:
            assert (cell["complete"], cell["errors"], cell["wrong_length"]) == (cell["requests"], {}, 0)
            assert cell["users_served"] == cell["users"] and cell["requests"] >= 3
            assert cell["audio"] == pytest.approx(3.0 * cell["requests"])  # forced in the workers as well
            assert 0 < cell["first"]["p50"] <= cell["total"]["p50"] <= cell["total"]["p99"]
            assert cell["throughput"] > 0 and 0 < cell["busy"] <= 1 and cell["resident_peak_mb"] > 50
        assert name in printed
    assert [setup["processes_left"] for setup in report["setups"].values()] == [0, 0]


def test_the_soak_finds_nothing_wrong(tmp_path: Path) -> None:
    folder = write_complete_folder(tmp_path / "model")
    flags = ("--minutes", "0.15", "--users", "4", "--cases", "10", "--settle", "0.5", "--plain")
    report, _ = run("soak", tmp_path / "soak.json", "--model-dir", str(folder), *flags)
    assert report["problems"] == []
    assert report["actions"]["speak"] > 0 and report["solo_different_from_plain"] == 0
    assert report["status"]["live"] == report["status"]["waiting"] == report["processes_left"] == 0

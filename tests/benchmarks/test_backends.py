"""The benchmark of the backends runs on the CPU with the bundled model, and says what it cannot run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import backends

pytestmark = pytest.mark.unit


def test_a_short_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.json"
    flags = ["--device", "cpu", "--model", "nano", "--batch", "1", "--seconds", "0.1", "--repeat", "1"]
    names = ["torch-fp32", "channels_last", "tensorrt"]
    backends.main([*flags, "--parts", "vocoder", "--backends", *names, "--json", str(report)])
    rows = json.loads(report.read_text())["rows"]
    assert [row["backend"] for row in rows] == names[:2]
    assert rows[0]["error"] == 0.0 and 0.0 < rows[1]["error"] < 1e-5
    assert "vocoder tensorrt: " in capsys.readouterr().out


def test_flow(tmp_path: Path) -> None:
    flags = ["--device", "cpu", "--model", "nano", "--batch", "1", "--seconds", "0.1", "--repeat", "1"]
    rows = backends.main([*flags, "--parts", "flow", "--backends", "torch-fp32", "packed"])
    assert [row.part for row in rows] == ["flow", "flow"]
    assert rows[1].error < 1e-5

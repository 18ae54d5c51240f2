"""The benchmark of the flow's chunks runs and reports every call."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import flow_chunks


@pytest.mark.unit
def test_a_short_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.json"
    flow_chunks.main(["--tokens", "30", "--prompt", "0", "--budget", "0.1", "--json", str(report)])
    found = json.loads(report.read_text())["milliseconds"]["1"]
    assert {name: len(times) for name, times in found.items()} == {
        "new voice": 2, "known voice": 2, "from frame 0": 2,
    }  # fmt: skip
    assert "audio-s/s" in capsys.readouterr().out

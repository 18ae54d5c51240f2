"""The benchmark of the backends runs on the CPU with the bundled model, and says what it cannot run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import backends

pytestmark = pytest.mark.unit


FLAGS = ["--device", "cpu", "--model", "nano", "--batch", "1", "--repeat", "1", "--no-choose"]


def test_a_short_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.json"
    names = ["torch-fp32", "tensorrt", "channels_last"]  # what cannot be had does not end the run
    flags = ["--seconds", "0.1", "--parts", "vocoder", "--backends", *names, "--json", str(report)]
    backends.main([*FLAGS, *flags])
    found = json.loads(report.read_text())
    rows = found["rows"]
    assert [row["backend"] for row in rows] == ["torch-fp32", "channels_last"]
    assert rows[0]["error"] == 0.0 and 0.0 < rows[1]["error"] < 1e-5
    assert [failure["backend"] for failure in found["failures"]] == ["tensorrt"]
    assert "vocoder tensorrt 1 0.1: " in capsys.readouterr().out


def test_flow() -> None:
    flags = ["--seconds", "0.1", "--parts", "flow", "--backends", "torch-fp32", "packed"]
    rows = backends.main([*FLAGS, *flags])
    assert [row.part for row in rows] == ["flow", "flow"]
    assert rows[1].error < 1e-5


def test_rows_of_a_run_that_is_cut_off_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = tmp_path / "report.json"
    real = backends.spectrum_backend

    def killed(name: str, *given: object) -> object:
        if name == "channels_last":
            raise KeyboardInterrupt
        return real(name, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(backends, "spectrum_backend", killed)
    flags = ["--seconds", "0.1", "--parts", "vocoder", "--backends", "torch-fp32", "channels_last"]
    with pytest.raises(KeyboardInterrupt):
        backends.main([*FLAGS, *flags, "--json", str(report)])
    assert [row["backend"] for row in json.loads(report.read_text())["rows"]] == ["torch-fp32"]


def test_no_longer_sizes_when_the_time_is_up(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    flags = ["--seconds", "0.1", "7200", "--parts", "vocoder", "--backends", "torch-fp32", "--budget", "40"]
    rows = backends.main([*FLAGS, *flags, "--json", str(report)])
    assert [row.seconds for row in rows] == [0.1]
    (failure,) = json.loads(report.read_text())["failures"]
    assert failure["size"] == [1, 7200.0] and "no time" in failure["error"]


def test_what_auto_takes_is_marked(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    flags = ["--seconds", "0.1", "--backends", "torch-fp32", "--cache", str(tmp_path), "--json", str(report)]
    backends.main([*FLAGS[:-1], *flags])
    found = json.loads(report.read_text())
    assert found["chosen"]["flow"] in ("torch-fp32", "fused")
    assert found["chosen"]["vocoder"] in ("torch-fp32", "channels_last", "onnxruntime")
    assert [row["chosen"] for row in found["rows"]] == [
        found["chosen"][part] == "torch-fp32" for part in ("vocoder", "flow")
    ]

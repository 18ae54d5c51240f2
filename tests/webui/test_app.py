"""app.py: its flags, its refusals, and that importing it does nothing."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

import app
from tests.browser.conftest import free_port

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]


def test_defaults() -> None:
    args = app.build_parser().parse_args([])
    assert (args.server_name, args.server_port, args.model_dir) == ("127.0.0.1", 7860, None)
    assert (args.device, args.share, args.output_dir) == ("auto", False, Path("outputs"))
    assert (args.precision, args.max_workers, args.concurrency_count, args.queue_size) == ("auto", 0, 0, 32)
    assert args.low_memory is False


def test_flags() -> None:
    line = "--server-name 0.0.0.0 --server-port 8000 --model-dir m --device cpu --output-dir o --lexicon l --share"
    args = app.build_parser().parse_args(line.split())
    assert (args.server_name, args.server_port, args.model_dir) == ("0.0.0.0", 8000, Path("m"))
    assert (args.device, args.share, args.output_dir) == ("cpu", True, Path("o"))
    assert args.lexicon == Path("l")
    line = "--precision bf16 --max-workers 2 --concurrency-count 16 --queue-size 0 --low-memory"
    args = app.build_parser().parse_args(line.split())
    assert (args.precision, args.max_workers, args.concurrency_count, args.queue_size) == ("bf16", 2, 16, 0)
    assert args.low_memory is True


@pytest.mark.parametrize(
    "line", ["--precision=fp8", "--max-workers=-1", "--queue-size=many", "--concurrency-count=1.5"]
)
def test_impossible_values_are_refused_and_named(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        app.main([line])
    assert raised.value.code == 2
    message = capsys.readouterr().err
    assert all(word in message for word in line.split("="))


@pytest.mark.parametrize(
    "flag", ["--sever-port=1", "--server=x", "--model=m", "--shar", "--max-worker=2", "stray"]
)
def test_a_misspelt_flag_is_refused_and_named(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        app.main([flag])
    assert raised.value.code == 2
    assert f"unrecognized arguments: {flag}" in capsys.readouterr().err


@pytest.mark.parametrize("port", ["http", "70000", "0", "-1", "7860.5", ""])
def test_an_impossible_port_is_refused(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        app.main([f"--server-port={port}"])
    assert raised.value.code == 2
    assert f"--server-port: {port!r} is not a port" in capsys.readouterr().err


def test_a_busy_port_is_told_before_the_model_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert app.main(["--server-port", str(port), "--model-dir", "/nowhere"]) == 2
    message = capsys.readouterr().err.strip().splitlines()[-1]
    assert str(port) in message and "--server-port" in message


def test_a_missing_model_folder_is_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "no-model"
    assert app.main(["--server-port", str(free_port()), "--model-dir", str(missing), "--device", "cpu"]) == 2
    captured = capsys.readouterr()
    assert str(missing) in captured.err and "Traceback" not in captured.err


def test_importing_app_loads_and_prints_nothing() -> None:
    code = (
        "import sys, app;"
        "print([name for name in ('torch', 'numpy', 'gradio', 'inference', 'webui') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]" and done.stderr == ""

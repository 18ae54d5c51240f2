"""app.py: its flags and variables, its refusals, its help in the README, and that importing it does nothing."""

from __future__ import annotations

import dataclasses
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import app
from tests.browser.conftest import free_port
from webui.flags import README, build_parser, given_name, help_block, read_options, with_help
from webui.options import OTHER_VARIABLES, PREFIX, Options, flags, variable_name

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]


def options(line: str = "", **variables: str) -> Options:
    return read_options(line.split(), {PREFIX + name: value for name, value in variables.items()})


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str, **variables: str) -> str:
    with pytest.raises(SystemExit) as raised:
        read_options(arguments, {PREFIX + name: value for name, value in variables.items()})
    assert raised.value.code == 2
    return capsys.readouterr().err


def test_defaults() -> None:
    found = options()
    assert found == Options()
    assert (found.server_name, found.server_port, found.model_dir) == ("127.0.0.1", 7860, None)
    assert (found.device, found.share, found.output_dir) == ("auto", False, Path("outputs"))
    assert (found.precision, found.max_workers, found.concurrency_count, found.queue_size) == (
        "auto",
        0,
        0,
        32,
    )
    assert not found.low_memory and not found.open_browser and found.auth == ()
    assert found.visitor_characters == 5000 and found.visitor_requests is None and found.visitor_rate is None


def test_flags() -> None:
    line = "--server-name 0.0.0.0 --server-port 8000 --model-dir m --device cpu --output-dir o --lexicon l --share"
    found = options(line)
    assert (found.server_name, found.server_port, found.model_dir) == ("0.0.0.0", 8000, Path("m"))
    assert (found.device, found.share, found.output_dir) == ("cpu", True, Path("o"))
    assert found.lexicon == Path("l")
    found = options("--precision bf16 --max-workers 2 --concurrency-count 16 --queue-size 0 --low-memory")
    assert (found.precision, found.max_workers, found.concurrency_count, found.queue_size) == (
        "bf16",
        2,
        16,
        0,
    )
    assert found.low_memory is True
    found = options(
        "--auth a:b --auth c:d users.txt --enable-cors https://a.org http://b:80/ --root-path /tts/"
    )
    assert found.auth == ("a:b", "c:d", "users.txt")
    assert found.enable_cors == ("https://a.org", "http://b:80") and found.root_path == "/tts"
    assert options("--language zh --open-browser") == dataclasses.replace(
        Options(), language="zh", open_browser=True
    )


def test_every_flag_is_a_variable_and_the_flag_goes_before(capsys: pytest.CaptureFixture[str]) -> None:
    found = options(
        "--server-port 9001", SERVER_PORT="9000", SHARE="1", AUTH="a:b c:d", MODEL_DIR="m", LANGUAGE="en"
    )
    assert (found.server_port, found.share, found.auth) == (9001, True, ("a:b", "c:d"))
    assert (found.model_dir, found.language) == (Path("m"), "en")
    assert options(SHARE="no", MODEL_DIR="", AUTH="") == Options()
    values = {"choice": lambda flag: flag.choices[-1], "switch": lambda flag: "1"}
    for field, flag in flags().items():
        kind = "switch" if flag.switch else "choice" if flag.choices else ""
        text = values[kind](flag) if kind else {"enable_cors": "*", "root_path": "/x"}.get(field, "7")
        changed = options(**{field.upper(): text})
        assert flag.switch or getattr(changed, field) != getattr(Options(), field), field


@pytest.mark.parametrize(
    "line",
    [
        "--precision=fp8",
        "--max-workers=-1",
        "--queue-size=many",
        "--concurrency-count=1.5",
        "--language=fr",
        "--enable-cors=example.org",
        "--root-path=studio",
    ],
)
def test_impossible_values_are_refused_and_named(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert all(word in refusal(capsys, line) for word in line.split("="))
    name, value = line.lstrip("-").replace("-", "_", 1).split("=")
    name = line.split("=")[0][2:].replace("-", "_").upper()
    message = refusal(capsys, **{name: value})
    assert PREFIX + name in message and value in message


@pytest.mark.parametrize(
    ("flag", "meant"),
    [
        ("--sever-port=1", "--server-port"),
        ("--model=m", "--model-dir"),
        ("--shar", "--share"),
        ("--max-worker=2", "--max-workers"),
        ("--max_workers=2", "--max-workers"),
        ("-share", "--share"),
        ("--language-switch", "--language"),
        ("--zzzz", ""),
        ("stray", ""),
    ],
)
def test_a_misspelt_flag_is_refused_and_the_nearest_named(
    flag: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    message = refusal(capsys, flag)
    assert f"unrecognized arguments: {flag}" in message
    assert (f"did you mean {meant}?" in message) == bool(meant)


def test_a_misspelt_variable_is_refused_and_a_strange_one_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert f"did you mean {PREFIX}AUTH?" in refusal(capsys, AUHT="a:b")
    assert options(SOMETHING_ELSE_AT_ALL="1", VENV=".v", TEST_MODEL_DIR="m") == Options()
    told = capsys.readouterr().err
    assert "SOMETHING_ELSE_AT_ALL" in told and "VENV" not in told and "TEST_MODEL_DIR" not in told


@pytest.mark.parametrize("port", ["http", "70000", "0", "-1", "7860.5", ""])
def test_an_impossible_port_is_refused(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"--server-port: {port!r} is not a port" in refusal(capsys, f"--server-port={port}")


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


def test_an_unusable_password_is_told_and_nothing_is_opened(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["--server-port", str(free_port()), "--auth", "secret-without-a-user"]) == 2
    message = capsys.readouterr().err
    assert "--auth" in message and "secret" not in message


def test_the_readme_s_help_is_today_s() -> None:
    text = README.read_text(encoding="utf-8")
    assert help_block() in text, "run: python -m webui.flags"
    assert with_help(text) == text


def test_the_help_tells_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    text = build_parser().format_help()
    for field in dataclasses.fields(Options):
        assert given_name(field.name) in text
    assert variable_name("server_port") in text
    with pytest.raises(SystemExit) as raised:
        app.main(["--help"])
    assert raised.value.code == 0 and capsys.readouterr().out == text


def test_importing_app_loads_and_prints_nothing() -> None:
    code = (
        "import sys, app;"
        "print([name for name in ('torch', 'numpy', 'gradio', 'inference', 'webui') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]" and done.stderr == ""


def test_every_variable_that_the_program_reads_is_known() -> None:
    known = {variable_name(field) for field in flags()} | {PREFIX + name for name in OTHER_VARIABLES}
    used = set()
    for folder in ("inference", "webui", "benchmarks", "tests/browser"):
        for path in (ROOT / folder).rglob("*.py"):
            used |= set(re.findall(rf'"({PREFIX}[A-Z_]+)"', path.read_text(encoding="utf-8")))
    assert {f"{PREFIX}MODEL_DIR", f"{PREFIX}TEST_MODEL_DIR"} <= used <= known

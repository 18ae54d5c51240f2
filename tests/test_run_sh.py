"""`run.sh` on machines that lack something, and its instant second start; stand-ins take the place of programs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.golden_data import ROOT

pytestmark = pytest.mark.unit
PYTHON = """#!/bin/sh
case "$*" in
    --version) echo "Python VERSION" ;;
    *version_info*) exit VERSION_STATUS ;;
    *"import venv"*) exit VENV_STATUS ;;
    *"-m venv"*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    *'version("torch")'*) exit 1 ;;
    *"-m webui.flags"*) exec REAL "$@" ;;
    *"-m pip"*) echo "pip $*" >> "$PIP_LOG"; exit PIP_STATUS ;;
    *app.py* | *"-m pytest"* | *"-m inference"*) echo "started: $*" ;;
esac
"""


class Machine:
    """A folder with run.sh and a PATH of stand-ins before the real programs."""

    def __init__(self, folder: Path) -> None:
        self.root, self.bin, self.pip_log = folder / "repo", folder / "bin", folder / "pip.log"
        self.root.mkdir()
        self.bin.mkdir()
        for name in ("run.sh", "requirements.txt", "requirements-dev.txt"):
            shutil.copy(ROOT / name, self.root / name)
        (self.root / "webui").mkdir()
        for name in ("__init__.py", "flags.py", "options.py"):
            shutil.copy(ROOT / "webui" / name, self.root / "webui" / name)

    def program(self, name: str, text: str) -> None:
        path = self.bin / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)

    def python(self, version: str = "3.11.7", version_status: int = 0, venv: int = 0, pip: int = 0) -> None:
        text = (
            PYTHON.replace("REAL", sys.executable)
            .replace("VERSION_STATUS", str(version_status))
            .replace("VERSION", version)
        )
        self.program("python", text.replace("VENV_STATUS", str(venv)).replace("PIP_STATUS", str(pip)))

    def free_kilobytes(self, count: int) -> None:
        self.program("df", f"#!/bin/sh\necho header\necho '/dev/x 1 1 {count} 1% /'\n")

    def run(self, *flags: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if name != "COSYVOICE_VENV"}
        environment |= {"PATH": f"{self.bin}:{os.environ['PATH']}", "PYTHON": str(self.bin / "python")}
        environment["PIP_LOG"] = str(self.pip_log)
        return subprocess.run(
            ["bash", "run.sh", *flags],
            cwd=self.root,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path)
    made.python()
    made.free_kilobytes(50_000_000)
    return made


def test_the_second_start_installs_nothing(machine: Machine) -> None:
    first = machine.run("--server-port", "9000")
    assert first.returncode == 0, first.stderr
    assert first.stdout == "started: app.py --server-port 9000\n"
    installed = machine.pip_log.read_text(encoding="utf-8")
    assert "-r requirements.txt" in installed and "requirements-dev" not in installed
    assert "Installing what requirements.txt names …" in first.stderr
    second = machine.run("--server-port", "9000")
    assert second.stdout == first.stdout and second.stderr == ""
    assert machine.pip_log.read_text(encoding="utf-8") == installed


def test_changed_requirements_are_installed(machine: Machine) -> None:
    machine.run()
    machine.pip_log.unlink()
    with (machine.root / "requirements.txt").open("a", encoding="utf-8") as file:
        file.write("six\n")
    assert machine.run().returncode == 0
    assert "-r requirements.txt" in machine.pip_log.read_text(encoding="utf-8")


def test_tests_and_commands_are_passed_on(machine: Machine) -> None:
    done = machine.run("test", "-k", "two words")
    started = done.stdout
    assert "Installing what requirements.txt requirements-dev.txt name …" in done.stderr
    assert started.startswith("started: -m pytest -n ") and started.endswith(" -k two words\n")
    assert "requirements-dev.txt" in machine.pip_log.read_text(encoding="utf-8")
    assert machine.run("check", "some folder").stdout == "started: -m inference check some folder\n"


def test_an_interrupted_installation_is_not_taken_for_a_whole_one(machine: Machine) -> None:
    machine.python(pip=1)
    broken = machine.run()
    assert broken.returncode == 1 and "could not be installed" in broken.stderr
    machine.python()
    shutil.copy(machine.bin / "python", machine.root / ".venv/bin/python")
    assert machine.run().stdout == "started: app.py\n"


def test_failures_are_one_clear_line(machine: Machine) -> None:
    machine.free_kilobytes(1_000_000)
    assert last_line(machine.run()).startswith("run.sh: only 0 GB are free here and 4 GB are needed")
    machine.free_kilobytes(50_000_000)
    machine.python(venv=1)
    assert "has no venv module" in last_line(machine.run())
    machine.python(version="3.8.1", version_status=1)
    assert "Python 3.10 to 3.13 is needed (found: Python 3.8.1)" in last_line(machine.run())
    assert "unknown command: sing" in last_line(machine.run("sing"))


def test_a_misspelt_flag_is_told_before_anything_is_installed(machine: Machine) -> None:
    done = machine.run("--sever-port", "9000")
    assert done.returncode == 2 and "did you mean --server-port?" in done.stderr
    assert not machine.pip_log.exists() and not (machine.root / ".venv").exists()


def test_the_help_is_the_program_s_own(machine: Machine) -> None:
    done = machine.run("--help")
    assert done.returncode == 0 and done.stdout.startswith("./run.sh [flags]")
    assert done.stdout.endswith("started: app.py --help\n")
    machine.python(version_status=1)
    assert machine.run("--help").returncode == 0
    assert not (machine.root / ".venv").exists()


@pytest.mark.parametrize(
    ("driver", "index"), [("535.183.01", "whl/cu126"), ("580.65.06", ""), ("[Unknown]", "")]
)
def test_the_build_of_torch_fits_the_driver(machine: Machine, driver: str, index: str) -> None:
    query = f"case \"$*\" in *driver_version*) echo '{driver}' ;; esac"
    machine.program("nvidia-smi", f"#!/bin/sh\n{query}\n")
    assert machine.run().returncode == 0
    (line,) = (line for line in machine.pip_log.read_text(encoding="utf-8").splitlines() if "torch==" in line)
    assert ("--index-url" in line) == bool(index) and index in line
    machine.free_kilobytes(8_000_000)
    shutil.rmtree(machine.root / ".venv")
    assert "10 GB are needed" in last_line(machine.run())


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 1 and done.stdout == ""
    return done.stderr.strip().splitlines()[-1]

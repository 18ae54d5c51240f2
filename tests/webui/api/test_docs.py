"""What docs/api.md shows is run, in the order in which it stands."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from tests.webui.api.support import CLIP, Server, TonePool, serving
from tests.webui.api.test_speech import decoded
from webui.api.app import create_api
from webui.batch.jobs import BatchJobs

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8").split("\n## API\n")[1].split("\n## ")[0]
BLOCK = re.compile(r"^```(bash|python|javascript)\n(.*?)^```", re.DOTALL | re.MULTILINE)
PROGRAMS = ("bash", "curl", "node")
ADDRESS = "127.0.0.1:7860"


@pytest.fixture
def server(pool: TonePool, tmp_path: Path) -> Iterator[Server]:
    jobs = BatchJobs(pool, tmp_path / "jobs")
    with serving(pool, tmp_path, {"jobs": jobs}) as server:
        yield server
    jobs.close()


def command(kind: str, code: str) -> list[str]:
    programs = {
        "bash": ["bash", "-euc", code.replace("python -m", f"{sys.executable} -m")],
        "python": [sys.executable, "-c", code],
        "javascript": ["node", "--input-type=module", "-e", code],
    }
    return programs[kind]


def run_examples(text: str, server: Server, folder: Path) -> int:
    """Run what `text` shows, where it can be; how many that were."""
    (folder / "me.wav").write_bytes(CLIP)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_PROXY": "127.0.0.1"}
    ran = 0
    for kind, code in BLOCK.findall(text):
        needed = {kind.replace("javascript", "node"), code.split()[0]} & set(PROGRAMS)
        if not all(map(shutil.which, needed)):
            continue
        code = code.replace(ADDRESS, f"127.0.0.1:{server.port}")
        done = subprocess.run(
            command(kind, code), cwd=folder, env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, f"{code}\n{done.stdout}{done.stderr}"
        ran += 1
    return ran


def test_the_examples_work(server: Server, tmp_path: Path) -> None:
    ran = run_examples(TEXT, server, tmp_path)
    if not all(map(shutil.which, PROGRAMS)):
        pytest.skip(f"{ran} examples work; not all programs are here")
    assert ran >= 9
    for name in ("hello.mp3", "hello.wav", "openai.wav", "converted.flac"):
        assert len(decoded((tmp_path / name).read_bytes())) > 10_000
    assert (tmp_path / "hello.srt").read_text() and (tmp_path / "all.zip").stat().st_size > 1000


def test_the_readmes_examples_work(server: Server, tmp_path: Path) -> None:
    voice = {"name": "Anna", "transcript": "What Anna says."}
    httpx.post(f"{server.url}/v1/voices", data=voice, files={"reference": CLIP}).raise_for_status()
    ran = run_examples(README, server, tmp_path)
    if not all(map(shutil.which, PROGRAMS)):
        pytest.skip(f"{ran} examples work; not all programs are here")
    assert ran == 3
    for name in ("hello.mp3", "hello.wav"):
        assert len(decoded((tmp_path / name).read_bytes())) > 10_000


def test_every_path_is_told() -> None:
    paths: dict[str, Any] = create_api(cast(Any, None)).openapi()["paths"]
    for path in paths:
        ending = "/" + path.split("}/", 1)[1] if "}/" in path else path
        assert path.startswith("/v1/models/") or f"{ending}`" in TEXT, path

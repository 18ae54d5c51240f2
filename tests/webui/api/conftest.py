"""The API over a pool of tones, for all tests of this folder."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from inference.types import Reference
from inference.voices import VoiceLibrary, save_clip
from tests.webui.api.support import CLIP, Server, TonePool, serving


@pytest.fixture
def pool() -> TonePool:
    return TonePool()


@pytest.fixture(scope="session")
def saved_voices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library with Anna, who has a transcript, and Bert, who has none."""
    folder = tmp_path_factory.mktemp("library")
    library = VoiceLibrary(folder)
    for name, transcript in (("Anna", "What Anna says in her clip."), ("Bert", "")):
        asyncio.run(save_clip(TonePool(), library, name, Reference(CLIP, transcript)))
    return folder


@pytest.fixture
def server(pool: TonePool, tmp_path: Path, saved_voices: Path) -> Iterator[Server]:
    """A server with that library."""
    shutil.copytree(saved_voices, tmp_path / "voices")
    with serving(pool, tmp_path) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client

"""Transcription is there with its package only, and what goes wrong in it is one sentence."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from inference.types import EngineError
from webui.transcribe import WhisperTranscriber, find_transcriber

pytestmark = pytest.mark.unit


class FakeWhisper:
    """faster-whisper's model: two segments, or a failure."""

    loaded: list[str] = []

    def __init__(self, name: str, **settings: Any) -> None:
        self.loaded.append(name)

    def transcribe(self, clip: str, **settings: Any) -> tuple[list[Any], None]:
        if clip.endswith("bad.wav"):
            raise RuntimeError("no such codec")
        return [SimpleNamespace(text=" Good"), SimpleNamespace(text=" morning. ")], None


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> type[FakeWhisper]:
    module = ModuleType("faster_whisper")
    module.WhisperModel = FakeWhisper  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "faster_whisper", module)
    monkeypatch.setattr(FakeWhisper, "loaded", [])
    return FakeWhisper


def test_nothing_is_offered_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert find_transcriber("small") is None


def test_the_model_is_loaded_once_and_late(package: type[FakeWhisper]) -> None:
    transcriber = WhisperTranscriber("tiny")
    assert package.loaded == []
    assert [transcriber(Path("good.wav")) for _ in range(2)] == ["Good morning."] * 2
    assert package.loaded == ["tiny"]


def test_a_failure_is_told_as_one(package: type[FakeWhisper]) -> None:
    with pytest.raises(EngineError) as caught:
        WhisperTranscriber("tiny")(Path("bad.wav"))
    assert caught.value.code == "transcription_failed"

"""Optional: writes down what is said in a clip, when the package faster-whisper is installed."""

from __future__ import annotations

import importlib.util
import threading
from pathlib import Path
from typing import Any, Protocol

from inference.types import EngineError


class Transcriber(Protocol):
    """Turns a clip into its words. Raises EngineError("transcription_failed")."""

    def __call__(self, clip: Path) -> str: ...


def find_transcriber(model: str) -> Transcriber | None:
    """Something that transcribes, or None when nothing for it is installed. Nothing is loaded yet.

    `model`: a name that faster-whisper knows, or a folder.
    """
    return WhisperTranscriber(model) if importlib.util.find_spec("faster_whisper") else None


class WhisperTranscriber:
    """faster-whisper; its model is loaded (and, the first time, fetched) for the first clip."""

    def __init__(self, model: str) -> None:
        self._name = model
        self._model: Any = None
        self._loading = threading.Lock()

    def __call__(self, clip: Path) -> str:
        try:
            with self._loading:  # one visitor loads it, the others wait
                if self._model is None:
                    from faster_whisper import WhisperModel

                    self._model = WhisperModel(self._name, device="auto", compute_type="auto")
            segments, _ = self._model.transcribe(str(clip), beam_size=5, vad_filter=True)
            return "".join(segment.text for segment in segments).strip()
        except Exception as error:  # another project's library: network, files, memory
            raise EngineError(
                "transcription_failed",
                "The clip could not be transcribed; type what it says, or leave it empty.",
            ) from error

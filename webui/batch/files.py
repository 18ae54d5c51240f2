"""What a batch is made of, and how that is written down."""

from __future__ import annotations

import json
import shutil
import threading
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from inference.types import EngineError, Mode, Reference, SynthesisError
from webui.batch.rows import Row


@dataclass(frozen=True)
class BatchSettings:
    """What holds for all rows that say nothing else. `voice`: a clip, or the name or id of a saved voice."""

    mode: Mode = Mode.CROSS_LINGUAL
    voice: Reference | str | None = None
    instruction: str = ""
    speed: float = 1.0
    seed: int = 0
    language: str = "auto"
    audio_format: str = "wav"


@dataclass(frozen=True)
class RowResult:
    """How a row ended: a file of `sound/`, or an error."""

    row: int  # from 0
    file: str = ""
    seconds: float = 0.0
    code: str = ""
    message: str = ""
    details: dict[str, Any] | None = None

    @property
    def error(self) -> SynthesisError:
        """What the row failed with."""
        return SynthesisError(self.code, self.message, **(self.details or {}))


def write_whole(path: Path, data: bytes) -> None:
    """Write a file, whole or not at all."""
    partial = path.with_name(f".{path.name[:80]}.{threading.get_ident()}.part")
    try:
        partial.write_bytes(data)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def with_own_clip(settings: BatchSettings, folder: Path) -> BatchSettings:
    """A visitor's upload is soon removed; the batch may take hours."""
    if not isinstance(settings.voice, Reference):
        return settings
    clip = folder / "reference"
    audio = settings.voice.audio
    if isinstance(audio, bytes):
        clip.write_bytes(audio)
    else:
        shutil.copyfile(audio, clip)
    return replace(settings, voice=Reference(clip, settings.voice.transcript))


def row_to(row: Row) -> dict[str, Any]:
    """For `job.json`: what is not empty."""
    return {key: value for key, value in asdict(row).items() if value not in ("", None)}


def settings_to(settings: BatchSettings) -> dict[str, Any]:
    """For `job.json`; a clip lies beside it."""
    known = {key: value for key, value in vars(settings).items() if key != "voice"} | {
        "mode": settings.mode.value
    }
    if isinstance(settings.voice, Reference):
        return known | {"transcript": settings.voice.transcript}
    return known | {"voice": settings.voice}


def settings_from(known: dict[str, Any], folder: Path) -> BatchSettings:
    """What `settings_to` gave."""
    voice = known.pop("voice", None)
    if "transcript" in known:
        voice = Reference(folder / "reference", known.pop("transcript"))
    return BatchSettings(**{**known, "mode": Mode(known["mode"]), "voice": voice})


def result_line(result: RowResult) -> str:
    """For `results.jsonl`."""
    return json.dumps(asdict(result), ensure_ascii=False, default=str) + "\n"


def result_lines(path: Path) -> list[dict[str, Any]]:
    """All whole lines; a machine that went down may have left half of one."""
    found = []
    if path.is_file():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
    return found


def not_writable(folder: Path, error: OSError) -> EngineError:
    """What is raised when nothing can be written there."""
    return EngineError(
        "output_not_writable",
        f"Sound cannot be saved in {folder} ({error.strerror}); check permissions and free space.",
        folder=str(folder),
    )

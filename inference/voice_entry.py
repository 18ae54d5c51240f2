"""What the library of saved voices knows about each: its entry, the rules for names, and which model it is for."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import unicodedata
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from inference.types import RequestError

logger = logging.getLogger(__name__)

MAX_NAME = 60  # characters
MAX_TRANSCRIPT = 1000
VOICE_ID = re.compile(r"v_[0-9a-f]{12}")
_NETWORKS = ("campplus.onnx", "speech_tokenizer_v2.onnx")
_EDGE = 1 << 20  # bytes of a network file's start and end that are hashed: the public one has 500 MB


@dataclass(frozen=True)
class SavedVoice:
    """One entry of the library."""

    id: str  # "v_" and 12 hex digits; never changes
    name: str  # what people call it; no two are the same but for capitals
    transcript: str
    created: str  # ISO 8601, UTC
    seconds: float  # of the sound that is kept
    sample_rate: int  # Hz
    content_hash: str  # SHA-256 of the tensors
    model: str  # fingerprint of the networks that it was prepared with
    warnings: tuple[str, ...] = ()  # what its clip's report found


def model_fingerprint(model_dir: Path) -> str:
    """Tells the networks apart that turn a clip into a voice: from their sizes, starts and ends. "" if unreadable."""
    digest = hashlib.sha256()
    try:
        for name in _NETWORKS:
            with (model_dir / name).open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                digest.update(f"{name}:{size};".encode())
                for start in (0, max(0, size - _EDGE)):
                    file.seek(start)
                    digest.update(file.read(_EDGE))
    except OSError:
        return ""
    return digest.hexdigest()[:32]


def checked_name(name: str) -> str:
    """The name as it is kept. Raises RequestError("voice_name_bad")."""
    cleaned = " ".join(unicodedata.normalize("NFC", name).split())
    printable = all(unicodedata.category(character)[0] != "C" for character in cleaned)
    if not cleaned or len(cleaned) > MAX_NAME or not printable or VOICE_ID.fullmatch(cleaned):
        raise RequestError(
            "voice_name_bad", f"Give the voice a name of 1 to {MAX_NAME} characters.", limit=MAX_NAME
        )
    return cleaned


def checked_transcript(transcript: str) -> str:
    """The transcript as it is kept. Raises RequestError("transcript_too_long")."""
    if len(transcript) > MAX_TRANSCRIPT:
        raise RequestError(
            "transcript_too_long",
            f"The transcript has {len(transcript)} characters; {MAX_TRANSCRIPT} is the limit.",
            count=len(transcript),
            limit=MAX_TRANSCRIPT,
        )
    return transcript.strip()


def folded(name: str) -> str:
    """Equal for names that people would take for the same."""
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())


def entry_bytes(entry: SavedVoice) -> bytes:
    """An entry as its file."""
    return json.dumps({"format": 1, **asdict(entry)}, ensure_ascii=False, indent=1).encode()


def read_entry(path: Path) -> SavedVoice | None:
    """The entry in a file; None (and a line in the log) for one that is damaged."""
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
        values = {field.name: content[field.name] for field in fields(SavedVoice)}
        entry = SavedVoice(**{**values, "warnings": tuple(values["warnings"])})
        if entry.id == path.stem and isinstance(entry.name, str):
            return entry
    except FileNotFoundError:  # deleted meanwhile
        return None
    except (OSError, ValueError, KeyError, TypeError):
        pass
    logger.warning("%s is not the description of a voice; it is left out.", path)
    return None

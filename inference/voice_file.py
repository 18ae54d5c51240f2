"""One saved voice as bytes: a safetensors file that holds the sound, what was computed from it, and a description.

The sound is kept so that the voice can be listened to, and prepared anew for a model with another tokenizer.
Files come from strangers too: every size, type and value is checked before it is used.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from inference.frontend.encode import encode_audio
from inference.types import Int16Audio, Reference, ReferenceReport, RequestError, Voice
from inference.voice_check import voice_fits
from inference.voice_entry import MAX_TRANSCRIPT

FORMAT = "cosyvoice-studio-voice"
FORMAT_VERSION = 1
MAX_FILE_BYTES = 32 * 2**20
_MAX_HEADER_BYTES = 1 << 16
_MAX_SECONDS = 31.0
_RATES = (8000, 192000)  # Hz
_DTYPES = {"pcm": np.int16, "speech_tokens": np.int32, "mel": np.float32, "speaker": np.float32}


@dataclass(frozen=True)
class KeptVoice:
    """What a file holds."""

    name: str
    voice: Voice
    pcm: Int16Audio  # (n,) the part of the clip that is heard
    sample_rate: int  # Hz
    model: str  # fingerprint of the networks that made tokens, mel and speaker vector

    @property
    def seconds(self) -> float:
        return len(self.pcm) / self.sample_rate

    def wav(self) -> bytes:
        """The sound as a WAV file."""
        return encode_audio(self.pcm, self.sample_rate, "wav")

    def reference(self) -> Reference:
        """The sound as a clip, for a model that has to prepare it anew."""
        return Reference(self.wav(), self.voice.transcript)


def pack(kept: KeptVoice) -> bytes:
    """The file of a voice. Equal tensors always give equal tensor bytes, whatever the name."""
    from safetensors.numpy import save

    voice = kept.voice
    tensors: dict[str, Any] = {
        "pcm": kept.pcm,
        "speech_tokens": voice.speech_tokens,
        "mel": voice.mel,
        "speaker": voice.speaker,
    }
    tensors = {name: np.ascontiguousarray(value, _DTYPES[name]) for name, value in tensors.items()}
    described = {
        "name": kept.name,
        "transcript": voice.transcript,
        "sample_rate": kept.sample_rate,
        "model": kept.model,
        "clip_hash": voice.content_hash,
        "report": asdict(voice.report) if voice.report else None,
    }
    metadata = {"format": FORMAT, "version": str(FORMAT_VERSION), "voice": json.dumps(described)}
    packed: bytes = save(tensors, metadata)
    return packed


def unpack(data: bytes) -> KeptVoice:
    """The voice in a file. Raises RequestError voice_file_too_large or voice_file_bad."""
    if len(data) > MAX_FILE_BYTES:
        raise RequestError(
            "voice_file_too_large",
            f"A voice file has at most {MAX_FILE_BYTES >> 20} MB.",
            limit=MAX_FILE_BYTES >> 20,
        )
    try:
        return _unpack(data)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise voice_file_bad() from error


def tensor_hash(data: bytes) -> str:
    """SHA-256 of a file's tensors, the same whatever the voice is called."""
    return hashlib.sha256(data[8 + _header_length(data) :]).hexdigest()


def voice_file_bad() -> RequestError:
    """What a file gets that is damaged or no voice at all."""
    return RequestError(
        "voice_file_bad", "This is not a voice file of this studio, or it is damaged; export the voice again."
    )


def _header_length(data: bytes) -> int:
    length: int = struct.unpack("<Q", data[:8])[0] if len(data) >= 8 else 0
    if not 0 < length <= min(_MAX_HEADER_BYTES, len(data) - 8):
        raise voice_file_bad()
    return length


def _unpack(data: bytes) -> KeptVoice:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    metadata = json.loads(data[8 : 8 + _header_length(data)])["__metadata__"]
    if metadata["format"] != FORMAT or int(metadata["version"]) > FORMAT_VERSION:
        raise voice_file_bad()
    described = json.loads(metadata["voice"])
    try:
        tensors = load(data)
    except SafetensorError as error:
        raise voice_file_bad() from error
    rate = int(described["sample_rate"])
    _check(tensors, rate)
    voice = Voice(
        speech_tokens=tensors["speech_tokens"],
        mel=tensors["mel"],
        speaker=tensors["speaker"],
        transcript=_text(described["transcript"], MAX_TRANSCRIPT),
        report=_report(described.get("report")),
        content_hash=_text(described.get("clip_hash") or "", 64),
    )
    name, model = _text(described["name"], 200), _text(described["model"], 64)
    return KeptVoice(name, voice, tensors["pcm"], rate, model)


def _check(tensors: dict[str, Any], rate: int) -> None:
    if set(tensors) != set(_DTYPES) or any(tensors[name].dtype != kind for name, kind in _DTYPES.items()):
        raise voice_file_bad()
    pcm, tokens, mel, speaker = (tensors[name] for name in _DTYPES)
    fits = (
        _RATES[0] <= rate <= _RATES[1]
        and pcm.ndim == 1
        and 0 < len(pcm) <= _MAX_SECONDS * rate
        and voice_fits(tokens, mel, speaker)
    )
    if not fits:
        raise voice_file_bad()


def _report(described: Any) -> ReferenceReport | None:
    if described is None:
        return None
    values = {field.name: described[field.name] for field in fields(ReferenceReport)}
    numbers = [value for name, value in values.items() if name != "warnings"]
    if not all(isinstance(value, (int, float)) and math.isfinite(value) for value in numbers):
        raise voice_file_bad()
    warnings = tuple(_text(code, 40) for code in values.pop("warnings"))[:20]
    return ReferenceReport(**values, warnings=warnings)


def _text(value: Any, limit: int) -> str:
    if not isinstance(value, str) or len(value) > limit:
        raise voice_file_bad()
    return value

"""CosyVoice2 inference: voice cloning from text and a short clip.

from inference import CosyVoice, Mode, Reference, SynthesisRequest
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from inference.types import (
    AudioChunk,
    CheckpointError,
    EngineError,
    Mode,
    Reference,
    RequestError,
    SynthesisError,
    SynthesisRequest,
    Voice,
)

if TYPE_CHECKING:
    from inference.engine import CosyVoice

__all__ = [
    "AudioChunk",
    "CheckpointError",
    "CosyVoice",
    "EngineError",
    "Mode",
    "Reference",
    "RequestError",
    "SynthesisError",
    "SynthesisRequest",
    "Voice",
]


def __getattr__(name: str) -> Any:
    # Loaded on demand: checking a request or reading `--help` should not take torch's seconds.
    if name == "CosyVoice":
        from inference.engine import CosyVoice

        return CosyVoice
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""CosyVoice2 inference: voice cloning from text and a short clip.

from inference import CosyVoice, Mode, Reference, SynthesisRequest
"""

from __future__ import annotations

from importlib import import_module
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
    from inference.pool import WorkerPool
    from inference.settings import PoolSettings

__all__ = [
    "AudioChunk",
    "CheckpointError",
    "CosyVoice",
    "EngineError",
    "Mode",
    "PoolSettings",
    "Reference",
    "RequestError",
    "SynthesisError",
    "SynthesisRequest",
    "Voice",
    "WorkerPool",
]

# Loaded on demand: checking a request or reading `--help` should not take torch's seconds.
_ON_DEMAND = {
    "CosyVoice": "inference.engine",
    "PoolSettings": "inference.settings",
    "WorkerPool": "inference.pool",
}


def __getattr__(name: str) -> Any:
    if name in _ON_DEMAND:
        return getattr(import_module(_ON_DEMAND[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

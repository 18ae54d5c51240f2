"""Checks a request once, at the edge, before anything is loaded, queued or computed."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable
from pathlib import Path

from inference.frontend.clean import without_control_tokens
from inference.frontend.text import check_text
from inference.types import (
    MAX_INSTRUCTION_CHARACTERS,
    MAX_SPEED,
    MIN_SPEED,
    Mode,
    Reference,
    RequestError,
    SynthesisRequest,
    Voice,
)
from inference.voice_check import voice_fits

MAX_SEED = 2**63 - 1


def validate(request: SynthesisRequest) -> None:
    """Raise one `RequestError` if `request` cannot be served whatever the model says.

    Codes: unknown_mode, bad_speed, speed_not_exact, bad_seed, reference_missing, preset_missing, source_missing,
    voice_bad, instruction_missing, instruction_too_long, empty_text, nothing_to_speak, text_too_long, unknown_language.
    Audio is judged by the front end.
    """
    if request.mode not in list(Mode):
        names = ", ".join(mode.value for mode in Mode)
        raise RequestError(
            "unknown_mode", f"Unknown mode {request.mode!r}; choose one of {names}.", modes=names
        )
    _check_speed(request)
    whole = isinstance(request.seed, numbers.Integral) and not isinstance(request.seed, bool)
    if not whole or not 0 <= request.seed <= MAX_SEED:
        raise RequestError(
            "bad_seed", f"The seed must be a whole number from 0 to {MAX_SEED}.", maximum=MAX_SEED
        )
    _check_voice(request)
    if request.mode == Mode.INSTRUCT:
        _check_instruction(request.instruction)
    if request.mode != Mode.CONVERT:
        check_text(request.text, request.language, request.exact)


def reference_missing() -> RequestError:
    """What a request without a clip gets."""
    return RequestError(
        "reference_missing", "Upload or record a clip of the voice first: three to ten seconds are enough."
    )


def preset_unknown(name: object, presets: Iterable[str]) -> RequestError:
    """What a request for a speaker gets that the model folder does not have."""
    known = ", ".join(sorted(presets)) or "none"
    return RequestError(
        "preset_unknown",
        f"There is no preset speaker {name!r}; this model has: {known}.",
        name=str(name),
        known=known,
    )


def source_missing() -> RequestError:
    """What a conversion without a recording gets."""
    return RequestError("source_missing", "Voice conversion needs a source recording to convert.")


def _check_speed(request: SynthesisRequest) -> None:
    speed = request.speed
    if not (isinstance(speed, numbers.Real) and math.isfinite(speed) and MIN_SPEED <= speed <= MAX_SPEED):
        raise RequestError(
            "bad_speed",
            f"The speed must be between {MIN_SPEED} and {MAX_SPEED}.",
            minimum=MIN_SPEED,
            maximum=MAX_SPEED,
        )
    if request.exact and request.stream and speed != 1.0:
        # The original stretches the whole sound at once (SPEC 7.2).
        raise RequestError("speed_not_exact", "Exact mode cannot change the speed of a stream; use speed 1.")


def _check_voice(request: SynthesisRequest) -> None:
    voice = request.voice
    if request.mode == Mode.PRESET:
        if not isinstance(voice, str) or not voice:
            raise RequestError("preset_missing", "Name the preset speaker that should speak.")
    elif isinstance(voice, Voice):
        if not voice_fits(voice.speech_tokens, voice.mel, voice.speaker):
            raise RequestError(
                "voice_bad", "This prepared voice is damaged or of another model; prepare its clip again."
            )
    elif not _is_clip(voice):
        raise reference_missing()
    if request.mode == Mode.CONVERT and not _is_clip(request.source):
        raise source_missing()


def _is_clip(value: object) -> bool:
    return isinstance(value, Reference) and isinstance(value.audio, (Path, bytes, bytearray))


def _check_instruction(instruction: str) -> None:
    if not isinstance(instruction, str) or not without_control_tokens(instruction).strip():
        raise RequestError(
            "instruction_missing", "Write an instruction, for example: speak slowly and gently."
        )
    if len(instruction) > MAX_INSTRUCTION_CHARACTERS:
        raise RequestError(
            "instruction_too_long",
            f"The instruction has {len(instruction)} characters; {MAX_INSTRUCTION_CHARACTERS} is the limit.",
            count=len(instruction),
            limit=MAX_INSTRUCTION_CHARACTERS,
        )

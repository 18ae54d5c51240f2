"""Requests that no model should ever see."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inference.types import Mode, Reference, RequestError, SynthesisRequest, Voice
from inference.validate import validate

VOICE = Voice(np.zeros(10, np.int32), np.zeros((20, 80), np.float32), np.ones(192, np.float32))
GOOD = SynthesisRequest(Mode.CLONE, text="Hello.", voice=Reference(Path("a.wav")))
PROBLEMS: list[tuple[dict[str, Any], str]] = [
    ({"mode": "sing"}, "unknown_mode"),
    ({"speed": 0.0}, "bad_speed"),
    ({"speed": 2.01}, "bad_speed"),
    ({"speed": math.nan}, "bad_speed"),
    ({"speed": "fast"}, "bad_speed"),
    ({"speed": 1.2, "stream": True, "exact": True}, "speed_not_exact"),
    ({"seed": -1}, "bad_seed"),
    ({"seed": 1.5}, "bad_seed"),
    ({"seed": None}, "bad_seed"),
    ({"seed": 2**63}, "bad_seed"),
    ({"voice": None}, "reference_missing"),
    ({"voice": "somebody"}, "reference_missing"),
    ({"voice": 7}, "reference_missing"),
    ({"voice": Reference(None)}, "reference_missing"),  # type: ignore[arg-type]
    ({"voice": replace(VOICE, speech_tokens=np.full(10, 6561, np.int32))}, "voice_bad"),
    ({"voice": replace(VOICE, speech_tokens=np.full(10, -1, np.int32))}, "voice_bad"),
    ({"voice": replace(VOICE, speech_tokens=np.empty(0, np.int32))}, "voice_bad"),
    ({"voice": replace(VOICE, mel=np.zeros((20, 40), np.float32))}, "voice_bad"),
    ({"voice": replace(VOICE, mel=np.full((20, 80), np.nan, np.float32))}, "voice_bad"),
    ({"voice": replace(VOICE, mel=None)}, "voice_bad"),  # type: ignore[arg-type]
    ({"voice": replace(VOICE, speaker=np.zeros(191, np.float32))}, "voice_bad"),
    ({"text": None}, "empty_text"),
    ({"mode": Mode.INSTRUCT, "instruction": None}, "instruction_missing"),
    ({"mode": Mode.CONVERT, "source": "x"}, "source_missing"),
    ({"mode": Mode.PRESET}, "preset_missing"),
    ({"mode": Mode.CONVERT}, "source_missing"),
    ({"mode": Mode.INSTRUCT}, "instruction_missing"),
    ({"mode": Mode.INSTRUCT, "instruction": "  \n"}, "instruction_missing"),
    ({"mode": Mode.INSTRUCT, "instruction": "<|endofprompt|>"}, "instruction_missing"),
    ({"mode": Mode.INSTRUCT, "instruction": "x" * 301}, "instruction_too_long"),
    ({"text": ""}, "empty_text"),
    ({"text": " \n\u3000\u200b"}, "empty_text"),
    ({"mode": Mode.PRESET, "voice": "anna", "text": "\t"}, "empty_text"),
    ({"text": "x" * 5001}, "text_too_long"),
    ({"text": "。。。（）😀"}, "nothing_to_speak"),
    ({"language": "klingon"}, "unknown_language"),
]


@pytest.mark.unit
@pytest.mark.parametrize(("change", "code"), PROBLEMS)
def test_one_typed_error_each(change: dict[str, Any], code: str) -> None:
    with pytest.raises(RequestError) as caught:
        validate(replace(GOOD, **change))
    assert caught.value.code == code
    assert str(caught.value).endswith(".")


@pytest.mark.unit
def test_good_requests_pass() -> None:
    validate(GOOD)
    validate(replace(GOOD, mode=Mode.PRESET, voice="anna"))
    validate(replace(GOOD, voice=VOICE))
    validate(replace(GOOD, mode=Mode.INSTRUCT, instruction="Slowly."))
    validate(replace(GOOD, speed=1.2, stream=True))
    validate(replace(GOOD, mode=Mode.CONVERT, text="", source=Reference(Path("b.wav"))))
    validate(replace(GOOD, speed=np.float32(0.5), seed=np.int64(2**63 - 1)))  # type: ignore[arg-type]


def test_a_clip_may_be_named_by_a_string() -> None:
    assert Reference("a.wav") == Reference(Path("a.wav"))

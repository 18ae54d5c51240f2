"""What the soak asks for: good requests of every kind, and what people do wrong."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.material import TRANSCRIPT, clip, wav_bytes
from inference.types import Mode, Reference, SynthesisRequest

TEXTS = (
    "Good morning.",
    "The train to the city leaves at nine.",
    "It is late again, and so we wait here for a while. Then we go home, and nobody minds.",
    "Seven old ships sail past the harbour.",
)
SPEEDS = (1.0, 1.0, 0.8, 1.3)
SILENCE = wav_bytes(np.zeros(48000, np.int16), 24000)


@dataclass(frozen=True)
class BadCase:
    """A request that must be refused, with the codes that are right for it."""

    request: SynthesisRequest
    codes: tuple[str, ...]


def good_requests(
    count: int, seed: int, references: Sequence[Reference] = (), presets: Sequence[str] = ()
) -> list[SynthesisRequest]:
    """`count` different requests: all modes, speeds, whole and streamed, several voices."""
    voices = list(references) or [Reference(clip(3.0 + 0.5 * n, n), TRANSCRIPT) for n in range(4)]
    drawn = random.Random(seed)
    return [_good(number, drawn, voices, presets) for number in range(count)]


def _good(
    number: int, drawn: random.Random, voices: Sequence[Reference], presets: Sequence[str]
) -> SynthesisRequest:
    modes = [Mode.CLONE, Mode.CROSS_LINGUAL, Mode.INSTRUCT, Mode.CONVERT] + [Mode.PRESET] * bool(presets)
    request = SynthesisRequest(
        modes[number % len(modes)],
        drawn.choice(TEXTS),
        drawn.choice(voices),
        speed=drawn.choice(SPEEDS),
        seed=drawn.randrange(2**31),
        stream=drawn.random() < 0.5,
    )
    if request.mode is Mode.INSTRUCT:
        return replace(request, instruction="Speak calmly.")
    if request.mode is Mode.CONVERT:
        return replace(request, text="", source=Reference(clip(2.0 + number % 3, 100 + number)))
    if request.mode is Mode.PRESET:
        return replace(request, voice=drawn.choice(list(presets)))
    return request


def bad_requests() -> Iterator[BadCase]:
    """One of each mistake."""
    good = SynthesisRequest(Mode.CLONE, "Good morning.", Reference(clip(3.0), ""))
    yield BadCase(replace(good, text=""), ("empty_text",))
    yield BadCase(replace(good, text="。！？…"), ("nothing_to_speak", "empty_text"))
    yield BadCase(replace(good, text="word " * 5000), ("text_too_long",))
    yield BadCase(replace(good, voice=None), ("reference_missing",))
    yield BadCase(replace(good, voice=Reference(b"no sound at all " * 50)), ("audio_unreadable",))
    yield BadCase(replace(good, voice=Reference(b"")), ("audio_empty", "audio_unreadable"))
    yield BadCase(
        replace(good, voice=Reference(SILENCE)), ("audio_empty", "audio_too_short", "reference_silent")
    )
    yield BadCase(replace(good, voice=Reference(clip(0.1))), ("reference_too_short", "audio_too_short"))
    yield BadCase(replace(good, speed=9.0), ("bad_speed",))
    yield BadCase(replace(good, mode=Mode.PRESET, voice="nobody at all"), ("preset_unknown",))
    yield BadCase(replace(good, mode=Mode.INSTRUCT), ("instruction_missing",))
    yield BadCase(replace(good, mode=Mode.CONVERT), ("source_missing",))

"""Speech of a given length from any weights: random ones would end it anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from inference.runtime.feed import SpeechPrompt


def force_length(tokens: int) -> None:
    """From now on every request in this process draws exactly `tokens` speech tokens a segment; for benchmarks only."""
    setattr(SpeechPrompt, "min_len", property(lambda _: tokens))  # noqa: B010 - a property of a frozen class
    setattr(SpeechPrompt, "max_len", property(lambda _: tokens))  # noqa: B010


@contextmanager
def forced_length(tokens: int) -> Iterator[None]:
    """`force_length` for the time of the block; 0 changes nothing."""
    kept = (SpeechPrompt.__dict__["min_len"], SpeechPrompt.__dict__["max_len"])
    try:
        if tokens:
            force_length(tokens)
        yield
    finally:
        setattr(SpeechPrompt, "min_len", kept[0])  # noqa: B010
        setattr(SpeechPrompt, "max_len", kept[1])  # noqa: B010

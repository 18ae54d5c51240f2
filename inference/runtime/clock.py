"""Seconds that one request spends in each stage."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from inference.types import Timings


@dataclass
class Clock:
    """Started when made; the stages are added up by whoever runs them."""

    started: float = field(default_factory=time.perf_counter)
    front_end: float = 0.0
    language_model: float = 0.0
    flow: float = 0.0
    vocoder: float = 0.0
    first_audio: float = 0.0

    @contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        """Add the time of the block to `stage`: front_end, language_model, flow or vocoder."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            setattr(self, stage, getattr(self, stage) + time.perf_counter() - begun)

    def pass_on(self, tokens: Iterator[int]) -> Iterator[int]:
        """The same tokens; the time they take to make goes to the language model."""
        while True:
            with self.measure("language_model"):
                token = next(tokens, None)
            if token is None:
                return
            yield token

    def timings(self) -> Timings:
        """The times so far. The first call marks the first sound."""
        total = time.perf_counter() - self.started
        self.first_audio = self.first_audio or total
        return Timings(self.front_end, self.language_model, self.flow, self.vocoder, self.first_audio, total)

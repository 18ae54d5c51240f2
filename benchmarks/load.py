"""Many users at once: each sends a request, hears it to the end, and sends the next."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from inference.types import AudioChunk, SynthesisError, SynthesisRequest

Speak = Callable[[SynthesisRequest], Iterator[AudioChunk]]
STALL_SECONDS = 0.02  # shorter ones a player's buffer hides


@dataclass
class Answer:
    """What one user got for one request. Times in seconds from its sending."""

    user: int
    turn: int
    began: float
    first: float = math.inf
    total: float = math.inf
    audio: float = 0.0
    stall: float = 0.0  # longest silence between chunks that a listener would have heard
    error: str = ""

    @property
    def complete(self) -> bool:
        return math.isfinite(self.total) and not self.error


@dataclass
class Load:
    """`users` threads, each with `rounds` requests in a row, none begun after `limit` seconds."""

    speak: Speak
    request_of: Callable[[int, int], SynthesisRequest]  # (user, turn)
    users: int
    rounds: int
    limit: float
    answers: list[Answer] = field(default_factory=list)
    _requests: list[list[SynthesisRequest]] = field(default_factory=list)

    def prepare(self) -> None:
        """Make all requests, which `run` does otherwise."""
        self._requests = [
            [self.request_of(user, turn) for turn in range(self.rounds)] for user in range(self.users)
        ]

    def run(self) -> float:
        """Wait for all users; returns the seconds from the first request to the last sound."""
        if not self._requests:
            self.prepare()
        self._gate = threading.Barrier(self.users)
        self._lock = threading.Lock()
        self._began = math.inf
        threads = [threading.Thread(target=self._visit, args=(user,)) for user in range(self.users)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        ends = [answer.began + answer.total for answer in self.answers if answer.complete]
        return max(ends, default=self._began) - self._began

    def _visit(self, user: int) -> None:
        self._gate.wait()
        with self._lock:
            self._began = min(self._began, time.perf_counter())
        for turn, request in enumerate(self._requests[user]):
            if time.perf_counter() - self._began > self.limit:
                break
            answer = Answer(user, turn, time.perf_counter())
            with self._lock:
                self.answers.append(answer)
            self._listen(request, answer)

    def _listen(self, request: SynthesisRequest, answer: Answer) -> None:
        try:
            for chunk in self.speak(request):
                now = time.perf_counter() - answer.began
                if math.isinf(answer.first):
                    answer.first = now
                answer.stall = max(answer.stall, now - answer.first - answer.audio)
                answer.audio += len(chunk.pcm) / chunk.sample_rate
                if chunk.final:
                    answer.total = now
        except SynthesisError as error:
            answer.error = error.code


def percentile(values: Sequence[float], share: float) -> float | None:
    """Nearest-rank percentile; None when it lies among the infinite ones, or without values."""
    ordered = sorted(values)
    if not ordered:
        return None
    found = ordered[max(0, math.ceil(share * len(ordered)) - 1)]
    return found if math.isfinite(found) else None


def summary(load: Load, elapsed: float, expected_audio: float) -> dict[str, Any]:
    """The numbers of one cell of the table. Requests without an answer count as infinitely late."""
    answers = load.answers
    done = [answer for answer in answers if answer.complete]
    begun = sorted(answers, key=lambda answer: answer.began)
    quarter = max(1, len(begun) // 4)
    audio = sum(answer.audio for answer in done)
    return {
        "users": load.users,
        "requests": len(answers),
        "complete": len(done),
        "users_served": len({answer.user for answer in done}),
        "first": _spread([answer.first for answer in answers]),
        "total": _spread([answer.total for answer in answers]),
        "elapsed": elapsed,
        "audio": audio,
        "throughput": audio / elapsed if elapsed > 0 else 0.0,
        "stalled": sum(answer.stall > STALL_SECONDS for answer in done),
        "first_of_early_requests": percentile([answer.first for answer in begun[:quarter]], 0.5),
        "first_of_late_requests": percentile([answer.first for answer in begun[-quarter:]], 0.5),
        "errors": dict(Counter(answer.error for answer in answers if answer.error)),
        "wrong_length": sum(
            abs(answer.audio - expected_audio) > 1e-6 for answer in done if expected_audio > 0
        ),
    }


def _spread(values: Sequence[float]) -> dict[str, float | None]:
    return {name: percentile(values, share) for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))}

"""What one visitor may take, so that nobody keeps the others waiting."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from inference.types import RequestError
from webui.options import PUBLIC_RATE, PUBLIC_REQUESTS, Options
from webui.share import is_public

MINUTE = 60.0
_FORGET_ABOVE = 10_000  # callers remembered before those who have gone quiet are forgotten


@dataclass(frozen=True)
class VisitorLimits:
    """0 is no limit. `characters`: of one text; `requests`: in hand at once; `per_minute`: begun in a minute."""

    characters: int = 0
    requests: int = 0
    per_minute: int = 0


def limits_of(options: Options) -> VisitorLimits:
    """As asked for; by itself a studio that only its own machine can reach counts no requests."""
    public = options.share or bool(options.root_path) or is_public(options.server_name)
    requests, rate = (PUBLIC_REQUESTS, PUBLIC_RATE) if public else (0, 0)
    return VisitorLimits(
        options.visitor_characters,
        requests if options.visitor_requests is None else options.visitor_requests,
        rate if options.visitor_rate is None else options.visitor_rate,
    )


class Limiter:
    """Counts by caller. May be used from any thread."""

    def __init__(
        self, limits: VisitorLimits | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.limits = limits or VisitorLimits()
        self._clock = clock
        self._lock = threading.Lock()
        self._live: defaultdict[str, int] = defaultdict(int)
        self._begun: defaultdict[str, deque[float]] = defaultdict(deque)

    @contextmanager
    def enter(self, key: str, characters: int) -> Iterator[None]:
        """Holds one request of `key` for the time of the block.

        Raises `RequestError`: text_too_long, visitor_busy or visitor_rate (with `seconds` to wait).
        """
        self.check_length(characters)
        with self._lock:
            self._check_live(key)
            self._check_rate(key)
            self._live[key] += 1
            self._begun[key].append(self._clock())
        try:
            yield
        finally:
            with self._lock:
                self._live[key] -= 1
                if not self._live[key]:
                    del self._live[key]

    def check_length(self, characters: int) -> None:
        """Raises `RequestError("text_too_long")`."""
        limit = self.limits.characters
        if limit and characters > limit:
            raise RequestError(
                "text_too_long",
                f"The text has {characters} characters; {limit} is the limit here. Speak it in several parts, "
                "or as a batch.",
                limit=f"{limit} 个字符",
                count=characters,
            )

    def _check_live(self, key: str) -> None:
        limit = self.limits.requests
        if limit and self._live.get(key, 0) >= limit:
            raise RequestError(
                "visitor_busy",
                f"You already have {limit} requests in hand, which is the limit; wait for one to end.",
                limit=limit,
            )

    def _check_rate(self, key: str) -> None:
        limit = self.limits.per_minute
        if not limit:
            return
        now = self._clock()
        begun = self._begun[key]
        while begun and begun[0] <= now - MINUTE:
            begun.popleft()
        if len(begun) >= limit:
            seconds = max(1, round(begun[0] + MINUTE - now))
            raise RequestError(
                "visitor_rate",
                f"You have asked {limit} times within a minute, which is the limit; try again in {seconds} s.",
                limit=limit,
                seconds=seconds,
            )
        if len(self._begun) > _FORGET_ABOVE:
            self._forget(now)

    def _forget(self, now: float) -> None:
        for key in [key for key, begun in self._begun.items() if not begun or begun[-1] <= now - MINUTE]:
            del self._begun[key]

"""What each caller may do at once, in a minute and in a day."""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from webui.api.errors import ApiError

logger = logging.getLogger(__name__)

_MINUTE = 60.0
_DAY = 86400.0
_SAVE_SECONDS = 2.0
_MOST_CALLERS = 10_000  # remembered; the idlest are forgotten


@dataclass(frozen=True)
class Quota:
    """Limits; 0 is none."""

    per_minute: int = 0
    concurrent: int = 0
    characters_per_day: int = 0


@dataclass
class _Use:
    starts: deque[float] = field(default_factory=deque)
    running: int = 0
    day: int = 0
    characters: int = 0


class Lease:
    """A request that counts as running until `release`, which may be called more than once."""

    def __init__(self, release: Callable[[], None]) -> None:
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            release()


class QuotaBook:
    """Who has used how much. Safe between threads."""

    def __init__(self, now: Callable[[], float] = time.time, file: Path | None = None) -> None:
        """`file`: where the characters of today are kept, so that a restart gives nobody a second day."""
        self._now = now
        self._file = file
        self._saved = 0.0
        self._unsaved = False
        self._lock = threading.Lock()
        self._uses: dict[str, _Use] = {}
        self._read()

    def enter(self, caller: str, quota: Quota, characters: int = 0) -> Lease:
        """Let a request in, or raise a 429 `ApiError` that says when to come again."""
        with self._lock:
            now = self._now()
            use = self._use(caller, now)
            self._check(use, quota, now)
            self._check_characters(use, quota, characters, now)
            use.starts.append(now)
            use.running += 1
            self._count(use, quota, characters, now)
        return Lease(lambda: self._leave(use))

    def charge(self, caller: str, quota: Quota, characters: int) -> None:
        """Count characters of a request that was let in before, or raise a 429 `ApiError`."""
        with self._lock:
            now = self._now()
            use = self._use(caller, now)
            self._check_characters(use, quota, characters, now)
            self._count(use, quota, characters, now)

    def characters_today(self, caller: str) -> int:
        """Characters that `caller` has had spoken since midnight UTC."""
        with self._lock:
            return self._use(caller, self._now()).characters

    def _use(self, caller: str, now: float) -> _Use:
        if len(self._uses) >= _MOST_CALLERS and caller not in self._uses:
            idle = min(self._uses, key=lambda name: self._uses[name].running)
            del self._uses[idle]
        use = self._uses.setdefault(caller, _Use())
        while use.starts and use.starts[0] <= now - _MINUTE:
            use.starts.popleft()
        if use.day != int(now // _DAY):
            use.day, use.characters = int(now // _DAY), 0
        return use

    @staticmethod
    def _check(use: _Use, quota: Quota, now: float) -> None:
        if quota.concurrent and use.running >= quota.concurrent:
            raise ApiError(
                429,
                "too_many_at_once",
                f"This key may have {quota.concurrent} requests at once; wait for one to end.",
                retry_after=1,
            )
        if quota.per_minute and len(use.starts) >= quota.per_minute:
            wait = math.ceil(use.starts[0] + _MINUTE - now)
            raise ApiError(
                429,
                "too_many_per_minute",
                f"This key may make {quota.per_minute} requests a minute; come again in {wait} s.",
                retry_after=wait,
            )

    @staticmethod
    def _check_characters(use: _Use, quota: Quota, characters: int, now: float) -> None:
        if quota.characters_per_day and use.characters + characters > quota.characters_per_day:
            left = max(0, quota.characters_per_day - use.characters)
            raise ApiError(
                429,
                "characters_used_up",
                f"This key may have {quota.characters_per_day} characters a day spoken; {left} are left until "
                "midnight UTC.",
                retry_after=math.ceil(_DAY - now % _DAY),
            )

    def _count(self, use: _Use, quota: Quota, characters: int, now: float) -> None:
        use.characters += characters
        if quota.characters_per_day and characters:
            self._unsaved = True
            if now >= self._saved + _SAVE_SECONDS:
                self._save(now)

    def _save(self, now: float) -> None:
        if self._file and self._unsaved:
            self._saved, self._unsaved = now, False
            self._write(self._file)

    def _write(self, file: Path) -> None:
        used = {name: [use.day, use.characters] for name, use in self._uses.items() if use.characters}
        partial = file.with_name(f".{file.name}.part")
        try:
            partial.write_text(json.dumps(used), encoding="utf-8")
            partial.replace(file)
        except OSError as error:  # no reason to speak to nobody
            logger.warning("The characters used today cannot be saved: %s", error)

    def _read(self) -> None:
        try:
            used = json.loads(self._file.read_text(encoding="utf-8")) if self._file else {}
            for name, (day, characters) in used.items():
                self._uses[name] = _Use(day=int(day), characters=int(characters))
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError, AttributeError) as error:
            logger.warning("The characters used today cannot be read: %s", error)

    def _leave(self, use: _Use) -> None:
        with self._lock:
            use.running -= 1
            self._save(self._now())

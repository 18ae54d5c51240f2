"""Which backends a process uses and how often they failed, for its status and metrics. Imports no torch."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

logger = logging.getLogger(__name__)


class BackendReport:
    """Written by whoever chooses or drops a backend, read by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._used: dict[str, str] = {}
        self._failures = 0

    @property
    def failures(self) -> int:
        """Backends that were dropped: at their self-test or while serving."""
        return self._failures

    def used(self) -> Mapping[str, str]:
        """{"vocoder" or "flow": name}."""
        with self._lock:
            return dict(self._used)

    def use(self, part: str, name: str) -> None:
        with self._lock:
            self._used[part] = name

    def drop(
        self,
        part: str,
        name: str,
        why: str,
        error: BaseException | None = None,
        instead: str = "torch",
    ) -> None:
        """Something else from now on: one line in the log, one more failure."""
        with self._lock:
            self._used[part] = instead
            self._failures += 1
        detail = f" ({type(error).__name__}: {error})" if error is not None else ""
        logger.warning("The %s's backend %s %s%s; %s is used.", part, name, why, detail, instead)


REPORT = BackendReport()  # a worker has one model

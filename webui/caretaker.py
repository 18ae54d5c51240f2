"""Tidies up now and then: finished sound that has been kept long enough, batches, the history's lines about them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)

EVERY_SECONDS = 1800.0


class Caretaker:
    """Context manager that calls `clean` at once and then every half hour, in a thread of its own."""

    def __init__(self, clean: Callable[[], None], every: float = EVERY_SECONDS) -> None:
        self._clean = clean
        self._every = every
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="caretaker", daemon=True)

    def __enter__(self) -> Caretaker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        while True:
            try:
                self._clean()
            except (
                Exception
            ):  # a full or missing disk is told by whoever needs it; here the next round may do better
                logger.exception("cleaning up failed")
            if self._over.wait(self._every):
                return

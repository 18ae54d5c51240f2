"""Who holds which page of the incremental flow's memory (see `flow_pages`)."""

from __future__ import annotations

import heapq
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence


class PageBook:
    """Who holds which page. Safe to use from several threads.

    Pages of prompts are kept after their streams have ended, those of the voice that was used longest ago making
    way first when pages run out.
    """

    def __init__(self, pages: int, now: Callable[[], float] = time.monotonic) -> None:
        self._free = list(range(pages))  # a heap: low numbers first keeps the used memory compact
        self._holders = [0] * pages
        self._end = pages  # pages from here on are never given out
        self._now = now
        self._voices: OrderedDict[bytes, list[int]] = OrderedDict()
        self._asked: dict[bytes, float] = {}  # when each voice was wanted last
        self._abandoned: deque[list[int]] = deque()
        self._lock = threading.Lock()

    @property
    def available(self) -> int:
        """Pages that `take` could give."""
        with self._lock:
            return self._obtainable()

    @property
    def held(self) -> int:
        """Pages in use, kept prompts included."""
        with self._lock:
            self._collect()
            return sum(count > 0 for count in self._holders)

    @property
    def end(self) -> int:
        """One more than the highest page in use."""
        with self._lock:
            self._collect()
            return max((page + 1 for page, count in enumerate(self._holders) if count), default=0)

    def take(self, count: int) -> list[int] | None:
        """`count` pages for one holder, or None (and no change) when there are too few."""
        with self._lock:
            if self._obtainable() < count:
                return None
            self._make_way(count, 0.0)
            return self._pop(count)

    def take_some(self, most: int, idle: float) -> list[int]:
        """Up to `most` pages; voices that were wanted within the last `idle` seconds do not make way for them."""
        with self._lock:
            self._collect()
            self._make_way(most, idle)
            return self._pop(min(most, len(self._free)))

    def limit(self, pages: int) -> None:
        """There is no more memory than for the first `pages` pages; those in use stay until they are given back."""
        with self._lock:
            self._end = min(self._end, pages)
            self._free = [page for page in self._free if page < self._end]
            heapq.heapify(self._free)

    def forget_unused(self, idle: float = 0.0) -> None:
        """Give up the prompts that no stream uses and that nobody wanted within the last `idle` seconds."""
        with self._lock:
            self._collect()
            for voice in list(self._voices):
                if self._now() - self._asked[voice] < idle:
                    continue
                if all(self._holders[page] == 1 for page in self._voices[voice]):
                    self._drop(voice)

    def _make_way(self, wanted: int, idle: float) -> None:
        """Give up voices until so many pages are free, the one used longest ago first."""
        for voice in list(self._voices):
            if len(self._free) >= wanted or self._now() - self._asked[voice] < idle:
                break
            if any(self._holders[page] == 1 for page in self._voices[voice]):
                self._drop(voice)

    def _drop(self, voice: bytes) -> None:
        del self._asked[voice]
        self._release(self._voices.pop(voice))

    def _pop(self, count: int) -> list[int]:
        taken = [heapq.heappop(self._free) for _ in range(count)]
        for page in taken:
            self._holders[page] = 1
        return taken

    def give_back(self, pages: Sequence[int]) -> None:
        """One holder less for each page."""
        with self._lock:
            self._release(pages)

    def abandon(self, pages: list[int]) -> None:
        """`give_back` for the garbage collector, which may come at any time: it takes no lock."""
        self._abandoned.append(pages)

    def prompt_pages(self, voice: bytes) -> list[int]:
        """The kept pages of a voice's prompt, held for the caller as well; [] for an unknown voice."""
        with self._lock:
            pages = self._voices.get(voice)
            if pages is None:
                return []
            self._voices.move_to_end(voice)
            self._asked[voice] = self._now()
            self._hold(pages)
            return list(pages)

    def knows(self, voice: bytes) -> bool:
        """Whether the voice's prompt is kept."""
        with self._lock:
            return voice in self._voices

    def keep_prompt(self, voice: bytes, pages: Sequence[int]) -> None:
        """Keep the complete pages of a voice's prompt beyond their stream. The first to come stay."""
        with self._lock:
            if pages and voice not in self._voices:
                self._hold(pages)
                self._voices[voice] = list(pages)
                self._asked[voice] = self._now()

    def _obtainable(self) -> int:
        """A page of a kept prompt belongs to one voice, so that a single holder means that no stream uses it."""
        self._collect()
        kept = sum(self._holders[page] == 1 for pages in self._voices.values() for page in pages)
        return len(self._free) + kept

    def _collect(self) -> None:
        while self._abandoned:
            self._release(self._abandoned.popleft())

    def _hold(self, pages: Sequence[int]) -> None:
        for page in pages:
            self._holders[page] += 1

    def _release(self, pages: Sequence[int]) -> None:
        for page in pages:
            self._holders[page] -= 1
            if self._holders[page] == 0 and page < self._end:
                heapq.heappush(self._free, page)

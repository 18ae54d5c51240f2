"""What a caller holds of a request: its chunks as they come, its place in the queue, and a way to give it up.

Works in plain threads and in any event loop, also in several at once.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from inference.types import AudioChunk

_Waiter = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"]


class Mailbox:
    """Items from any thread to whoever waits for them. After `close` what is left can still be taken."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._closed = False
        self._error: BaseException | None = None
        self._changed = threading.Condition(threading.Lock())
        self._waiters: list[_Waiter] = []
        self._touched = (
            time.monotonic()
        )  # when something was last taken, or there was something to take again

    def put(self, item: Any) -> None:
        with self._changed:
            if not self._closed:
                if not self._items:
                    self._touched = time.monotonic()
                self._items.append(item)
            self._wake()

    def unread_for(self) -> float:
        """Seconds for which items have lain here and nobody has taken any; 0 for an empty one."""
        with self._changed:
            return time.monotonic() - self._touched if self._items else 0.0

    def discard(self, error: BaseException) -> None:
        """Throw away what was not taken; whoever comes after all gets `error`."""
        with self._changed:
            self._items.clear()
            self._closed, self._error = True, error
            self._wake()

    def close(self, error: BaseException | None = None) -> None:
        """Nothing more will come; `error` is raised once everything has been taken. Only the first call counts."""
        with self._changed:
            if not self._closed:
                self._closed, self._error = True, error
            self._wake()

    def get(self, timeout: float | None = None) -> Any:
        """The next item. Raises what the mailbox was closed with, else `EndOfItemsError`; `TimeoutError`."""
        with self._changed:
            if not self._changed.wait_for(self._has_news, timeout):
                raise TimeoutError
            return self._take()

    async def get_async(self) -> Any:
        """As `get`, in the running loop. Cancelling loses no item."""
        loop = asyncio.get_running_loop()
        while True:
            with self._changed:
                if self._has_news():
                    return self._take()
                waiter: _Waiter = (loop, loop.create_future())
                self._waiters.append(waiter)
            try:
                await waiter[1]
            finally:
                with self._changed:
                    if waiter in self._waiters:
                        self._waiters.remove(waiter)

    def _has_news(self) -> bool:
        return bool(self._items) or self._closed

    def _take(self) -> Any:
        if self._items:
            self._touched = time.monotonic()
            return self._items.popleft()
        raise self._error or EndOfItemsError

    def _wake(self) -> None:
        self._changed.notify_all()
        waiters, self._waiters = self._waiters, []
        for loop, future in waiters:
            try:
                loop.call_soon_threadsafe(_resolve, future)
            except RuntimeError:  # that loop is closed; nobody waits there any more
                continue


class EndOfItemsError(Exception):
    """A mailbox is closed and empty."""


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Submission:
    """One request in a pool: an async iterator, and a plain one, of its `AudioChunk`s; the last one is `final`.

    Iterating raises `RequestError` for input that turned out to be unusable and `EngineError` for what failed on our
    side. `cancel`, `aclose` and letting go of the object give the request up: its place is free at once.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        position: Callable[[], int],
        cancel: Callable[[], None],
        abandon: Callable[[], None],
    ) -> None:
        """`abandon` is `cancel` for when the object is garbage: it must take no lock."""
        self._mailbox = mailbox
        self._position = position
        self._cancel = cancel
        self._let_go = weakref.finalize(self, abandon)
        self._let_go.atexit = False

    @property
    def position(self) -> int:
        """Place in the queue; 0 when it is being served or done."""
        return self._position()

    def cancel(self) -> None:
        """Give the request up. Iteration then ends without an error. May be called at any time, from anywhere."""
        self._let_go.detach()
        self._cancel()

    def __aiter__(self) -> Submission:
        return self

    async def __anext__(self) -> AudioChunk:
        try:
            chunk: AudioChunk = await self._mailbox.get_async()
        except EndOfItemsError:
            raise StopAsyncIteration from None
        return chunk

    async def aclose(self) -> None:
        self.cancel()

    def __iter__(self) -> Generator[AudioChunk, None, None]:
        """For threads. Closing the generator cancels."""
        try:
            while True:
                yield self._mailbox.get()
        except EndOfItemsError:
            return
        finally:
            self.cancel()

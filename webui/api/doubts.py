"""Tells callers of a transcript that does not fit its clip, beside the work and never before it."""

from __future__ import annotations

import asyncio
import logging

from inference.frontend.doubt import transcript_doubts
from inference.types import SynthesisError, SynthesisRequest

logger = logging.getLogger("cosyvoice.api")


class Doubts:
    """Looks at one request's transcript in a thread, while the pool is at work: milliseconds, long before the sound.

    To be made in the event loop.
    """

    def __init__(self, request: SynthesisRequest) -> None:
        self._look = asyncio.ensure_future(asyncio.to_thread(_doubts_of, request))

    @property
    def known(self) -> tuple[str, ...]:
        """Codes of warnings that are known by now. Never waits."""
        done = self._look.done() and not self._look.cancelled()
        return self._look.result() if done else ()

    async def all(self) -> tuple[str, ...]:
        """`known`, when all is known."""
        return await self._look

    async def close(self) -> None:
        """Nobody asks any more."""
        self._look.cancel()
        await asyncio.gather(self._look, return_exceptions=True)


def _doubts_of(request: SynthesisRequest) -> tuple[str, ...]:
    try:
        found = transcript_doubts(request)
    except SynthesisError:  # the pool says the same, as an error
        return ()
    except Exception:
        logger.exception("a transcript could not be looked at")
        return ()
    if found:
        logger.info("The transcript does not fit the clip's length (%s).", ", ".join(found))
    return found

"""Many callers, a few worker processes: the way to sound for the page, the API and the command line.

    pool = WorkerPool(PoolSettings(model_dir))
    pool.start_blocking()
    for chunk in pool.synthesize(request): ...          # in threads
    async for chunk in pool.submit(request): ...        # in any event loop
    pool.close()

A program that starts a pool needs the usual `if __name__ == "__main__":`, as the workers import its main module.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Generator
from dataclasses import replace

from inference.devices import resolve_devices
from inference.dispatcher import Dispatcher
from inference.pool_status import PoolStatus
from inference.protocol import Ready
from inference.routing import VOICE_WORK, Ticket, voice_key, work_of
from inference.settings import PoolSettings, with_workers
from inference.submission import Submission
from inference.types import AudioChunk, Mode, Reference, SynthesisRequest, Voice
from inference.validate import preset_unknown, validate
from inference.voices import VoiceLibrary
from inference.worker_keeper import not_ready


class WorkerPool:
    """Serves requests with worker processes. All methods may be called from any thread.

    Letting go of a pool without `close` ends its workers too, as does the end of the program.
    """

    def __init__(self, settings: PoolSettings, voices: VoiceLibrary | None = None) -> None:
        """Nothing is started yet. `voices`: where requests find a voice that they only name."""
        self.voices = voices
        self.settings = with_workers(settings, resolve_devices(settings.devices))
        self._dispatcher = Dispatcher(self.settings)
        weakref.finalize(self, self._dispatcher.abandoned.put, None).atexit = False

    # ---------------------------------------------------------------------------------------- start and end
    def start_blocking(self) -> None:
        """Start all workers and wait until each is warm or has failed.

        Raises the first failure if none is warm (`CheckpointError`, `RequestError`, `EngineError("worker_failed")`);
        the pool is closed then. A worker that failed beside others is tried again.
        """
        self._dispatcher.start()

    async def start(self) -> None:
        """`start_blocking` without blocking the event loop."""
        await asyncio.to_thread(self.start_blocking)

    def drain_blocking(self, timeout: float | None = None) -> bool:
        """Take nothing new, finish what waits and what is live, close. False if `timeout` seconds did not suffice."""
        return self._dispatcher.drain(timeout)

    async def drain(self, timeout: float | None = None) -> bool:
        """`drain_blocking` without blocking the event loop."""
        return await asyncio.to_thread(self.drain_blocking, timeout)

    def close(self) -> None:
        """End everything now; what was not finished gets `EngineError("pool_closed")`. May be called twice."""
        self._dispatcher.close()

    def __enter__(self) -> WorkerPool:
        self.start_blocking()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --------------------------------------------------------------------------------------------- requests
    def submit(self, request: SynthesisRequest) -> Submission:
        """Ask for speech; returns at once.

        Raises `RequestError` for input that is plainly unusable (a saved voice that is not there: voice_unknown) and,
        when no place is left, `RequestError("busy")` with `ahead`, the number of requests before this one;
        `EngineError`: not_ready, pool_closed.
        """
        request = self._with_voice(request)
        self._check(request)
        ticket = self._dispatcher.enter(request, work_of(request), voice_key(request.voice), is_voice=False)
        dispatcher = self._dispatcher  # not the pool: letting go of that ends everything
        return Submission(
            ticket.mailbox,
            position=lambda: dispatcher.position(ticket),
            cancel=lambda: dispatcher.give_up(ticket),
            abandon=lambda: dispatcher.abandoned.put(ticket),
        )

    def synthesize(self, request: SynthesisRequest) -> Generator[AudioChunk, None, None]:
        """`submit` for threads: the chunks in order. Closing the generator cancels. Raises as `submit`, at once."""
        return iter(self.submit(request))

    def prepare_voice(self, reference: Reference, exact: bool = False) -> Voice:
        """A clip's `Voice`, to be used in many requests. Raises `RequestError` for an unusable clip, or as `submit`."""
        ticket = self._enter_voice(reference, exact)
        try:
            voice: Voice = ticket.mailbox.get()
            return voice
        finally:
            self._dispatcher.give_up(ticket)

    async def voice(self, reference: Reference, exact: bool = False) -> Voice:
        """`prepare_voice` without blocking the event loop."""
        ticket = self._enter_voice(reference, exact)
        try:
            voice: Voice = await ticket.mailbox.get_async()
            return voice
        finally:
            self._dispatcher.give_up(ticket)

    # ----------------------------------------------------------------------------------------------- status
    @property
    def sample_rate(self) -> int:
        """Hz. Raises `EngineError("not_ready")` before the first worker is warm."""
        return self._facts().sample_rate

    @property
    def presets(self) -> list[str]:
        """Names of the preset speakers. Raises `EngineError("not_ready")` before the first worker is warm."""
        return list(self._facts().presets)

    def status(self) -> PoolStatus:
        """A snapshot: readiness, queue, workers, counters."""
        return self._dispatcher.status()

    def _facts(self) -> Ready:
        if self._dispatcher.facts is None:
            raise not_ready()
        return self._dispatcher.facts

    def _with_voice(self, request: SynthesisRequest) -> SynthesisRequest:
        """A saved voice's name or id becomes the voice; in preset mode a name means a speaker of the model."""
        if not isinstance(request.voice, str) or request.mode == Mode.PRESET or self.voices is None:
            return request
        return replace(request, voice=self.voices.load(request.voice))

    def _check(self, request: SynthesisRequest) -> None:
        """What can be judged without a model need not wait for one."""
        from inference.frontend.text import check_text

        validate(request)
        if request.mode != Mode.CONVERT:
            check_text(request.text, request.language)
        facts = self._dispatcher.facts
        if request.mode == Mode.PRESET and facts is not None and request.voice not in facts.presets:
            raise preset_unknown(request.voice, facts.presets)

    def _enter_voice(self, reference: Reference, exact: bool) -> Ticket:
        return self._dispatcher.enter((reference, exact), VOICE_WORK, voice_key(reference), is_voice=True)

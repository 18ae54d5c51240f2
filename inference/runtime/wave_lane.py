"""The token-to-wave lane: speech tokens of many users' segments and chunks to sound, in micro-batches.

On CUDA a batch goes through flow and vocoder as one packed row (`wave_batch`). On the CPU each piece goes the plain
way alone, on the thread that brings it, so that its bits never depend on its neighbours; as many threads may bring
pieces as there are cores, and none waits for another.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np
import torch

from inference.device_memory import release
from inference.faults import as_request_error, is_device_fault
from inference.frontend.prompt import ModelInput
from inference.models.flow import FlowModel
from inference.models.vocoder import Vocoder
from inference.runtime.clock import Clock
from inference.runtime.schedule import FIRST_HOP, ChunkCall
from inference.runtime.spare_cores import SpareCores
from inference.runtime.token_to_wave import TokenToWave
from inference.runtime.wave_costs import BatchSizer, Cost
from inference.runtime.wave_stream import WaveItem, WaveResult, WaveStream, Work
from inference.settings import LaneSettings

# The packed way has many modules of its own, which the CPU does without.
if TYPE_CHECKING:
    from inference.runtime.wave_batch import BatchedWave, Running

__all__ = ["WaveItem", "WaveLane", "WaveResult", "WaveStream"]

logger = logging.getLogger(__name__)

_WARM_PROMPT = 100  # tokens
_WARM_CALL, _WARM_WHOLE = ChunkCall(FIRST_HOP + 3, 0, final=False), 250
_FEW = 8


@dataclass
class Batch:
    """A batch that was begun; `running` is None where all of it was done at once."""

    works: list[Work]
    costs: list[Cost]
    running: Running | None


class WaveLane:
    """Turns tokens into sound. All methods are called from one thread, on the CPU from up to `loops`.

    A batch is begun by `start` and waited for by `finish`, in the same order; meanwhile the next one can be begun, of
    other streams' items.

    `batched` chooses the packed way (default: on CUDA). `cores`: those of the CPU, which others may use too.
    `max_batch`: items of a batch, lowered when memory runs out.
    """

    def __init__(
        self,
        flow: FlowModel,
        vocoder: Vocoder,
        settings: LaneSettings,
        *,
        batched: bool | None = None,
        cores: SpareCores | None = None,
    ) -> None:
        self._device = flow.encoder_proj.weight.device
        self._settings = settings
        self._ratio = flow.cfg.token_mel_ratio
        self._sizer = BatchSizer(settings.max_batch_frames)
        on_cuda = self._device.type == "cuda"
        self._stream = torch.cuda.Stream(self._device) if on_cuda else None
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))  # which made the weights
        wanted = on_cuda if batched is None else batched
        # The batched way has caches of its own; the plain one is then for `exact` items only.
        self._models = TokenToWave(flow, vocoder, 0 if wanted else settings.flow_cache_bytes)
        self.max_batch = max(1, settings.max_batch)
        self._told = False
        self._batched: BatchedWave | None = None
        if wanted:
            from inference.runtime.wave_batch import BatchedWave

            half = on_cuda and flow.encoder_proj.weight.dtype != torch.float32
            with self._on_stream():
                self._batched = BatchedWave(
                    self._models, settings, self._less, torch.float16 if half else torch.float32
                )
        self._cores = None if on_cuda else cores or SpareCores(max(1, settings.threads))

    @property
    def overlaps(self) -> bool:
        """Whether `start` returns before the work is done."""
        return self._stream is not None

    @property
    def loops(self) -> int:
        """Threads that keep the lane at work, each with batches of its own."""
        return 1 if self._batched is not None or self._cores is None else self._cores.count

    def warm_up(self, progress: Callable[[str], None] = logger.info) -> None:
        """First kernels, and graphs of all shapes that serving needs; `progress` is told how far it has come."""
        if self._batched is None:
            # Nothing is kept of a shape: what is slow the first time is so however short it is.
            self._warm(_FEW, ChunkCall(_FEW, 0, final=False), _FEW)
            return
        from inference.runtime.wave_warm_up import warm_up

        with self._on_stream():
            warm_up(self._batched, self._settings, progress)
        for call in (_WARM_CALL, _WARM_CALL, None):
            self._warm(_WARM_PROMPT, call, call.token_count if call else _WARM_WHOLE)
        if self._batched.paged is not None:
            self._batched.paged.forget()  # the voices that were only tried out

    def _warm(self, prompt: int, call: ChunkCall | None, tokens: int) -> None:
        stream = self.open(_silent_input(self._models, prompt), seed=0, speed=1.0, exact=False)
        self.run([WaveItem(0, stream, tuple(range(tokens)), call)])
        self.close(stream)

    def open(self, model_input: ModelInput, *, seed: int, speed: float, exact: bool) -> WaveStream:
        """A new segment. `exact`: as the original does it, quirks included, never batched."""
        clock = Clock()
        sound = self._models.begin(model_input, seed=seed, speed=speed, exact=exact, clock=clock)
        stream = WaveStream(model_input, seed, exact, sound, clock)
        if self._batched is not None and not exact:
            with self._on_stream():
                self._batched.open(stream)
        return stream

    def close(self, stream: WaveStream) -> None:
        """Give the stream's memory back; closing twice does no harm."""
        stream.closed = True
        stream.sound.close()
        if self._batched is not None:
            self._batched.close(stream)

    def take(self, items: Sequence[WaveItem], hurried: bool = False) -> int:
        """How many of the items, from the front (most urgent first), make the next batch; at least 1.

        `hurried`: somebody listens or will soon, so that the batch must not be long. The items' streams are open.
        """
        batched = self._batched
        if batched is None or not items:
            return min(1, len(items))  # on the CPU the others are for the other threads
        costs = [self._cost(Work(item), batched) for item in items[: self.max_batch]]
        if hurried or items[0].call is not None:
            firsts = sum(1 for _ in takewhile(_is_first, items[: len(costs)]))
            return self._sizer.count_hurried(costs, firsts)
        return self._sizer.count(costs)

    def _cost(self, work: Work, batched: BatchedWave) -> Cost:
        item = work.item
        before = 0 if item.call is None else item.call.offset
        sound = (len(item.used) - before) * self._ratio
        row = batched.frames(work)
        return Cost(row, row + sound // 8, item.call is not None)

    def run(self, items: Sequence[WaveItem]) -> list[WaveResult]:
        """`start` and `finish`."""
        return self.finish(self.start(items))

    def start(self, items: Sequence[WaveItem]) -> Batch:
        """Begin one micro-batch. Raises only what ends the device's context."""
        works = [Work(item) for item in items]
        alive = [work for work in works if not work.stream.closed]
        packed, lane = [], self._batched
        if lane is not None:
            packed = [work for work in alive if not work.stream.exact]
            alive = [work for work in alive if work.stream.exact]
        batch = Batch(works, [self._cost(work, lane) for work in packed] if lane else [], None)
        with self._on_stream():
            if lane is not None and packed:
                batch.running = lane.start(packed, self._sizer.tail_share(batch.costs))
            self._plain(alive)
        return batch

    def nearly_done(self, batch: Batch) -> None:
        """Waits until the device will soon want the next batch."""
        if batch.running is not None:
            batch.running.nearly_done()

    def finish(self, batch: Batch) -> list[WaveResult]:
        """Wait for a batch; results in the items' order.

        Errors of single items are results: what the models raise, `non_finite`, `out_of_memory` (after smaller batches
        failed too), `engine_failed`. Raises only what ends the device's context. Items of closed streams get neither
        sound nor error.
        """
        if self._batched is not None and batch.running is not None:
            with self._on_stream():
                self._batched.finish(batch.running)
            if self.overlaps:
                self._sizer.measured(batch.costs, sum(batch.running.works[0].seconds.values()))
        return [work.result() for work in batch.works]

    def rest(self) -> None:
        """Nobody has wanted anything for a while: give back memory that is not in use. No batch may be on its way."""
        if self._batched is not None and self._batched.paged is not None:
            with self._on_stream():
                self._batched.paged.rest()
        release(self._device)

    def _plain(self, works: Sequence[Work]) -> None:
        for work in works:
            with nullcontext() if self._cores is None else self._cores.working():
                self._alone(work)

    def _alone(self, work: Work) -> None:
        item, sound, clock = work.item, work.stream.sound, work.stream.clock
        before = clock.flow, clock.vocoder
        try:
            if item.call is None:
                work.pcm = sound.whole(item.tokens)
            else:
                work.pcm = sound.chunk(item.call, item.tokens)
        except Exception as error:
            if is_device_fault(error):
                raise
            work.error = as_request_error(error)
            if work.error.code == "engine_failed":
                logger.exception("A piece of speech cannot be made.")
        work.seconds = {"flow": clock.flow - before[0], "vocoder": clock.vocoder - before[1]}

    def memory_bytes(self) -> int:
        """Bytes that the lane's streams, caches and kept shapes take, the models themselves apart."""
        kept = self._models.incremental
        total = 0 if kept is None else kept.memory_bytes
        return total if self._batched is None else total + self._batched.memory_bytes()

    def _less(self, items: int) -> None:
        """A batch of so many items did not fit."""
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        self.max_batch = max(1, min(self.max_batch, items // 2))
        if not self._told:
            self._told = True
            logger.warning(
                "Too little memory for %d pieces at once; at most %d are made together from now on.",
                items,
                self.max_batch,
            )

    def _on_stream(self) -> AbstractContextManager[object]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)


def _is_first(item: WaveItem) -> bool:
    return item.call is not None and item.call.offset == 0


def _silent_input(models: TokenToWave, prompt: int) -> ModelInput:
    nothing = np.zeros(0, dtype=np.int32)
    cfg = models.flow.cfg
    return ModelInput(
        text_ids=nothing,
        prompt_text_ids=nothing,
        llm_prompt_tokens=nothing,
        flow_prompt_tokens=np.arange(prompt, dtype=np.int32),
        prompt_mel=np.full((prompt * cfg.token_mel_ratio, cfg.mel_bins), -8.0, dtype=np.float32),
        speaker=np.ones(cfg.speaker_dim, dtype=np.float32),
        min_tokens=0,
        max_tokens=0,
    )

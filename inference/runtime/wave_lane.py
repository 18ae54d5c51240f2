"""The token-to-wave lane: speech tokens of many users' segments and chunks to sound, in micro-batches.

On CUDA a batch goes through flow and vocoder as one packed row (`wave_batch`). On the CPU each piece goes the plain
way alone, several at a time on threads of one core each, so that its bits never depend on its neighbours.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch

from inference.faults import as_request_error, is_device_fault
from inference.frontend.prompt import ModelInput
from inference.models.flow import FlowModel
from inference.models.vocoder import Vocoder
from inference.runtime.clock import Clock
from inference.runtime.schedule import FIRST_HOP, ChunkCall
from inference.runtime.token_to_wave import TokenToWave
from inference.runtime.wave_batch import BatchedWave, Running
from inference.runtime.wave_costs import BatchSizer, Cost
from inference.runtime.wave_stream import WaveItem, WaveResult, WaveStream, Work
from inference.runtime.wave_warm_up import warm_up
from inference.settings import LaneSettings

__all__ = ["WaveItem", "WaveLane", "WaveResult", "WaveStream"]

logger = logging.getLogger(__name__)

_CPU_SPREAD = 1.5  # on the CPU the longest item of such a batch may be so many times the most urgent one
_WARM_PROMPT = 100  # tokens


@dataclass
class Batch:
    """A batch that was begun; `running` is None where all of it was done at once."""

    works: list[Work]
    costs: list[Cost]
    running: Running | None


class WaveLane:
    """Turns tokens into sound. All methods are called from one thread.

    A batch is begun by `start` and waited for by `finish`, in the same order; meanwhile the next one can be begun, of
    other streams' items.

    `batched` chooses the packed way (default: on CUDA). `max_batch`: items of a batch, lowered when memory runs out.
    """

    def __init__(
        self, flow: FlowModel, vocoder: Vocoder, settings: LaneSettings, *, batched: bool | None = None
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
            half = on_cuda and flow.encoder_proj.weight.dtype != torch.float32
            with self._on_stream():
                self._batched = BatchedWave(
                    self._models, settings, self._less, torch.float16 if half else torch.float32
                )
        self._pool: ThreadPoolExecutor | None = None
        if not on_cuda:
            self._pool = ThreadPoolExecutor(
                max(1, settings.threads), "wave", initializer=torch.set_num_threads, initargs=(1,)
            )

    @property
    def overlaps(self) -> bool:
        """Whether `start` returns before the work is done."""
        return self._stream is not None

    def warm_up(self, progress: Callable[[str], None] = logger.info) -> None:
        """First kernels, and graphs of all shapes that serving needs; `progress` is told how far it has come."""
        call = ChunkCall(FIRST_HOP + 3, 0, final=False)
        if self._batched is not None:
            with self._on_stream():
                warm_up(self._batched, self._settings, progress)
        for due in (call, None) if self._batched is None else (call, call, None):
            self._warm(due)
        if self._batched is not None and self._batched.paged is not None:
            self._batched.paged.forget()  # the voices that were only tried out

    def _warm(self, call: ChunkCall | None) -> None:
        stream = self.open(_silent_input(self._models), seed=0, speed=1.0, exact=False)
        self.run([WaveItem(0, stream, tuple(range(28 if call else 250)), call)])
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
        if not items:
            return 0
        costs = [self._cost(Work(item)) for item in items[: self.max_batch]]
        if self._batched is None:
            return self._take_on_cpu(items, [cost.row for cost in costs])
        return self._sizer.count(costs, hurried or items[0].call is not None)

    def _cost(self, work: Work) -> Cost:
        item = work.item
        before = 0 if item.call is None else item.call.offset
        sound = (len(item.used) - before) * self._ratio
        if self._batched is None:
            row = (len(work.stream.model_input.flow_prompt_tokens) + len(item.used)) * self._ratio
        else:
            row = self._batched.frames(work)
        return Cost(row, row + sound // 8, item.call is not None)

    def _take_on_cpu(self, items: Sequence[WaveItem], costs: Sequence[int]) -> int:
        """One item a thread, so that nobody waits for a second round; chunks do not wait for much longer ones."""
        count = 1
        for item, cost in zip(items[1 : max(1, self._settings.threads)], costs[1:]):
            if items[0].call is not None and (item.call is None or cost > _CPU_SPREAD * costs[0]):
                break
            count += 1
        return count

    def run(self, items: Sequence[WaveItem]) -> list[WaveResult]:
        """`start` and `finish`."""
        return self.finish(self.start(items))

    def start(self, items: Sequence[WaveItem]) -> Batch:
        """Begin one micro-batch. Raises only what ends the device's context."""
        works = [Work(item) for item in items]
        alive = [work for work in works if not work.stream.closed]
        batched = [work for work in alive if self._batched is not None and not work.stream.exact]
        plain = [work for work in alive if self._batched is None or work.stream.exact]
        batch = Batch(works, [self._cost(work) for work in batched], None)
        with self._on_stream():
            if self._batched is not None and batched:
                batch.running = self._batched.start(batched)
            if plain:
                self._plain(plain)
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

    def _plain(self, works: Sequence[Work]) -> None:
        if self._pool is None:
            for work in works:
                self._alone(work)
        else:
            list(self._pool.map(self._alone, works))

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


def _silent_input(models: TokenToWave) -> ModelInput:
    nothing = np.zeros(0, dtype=np.int32)
    cfg = models.flow.cfg
    return ModelInput(
        text_ids=nothing,
        prompt_text_ids=nothing,
        llm_prompt_tokens=nothing,
        flow_prompt_tokens=np.arange(_WARM_PROMPT, dtype=np.int32),
        prompt_mel=np.full((_WARM_PROMPT * cfg.token_mel_ratio, cfg.mel_bins), -8.0, dtype=np.float32),
        speaker=np.ones(cfg.speaker_dim, dtype=np.float32),
        min_tokens=0,
        max_tokens=0,
    )

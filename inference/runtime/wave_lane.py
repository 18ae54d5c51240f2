"""The token-to-wave lane: speech tokens of many users' segments and chunks to sound, in micro-batches.

On CUDA a batch goes through flow and vocoder as one packed row (`wave_batch`). On the CPU each piece goes the plain
way alone, several at a time on threads of one core each, so that its bits never depend on its neighbours.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch

from inference.faults import as_request_error, is_device_fault
from inference.frontend.prompt import ModelInput
from inference.models.flow import FlowModel
from inference.models.vocoder import Vocoder
from inference.runtime.clock import Clock
from inference.runtime.schedule import FIRST_HOP, ChunkCall
from inference.runtime.token_to_wave import TokenToWave
from inference.runtime.wave_batch import BatchedWave
from inference.runtime.wave_parts import frames_of
from inference.runtime.wave_stream import WaveItem, WaveResult, WaveStream, Work
from inference.settings import LaneSettings

__all__ = ["WaveItem", "WaveLane", "WaveResult", "WaveStream"]

logger = logging.getLogger(__name__)

# A batch that begins with a stream's first chunk, or with a later one, is kept to so many frames: somebody listens.
FIRST_CHUNK_FRAMES = 4096
CHUNK_FRAMES = 8192
_CPU_SPREAD = 1.5  # on the CPU the longest item of such a batch may be so many times the most urgent one
_WARM_PROMPT = 100  # tokens


class WaveLane:
    """Turns tokens into sound. All methods are called from one thread.

    `batched` chooses the packed way (default: on CUDA). `max_batch`: items of a batch, lowered when memory runs out.
    """

    def __init__(
        self, flow: FlowModel, vocoder: Vocoder, settings: LaneSettings, *, batched: bool | None = None
    ) -> None:
        self._device = flow.encoder_proj.weight.device
        self._settings = settings
        self._ratio = flow.cfg.token_mel_ratio
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

    def warm_up(self) -> None:
        """First kernels, and the graphs of a stream's first chunk alone and in company, and of one sentence."""
        call = ChunkCall(FIRST_HOP + 3, 0, final=False)
        rounds: list[tuple[int, ChunkCall | None]] = [(1, call), (1, None)]
        if self._batched is not None:
            rounds = [(count, call) for count in (1, 2, 4, 8) if count <= self.max_batch] + [(1, None)]
        for count, due in rounds:
            for _ in range(3 if self._settings.graphs else 1):  # seen, captured, replayed
                self._warm(count, due)

    def _warm(self, count: int, call: ChunkCall | None) -> None:
        streams = [
            self.open(_silent_input(self._models), seed=0, speed=1.0, exact=False) for _ in range(count)
        ]
        tokens = tuple(range(28 if call else 250))
        self.run([WaveItem(i, stream, tokens, call) for i, stream in enumerate(streams)])
        for stream in streams:
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

    def take(self, items: Sequence[WaveItem]) -> int:
        """How many of the items, from the front (most urgent first), make the next batch; at least 1."""
        if not items:
            return 0
        costs = [frames_of(item, self._ratio) for item in items[: self.max_batch]]
        if self._batched is None:
            return self._take_on_cpu(items, costs)
        limit = self._frame_limit(items[0])
        total, count = costs[0], 1
        for cost in costs[1:]:
            if total + cost > limit:
                break
            total, count = total + cost, count + 1
        return count

    def _frame_limit(self, first: WaveItem) -> int:
        most = self._settings.max_batch_frames
        if first.call is None:
            return most
        return min(most, FIRST_CHUNK_FRAMES if first.call.offset == 0 else CHUNK_FRAMES)

    def _take_on_cpu(self, items: Sequence[WaveItem], costs: Sequence[int]) -> int:
        """One item a thread, so that nobody waits for a second round; chunks do not wait for much longer ones."""
        count = 1
        for item, cost in zip(items[1 : max(1, self._settings.threads)], costs[1:]):
            if items[0].call is not None and (item.call is None or cost > _CPU_SPREAD * costs[0]):
                break
            count += 1
        return count

    def run(self, items: Sequence[WaveItem]) -> list[WaveResult]:
        """One micro-batch; results in the items' order.

        Errors of single items are results: what the models raise, `non_finite`, `out_of_memory` (after smaller batches
        failed too), `engine_failed`. Raises only what ends the device's context. Items of closed streams get neither
        sound nor error.
        """
        works = [Work(item) for item in items]
        alive = [work for work in works if not work.stream.closed]
        batched = [work for work in alive if self._batched is not None and not work.stream.exact]
        plain = [work for work in alive if self._batched is None or work.stream.exact]
        with self._on_stream():
            for start in range(0, len(batched), self._settings.max_batch):
                self._run_batched(batched[start : start + self._settings.max_batch])
            if plain:
                self._plain(plain)
        return [work.result() for work in works]

    def _run_batched(self, works: Sequence[Work]) -> None:
        if self._batched is not None:
            self._batched.run(works)

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
        incremental = self._models.incremental
        total = 0 if incremental is None else incremental.memory_bytes
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

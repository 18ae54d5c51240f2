"""One batch through flow and vocoder on a GPU (`BatchedWave`): pieces of any kind together, started and waited for."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from inference.faults import as_request_error, is_device_fault, is_out_of_memory
from inference.runtime.backend_plan import WaveBackends
from inference.runtime.backend_report import REPORT
from inference.runtime.backend_spare import gives_way
from inference.runtime.captured import Programs, Tail
from inference.runtime.flow_block import send
from inference.runtime.mel_speed import MelSpeed
from inference.runtime.packed_flow import FlowJob, PackedFlow
from inference.runtime.packed_vocoder import PackedVocoder
from inference.runtime.paged_flow import PagedFlow, PagedStream
from inference.runtime.token_to_wave import TokenToWave, non_finite, pcm
from inference.runtime.vocoder_choice import choose_packed_vocoder
from inference.runtime.vocoder_fused import FusedVocoder
from inference.runtime.vocoder_pack import VocoderJob, VocoderPack
from inference.runtime.vocoder_stream import VocoderState
from inference.runtime.wave_parts import Marks, fits_row, to_host, vocoder_frames, vocoder_parts
from inference.runtime.wave_stream import WaveStream, Work
from inference.settings import LaneSettings
from inference.types import EngineError, SynthesisError

logger = logging.getLogger(__name__)

_MOST_PAGE_FAILURES = 3  # one may be due to what was asked for


@dataclass
class _Sounding:
    """A vocoder row whose answer is on its way to the host."""

    works: list[Work]
    jobs: list[VocoderJob]
    readers: list[MelSpeed]
    states: list[VocoderState | None]
    pack: VocoderPack
    answer: Tensor  # int16, pinned


@dataclass
class Running:
    """A batch that the device is at."""

    works: Sequence[Work]
    marks: Marks
    sounding: list[_Sounding] = field(default_factory=list)

    def nearly_done(self) -> None:
        """Waits until the end of the flow's work is near."""
        self.marks.wait_near()


class BatchedWave:
    """Flow and vocoder of one model for batches. Used from one thread; `on_memory` is told when memory runs out."""

    def __init__(
        self,
        models: TokenToWave,
        settings: LaneSettings,
        on_memory: Callable[[int], None],
        generator_dtype: torch.dtype = torch.float32,
    ) -> None:
        self._models = models
        self._settings = settings
        self._on_memory = on_memory
        self.flow = self._packed_flow()
        self.vocoder = self._packed_vocoder(generator_dtype)
        self.backends = WaveBackends(settings)
        if self.flow.device.type == "cuda":
            self.vocoder = self.backends.attach(self.flow, self.vocoder, models.vocoder)
        self.paged = self._paged_flow()
        self._page_failures = 0

    # ------------------------------------------------------------------------------------------------ models
    def _packed_flow(self) -> PackedFlow:
        settings = self._settings
        return PackedFlow(
            self._models.flow, settings.max_batch, graphs=settings.graphs, compiled=settings.compile
        )

    def _packed_vocoder(self, dtype: torch.dtype) -> PackedVocoder | FusedVocoder:
        vocoder, most = self._models.vocoder, self._settings.max_batch
        settings = self._settings
        return choose_packed_vocoder(vocoder, most, dtype, graphs=settings.graphs, compiled=settings.compile)

    def _paged_flow(self) -> PagedFlow | None:
        settings = self._settings
        try:
            return PagedFlow(
                self._models.flow,
                self.flow,
                settings.flow_cache_bytes,
                settings.max_batch,
                graphs=settings.graphs,
            )
        except EngineError:  # said so; streams go through the packed row, from frame 0
            return None

    def open(self, stream: WaveStream) -> None:
        """Bring what all of the segment's pieces need to the device."""
        given = stream.model_input
        try:
            if self.paged is not None:
                stream.cache = self.paged.open(given.flow_prompt_tokens, given.prompt_mel, given.speaker)
                stream.prompt_mel, stream.speaker = stream.cache.voice.mel, stream.cache.voice.speaker
                return
        except EngineError:
            pass  # it comes back with the stream's first piece, if that is a chunk
        flow = self._models.flow
        device = flow.encoder_proj.weight.device
        stream.prompt_mel = send(torch.from_numpy(np.ascontiguousarray(given.prompt_mel, np.float32)), device)
        speaker = send(torch.from_numpy(np.array(given.speaker, np.float32)), device)
        with torch.inference_mode():
            stream.speaker = flow.project_speaker(speaker[None])[0].float()

    def close(self, stream: WaveStream) -> None:
        """Give the stream's memory back."""
        self._drop_cache(stream)
        stream.prompt_mel = stream.speaker = None

    def frames(self, work: Work) -> int:
        """Mel frames that the flow model computes for a piece, prompt included where that is not kept."""
        cache, item = work.stream.cache, work.item
        if cache is not None and cache.home is self.paged and item.call is not None:
            return cache.home.rows(cache, len(item.used), item.final)
        tokens = len(work.stream.model_input.flow_prompt_tokens) + len(item.used)
        return tokens * self._models.flow.cfg.token_mel_ratio

    def memory_bytes(self) -> int:
        """Of streams' pages and of graphs and buffers of all kept shapes."""
        pages = 0 if self.paged is None else self.paged.page_memory_bytes
        return pages + sum(programs.bytes() for programs in self.programs())

    def programs(self) -> list[Programs[Any]]:
        """All that keep shapes."""
        kept: list[Programs[Any]] = [self.flow.solver.programs, self.flow.encoders, self.vocoder.programs]
        return kept if self.paged is None else [*kept, self.paged.solver.programs]

    def clear(self) -> None:
        """Give back what can be made again, once the device has done with it."""
        if self.flow.device.type == "cuda":
            torch.cuda.synchronize(self.flow.device)
        self.flow.clear()
        self.vocoder.programs.clear()
        if self.paged is not None:
            self.paged.clear()

    # ------------------------------------------------------------------------------------------------- batch
    @torch.inference_mode()
    def start(self, works: Sequence[Work], tail_share: float = 0.0) -> Running:
        """Begin a batch: all of its work is on its way to the device. Raises device faults only.

        `tail_share` of the flow's steps are left when `Running.nearly_done` returns.
        """
        self.vocoder = self.backends.poll() or self.vocoder
        running = Running(works, Marks(self.flow.device))
        self._set_tail(Tail(math.ceil(tail_share * self._models.flow.cfg.n_timesteps), running.marks.near))
        for work in works:
            work.overflow, work.mel, work.pcm = "", None, None
        planned = [work for work in works if self._plan(work)]
        most = self._settings.max_batch
        for first in range(0, len(planned), most):
            self._divided(self._mels, planned[first : first + most])
        running.marks.add("flow")
        alive = [work for work in planned if work.error is None]
        for part in vocoder_parts(alive, most, vocoder_frames(self._settings.max_batch_frames)):
            self._divided(lambda works: self._sounds(works, running), part)
        running.marks.add("vocoder")
        return running

    @torch.inference_mode()
    def finish(self, running: Running) -> None:
        """Wait for a batch and fill in each work's sound or error. Raises device faults only."""
        self._read_all(running)
        bad = [work for work in running.works if work.overflow]
        if bad and self._give_up_half(bad):
            self._read_all(self.start(bad))
        for work in bad:
            if work.overflow and work.error is None:
                work.error = non_finite()

    def _set_tail(self, tail: Tail) -> None:
        self.flow.solver.tail = tail
        if self.paged is not None:
            self.paged.solver.tail = tail

    def _read_all(self, running: Running) -> None:
        seconds = running.marks.wait()
        for row in running.sounding:
            self._read(row)
        for work in running.works:
            for stage, value in seconds.items():
                work.seconds[stage] = work.seconds.get(stage, 0.0) + value

    def _plan(self, work: Work) -> bool:
        """Whether the lengths can be computed at all."""
        item, given = work.item, work.stream.model_input
        try:
            self._models.flow.check(
                len(item.used), len(given.flow_prompt_tokens), len(given.prompt_mel), finalize=item.final
            )
        except Exception as error:
            work.error = as_request_error(error)
        return work.error is None

    def _divided(self, stage: Callable[[list[Work]], None], works: list[Work]) -> None:
        """Run a stage. When it fails, for memory or else, the halves are tried: it shall hit the one it is due to."""
        try:
            stage(works)
            return
        except Exception as error:
            if is_device_fault(error):
                raise
            if is_out_of_memory(error):
                self.clear()
                self._on_memory(len(works))
            if len(works) == 1:
                if not is_out_of_memory(error):
                    logger.exception("A piece of speech cannot be made.")
                works[0].error = as_request_error(error)
                return
        middle = len(works) // 2  # outside of the except clause, whose traceback would keep memory
        self._divided(stage, works[:middle])
        self._divided(stage, works[middle:])

    # -------------------------------------------------------------------------------------------------- flow
    def _mels(self, works: list[Work]) -> None:
        paged = self.paged
        streamed = [] if paged is None else [work for work in works if work.item.call is not None]
        whole = [work for work in works if paged is None or work.item.call is None]
        if paged is not None and streamed:
            try:
                self._extend(paged, streamed)
            except Exception as error:  # Triton's errors share no base class
                if isinstance(error, SynthesisError) or not gives_way(error):
                    raise
                REPORT.drop("stream", "pages", "failed while serving", error, instead="the whole row")
                self._page_failures += 1
                self.paged = None if self._page_failures >= _MOST_PAGE_FAILURES else paged
                whole = works
        if whole:
            mels, unsound = self.flow.run([self._job(work) for work in whole])
            for work, mel, flag in zip(whole, mels, unsound.unbind()):
                work.mel, work.unsound = mel, flag

    def _offset(self, work: Work) -> int:
        """Generated mel frames that were turned into sound before."""
        return 0 if work.item.call is None else work.item.call.offset * self._models.flow.cfg.token_mel_ratio

    def _job(self, work: Work) -> FlowJob:
        item, stream = work.item, work.stream
        if stream.prompt_mel is None or stream.speaker is None:
            raise ValueError("the stream was not opened")
        tokens = np.concatenate((stream.model_input.flow_prompt_tokens, item.used)).astype(np.int64)
        first = len(stream.prompt_mel) + self._offset(work)
        return FlowJob(tokens, item.call is not None, item.final, stream.prompt_mel, stream.speaker, first)

    def _extend(self, paged: PagedFlow, works: list[Work]) -> None:
        caches = [self._cache(paged, work) for work in works]
        made = [paged.frames_made(cache) for cache in caches]
        new = [work.item.used[cache.given :] for work, cache in zip(works, caches)]
        mels, unsound = paged.extend(caches, new, [work.item.final for work in works])
        for work, mel, before, flag in zip(works, mels, made, unsound.unbind()):
            work.mel, work.unsound = mel[self._offset(work) - before :], flag

    def _cache(self, paged: PagedFlow, work: Work) -> PagedStream:
        """The stream's cache, a new one where it was given up or has gone another way than the sound."""
        stream, offset = work.stream, self._offset(work)
        cache = stream.cache
        if cache is not None and (cache.home is not paged or paged.frames_made(cache) > offset):
            self._drop_cache(stream)
        if stream.cache is None:
            given = stream.model_input
            stream.cache = paged.open(given.flow_prompt_tokens, given.prompt_mel, given.speaker)
        return stream.cache

    def _drop_cache(self, stream: WaveStream) -> None:
        if stream.cache is not None:
            stream.cache.home.close(stream.cache)
        stream.cache = None

    # ----------------------------------------------------------------------------------------------- vocoder
    def _sounds(self, works: list[Work], running: Running) -> None:
        """Start one row; pieces that a row cannot take are made one by one."""
        ready: list[Work] = []
        jobs: list[VocoderJob] = []
        readers: list[MelSpeed] = []
        for work in works:
            stream = work.stream.sound.stream
            if work.mel is None:
                raise ValueError("a piece without a mel")
            frames, reader = stream.paced(work.mel.t()[None], work.item.final)
            job = VocoderJob(frames[0].t(), stream.state, work.item.final, work.stream.seed)
            if fits_row(job):
                ready.append(work)
                jobs.append(job)
                readers.append(reader)
            else:
                self._alone(work, frames, reader)
        if not jobs:
            return
        pack, answer, states = self.vocoder.run(jobs)
        flags = [work.unsound for work in ready if work.unsound is not None]
        host = to_host(torch.cat((answer, torch.stack(flags).clamp_max(1).to(torch.int16))))
        running.sounding.append(_Sounding(ready, jobs, readers, states, pack, host))

    def _alone(self, work: Work, frames: Tensor, reader: MelSpeed) -> None:
        stream = work.stream.sound.stream
        if work.unsound is not None and int(work.unsound):
            work.overflow = "flow"
            return
        wave, state = stream.sound(frames, work.item.final)
        work.pcm = pcm(wave)
        stream.commit(reader, state)

    def _read(self, row: _Sounding) -> None:
        hop, count = self._models.vocoder.cfg.hop, len(row.works)
        values = row.answer.numpy()
        mel_bad = values[len(values) - count :]
        wave_bad = values[row.pack.rows * hop :][:count]
        for i, (work, job) in enumerate(zip(row.works, row.jobs)):
            if mel_bad[i] or wave_bad[i]:
                work.overflow = "flow" if mel_bad[i] else "vocoder"
                continue
            end = int(row.pack.ends[i]) - job.held
            work.pcm = values[int(row.pack.starts[i]) * hop : end * hop].copy()
            work.stream.sound.stream.commit(row.readers[i], row.states[i])

    # ------------------------------------------------------------------------------------------------ float32
    def _give_up_half(self, works: Sequence[Work]) -> bool:
        """Float32 for good where these works overflowed; whether there is anything to hope for from another try."""
        hope = False
        for work in works:
            hope |= work.stream.cache is not None  # what it holds may be the cause
            self._drop_cache(work.stream)
        stages = {work.overflow for work in works}
        if "flow" in stages and self._models.flow.encoder_proj.weight.dtype != torch.float32:
            self._models.give_up_half()
            self.flow = self._packed_flow()
            self.backends.detach("flow")
            self.paged = self._paged_flow()  # other streams' caches belong to the old one
            hope = True
        if "vocoder" in stages and self.vocoder.dtype != torch.float32:
            logger.warning("The vocoder overflowed in half precision; it runs in float32 from now on.")
            self.vocoder = self._packed_vocoder(torch.float32)
            self.backends.detach("vocoder")
            hope = True
        return hope

"""One batch through flow and vocoder on a GPU (`BatchedWave`): pieces of any kind together, waited for once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from inference.faults import as_request_error, is_device_fault, is_out_of_memory
from inference.runtime.flow_cache import IncrementalFlow
from inference.runtime.mel_speed import MelSpeed
from inference.runtime.packed_flow import FlowJob, PackedFlow
from inference.runtime.packed_vocoder import PackedVocoder, generator_error, make_generator
from inference.runtime.token_to_wave import TokenToWave, non_finite, pcm
from inference.runtime.vocoder_pack import VocoderJob, VocoderPack
from inference.runtime.vocoder_stream import VocoderState
from inference.runtime.wave_parts import VOCODER_FRAMES, Marks, fits_row, to_host, vocoder_parts
from inference.runtime.wave_stream import WaveStream, Work
from inference.settings import LaneSettings

logger = logging.getLogger(__name__)

# Relative error of the sound above which half-precision convolutions are not used; float16 gives about 1e-3.
GENERATOR_BOUND = 0.02


@dataclass
class _Sounding:
    """A vocoder row whose answer is on its way to the host."""

    works: list[Work]
    jobs: list[VocoderJob]
    readers: list[MelSpeed]
    states: list[VocoderState | None]
    pack: VocoderPack
    answer: Tensor  # int16, pinned


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
        self._sounding: list[_Sounding] = []
        self.flow = self._packed_flow()
        self.vocoder = self._packed_vocoder(generator_dtype)
        self.incremental = self._make_incremental()

    # ------------------------------------------------------------------------------------------------ models
    def _packed_flow(self) -> PackedFlow:
        settings = self._settings
        return PackedFlow(
            self._models.flow, settings.max_batch, graphs=settings.graphs, compiled=settings.compile
        )

    def _packed_vocoder(self, dtype: torch.dtype) -> PackedVocoder:
        settings, vocoder = self._settings, self._models.vocoder
        generator = make_generator(vocoder, dtype, settings.compile)
        if dtype != torch.float32:
            error = generator_error(vocoder, generator)
            if not error <= GENERATOR_BOUND:  # NaN counts as broken
                logger.warning("The vocoder is unsound in %s (error %.3g); it runs in float32.", dtype, error)
                generator = make_generator(vocoder, torch.float32, settings.compile)
        return PackedVocoder(vocoder, settings.max_batch, generator=generator, graphs=settings.graphs)

    def _make_incremental(self) -> IncrementalFlow | None:
        budget = self._settings.flow_cache_bytes
        if budget <= 0:
            return None
        return IncrementalFlow(self._models.flow, budget, together=True, graphs=self._settings.graphs)

    def open(self, stream: WaveStream) -> None:
        """Bring what all of the segment's chunks need to the device."""
        given, flow = stream.model_input, self._models.flow
        device = flow.encoder_proj.weight.device
        stream.prompt_mel = torch.from_numpy(np.ascontiguousarray(given.prompt_mel, np.float32)).to(device)
        speaker = torch.from_numpy(np.asarray(given.speaker, np.float32)).to(device)
        with torch.inference_mode():
            stream.speaker = flow.project_speaker(speaker[None])[0].float()

    def close(self, stream: WaveStream) -> None:
        if stream.cache is not None and self.incremental is not None:
            self.incremental.close(stream.cache)
        stream.cache = stream.prompt_mel = stream.speaker = None

    def memory_bytes(self) -> int:
        """Of streams' caches and of the buffers of all kept shapes."""
        kept = (self.flow.solver.programs, self.flow.encoders, self.vocoder.programs)
        caches = 0 if self.incremental is None else self.incremental.memory_bytes
        return caches + sum(programs.bytes() for programs in kept)

    def clear(self) -> None:
        """Give back what can be made again."""
        self.flow.clear()
        self.vocoder.programs.clear()
        if self.incremental is not None:
            self.incremental.clear()

    # ------------------------------------------------------------------------------------------------- batch
    @torch.inference_mode()
    def run(self, works: Sequence[Work]) -> None:
        """Fill in each work's sound or error. Raises device faults only."""
        self._through(works)
        bad = [work for work in works if work.overflow]
        if bad and self._give_up_half(bad):
            self._through(bad)
        for work in bad:
            if work.overflow and work.error is None:
                work.error = non_finite()

    def _through(self, works: Sequence[Work]) -> None:
        marks = Marks(self.flow.device)
        for work in works:
            work.overflow, work.mel, work.pcm = "", None, None
        planned = [work for work in works if self._plan(work)]
        if planned:
            self._divided(self._mels, planned)
        marks.add("flow")
        alive = [work for work in planned if work.error is None]
        for part in vocoder_parts(alive, min(VOCODER_FRAMES, self._settings.max_batch_frames // 2)):
            self._divided(self._sounds, part)
        marks.add("vocoder")
        seconds = marks.wait()
        sounding, self._sounding = self._sounding, []
        for row in sounding:
            self._read(row)
        for work in works:
            for stage, value in seconds.items():
                work.seconds[stage] = work.seconds.get(stage, 0.0) + value

    def _plan(self, work: Work) -> bool:
        """Whether the lengths can be computed at all."""
        item, given = work.item, work.stream.model_input
        lengths = (len(item.used), len(given.flow_prompt_tokens), len(given.prompt_mel))
        try:
            self._models.flow.plan(*(torch.tensor([length]) for length in lengths), finalize=item.final)
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
        cached = [work for work in works if self._has_cache(work)]
        plain = [work for work in works if work.stream.cache is None]  # as `_has_cache` left it
        if cached and self.incremental is not None:
            self._extend(self.incremental, cached)
        if plain:
            mels, unsound = self.flow.run([self._job(work) for work in plain])
            for work, mel, flag in zip(plain, mels, unsound.unbind()):
                work.mel, work.unsound = mel, flag

    def _job(self, work: Work) -> FlowJob:
        item, stream = work.item, work.stream
        if stream.prompt_mel is None or stream.speaker is None:
            raise ValueError("the stream was not opened")
        offset = 0 if item.call is None else item.call.offset * self._models.flow.cfg.token_mel_ratio
        tokens = np.concatenate((stream.model_input.flow_prompt_tokens, item.used)).astype(np.int64)
        first = len(stream.prompt_mel) + offset
        return FlowJob(tokens, item.call is not None, item.final, stream.prompt_mel, stream.speaker, first)

    def _has_cache(self, work: Work) -> bool:
        """Open a cache for a stream's first chunk; one that is used up or has nowhere to go is given back."""
        stream, call = work.stream, work.item.call
        if self.incremental is None or call is None:
            stream.cache = None
            return False
        if stream.cache is None and call.offset == 0 and not call.final:
            given = stream.model_input
            stream.cache = self.incremental.open(given.flow_prompt_tokens, given.prompt_mel, given.speaker)
        if stream.cache is not None and stream.cache.lost:
            self._drop_cache(stream)
        return stream.cache is not None

    def _drop_cache(self, stream: WaveStream) -> None:
        if stream.cache is not None and self.incremental is not None:
            self.incremental.close(stream.cache)
        stream.cache = None

    def _extend(self, incremental: IncrementalFlow, works: list[Work]) -> None:
        caches = [work.stream.cache for work in works if work.stream.cache is not None]
        new = [
            torch.tensor(work.item.used[cache.given :], dtype=torch.int64)
            for work, cache in zip(works, caches)
        ]
        try:
            mels = incremental.extend(caches, new, [work.item.final for work in works])
        except Exception:
            for work in works:  # half done, perhaps: these streams go on without
                self._drop_cache(work.stream)
            raise
        for work, mel in zip(works, mels):
            work.mel = mel[0].t()
            work.unsound = (~torch.isfinite(mel)).any().int()

    # ----------------------------------------------------------------------------------------------- vocoder
    def _sounds(self, works: list[Work]) -> None:
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
        self._sounding.append(_Sounding(ready, jobs, readers, states, pack, host))

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
            self.incremental = None  # all streams' caches hold half-precision values
            hope = True
        if "vocoder" in stages and self.vocoder.dtype != torch.float32:
            logger.warning("The vocoder overflowed in half precision; it runs in float32 from now on.")
            self.vocoder = self._packed_vocoder(torch.float32)
            hope = True
        return hope

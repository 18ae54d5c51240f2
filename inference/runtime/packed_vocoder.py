"""The vocoder for a batch of any pieces at once: first, later and last ones of streams, and whole segments.

What `vocoder_stream.step` does for one piece, on a packed row (see `vocoder_pack`): F0, source with running phases,
convolutions, inverse Fourier transform, cross-fade and conversion to int16, with nothing that waits for the device. The
convolutions may run in half precision; everything else is float32 (SPEC 8).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from inference.models.counter_noise import counter_normal
from inference.models.vocoder import Vocoder
from inference.runtime.captured import Programs
from inference.runtime.frame_pack import upload
from inference.runtime.vocoder_pack import (
    GAP,
    SPARE,
    VocoderBuffers,
    VocoderJob,
    VocoderLayout,
    VocoderPack,
)
from inference.runtime.vocoder_stream import OVERLAP_FRAMES, VocoderState, fade_window

FULL_SCALE = 32768
_SHAPES = 32  # kept at most


class PackedVocoder:
    """Batched vocoder. Used from one thread, on one stream. `generator`: see `vocoder_generator`."""

    def __init__(
        self, vocoder: Vocoder, most_items: int, *, generator: Vocoder | None = None, graphs: bool = False
    ) -> None:
        self.vocoder = vocoder
        self.generator = generator or vocoder
        self.cfg = vocoder.cfg
        self.device = vocoder.conv_pre.weight.device
        self._most_items = most_items
        self.programs: Programs[VocoderBuffers] = Programs(self.device, _SHAPES, graphs)
        self._rising, self._falling = (
            window.view(OVERLAP_FRAMES, -1)
            for window in fade_window(OVERLAP_FRAMES * self.cfg.hop, False, self.device)
        )
        # Behind the last frame's centre the phases head for a frame that only now is known.
        known = torch.arange(OVERLAP_FRAMES * self.cfg.hop, device=self.device)
        self._known = (known < OVERLAP_FRAMES * self.cfg.hop - self.cfg.hop // 2).view(OVERLAP_FRAMES, -1)

    @property
    def dtype(self) -> torch.dtype:
        """Of the convolutions."""
        return self.generator.conv_pre.weight.dtype

    @torch.inference_mode()
    def run(self, jobs: Sequence[VocoderJob]) -> tuple[VocoderPack, Tensor, list[VocoderState | None]]:
        """Start the batch: its layout, `answer` (see `VocoderBuffers`, good until the next run) and the new states."""
        pack = VocoderPack(jobs, self._most_items)
        cfg, rows = self.cfg, pack.rows
        program = self.programs.get(
            rows,
            lambda: VocoderBuffers.make(
                rows, self._most_items, cfg.hop, cfg.mel_bins, cfg.nb_harmonics + 1, self.device
            ),
            self._body,
        )
        buffers = program.buffers
        self._fill(buffers, pack, jobs)
        program.run()
        return pack, buffers.answer, self._states(buffers, pack, jobs)

    # ------------------------------------------------------------------------------------- around the graph
    def _fill(self, b: VocoderBuffers, pack: VocoderPack, jobs: Sequence[VocoderJob]) -> None:
        b.table.copy_(upload(pack.table, self.device), non_blocking=True)
        gap = b.mel.new_zeros(GAP, b.mel.shape[1])
        parts: list[Tensor] = [gap]
        for job in jobs:
            parts += ([] if job.state is None else [job.state.mel[0].t()]) + [job.mel, gap]
        joined = torch.cat(parts)
        b.mel[: len(joined)].copy_(joined)
        b.mel[len(joined) :].zero_()
        if all(job.state is None for job in jobs):
            return
        hop, harmonics = self.cfg.hop, b.old_cycles.shape[1]
        nothing, no_cycles = b.mel.new_zeros(OVERLAP_FRAMES * hop), b.mel.new_zeros(harmonics)
        states = [job.state for job in jobs]
        sources = [nothing if s is None else s.source.flatten() for s in states]
        speech = [nothing if s is None else s.speech.flatten() for s in states]
        cycles = [no_cycles if s is None or s.cycles is None else s.cycles.flatten() for s in states]
        count = len(jobs)
        b.old_source[:count].copy_(torch.stack(sources).view(count, OVERLAP_FRAMES, hop))
        b.old_speech[:count].copy_(torch.stack(speech).view(count, OVERLAP_FRAMES, hop))
        b.old_cycles[:count].copy_(torch.stack(cycles))

    def _states(
        self, b: VocoderBuffers, pack: VocoderPack, jobs: Sequence[VocoderJob]
    ) -> list[VocoderState | None]:
        """The last frames of all items are copied out of the buffers together."""
        ends = VocoderLayout.of(b.table, pack.rows, pack.most_items).ends[: len(jobs)]
        tail = (ends[:, None] + torch.arange(-OVERLAP_FRAMES, 0, device=ends.device)).clamp_min(0).flatten()
        count = len(jobs)
        mels = b.mel.index_select(0, tail).view(count, OVERLAP_FRAMES, -1).transpose(1, 2)
        sources = b.source.index_select(0, tail).view(count, 1, 1, -1)
        speech = b.wave.index_select(0, tail).view(count, 1, -1)
        cycles = b.cycles.index_select(0, ends - 1)[:, None]
        states: list[VocoderState | None] = []
        for i, job in enumerate(jobs):
            if job.final:
                states.append(None)
                continue
            first = 0 if job.state is None else job.state.frame
            frame = first + job.frames - OVERLAP_FRAMES
            states.append(VocoderState(mels[i : i + 1], sources[i], speech[i], cycles[i], frame))
        return states

    # ---------------------------------------------------------------------------------------- in the graph
    def _body(self, b: VocoderBuffers) -> None:
        where = VocoderLayout.of(b.table, len(b.mel), len(b.old_cycles))
        overlap = where.starts[:, None] + torch.arange(OVERLAP_FRAMES, device=self.device)
        spare = torch.arange(len(b.mel) - SPARE, len(b.mel), device=self.device)
        overlap = torch.where(where.continued[:, None], overlap, spare).flatten()
        mel = b.mel.t()[None]
        source = self._source(b, where, mel, overlap)
        b.source.copy_(source)
        spectrum = self._convolve(mel, self._excitation(source, where), where)
        fourier_frames = self._spread_mask(where.inside, self.cfg.hop // self.cfg.istft_hop, closed=True)
        wave = self.vocoder.invert(spectrum, fourier_frames).view(len(b.mel), self.cfg.hop)
        self._cross_fade(wave, b, where, overlap)
        b.wave.copy_(wave)
        unsound = (where.inside & ~torch.isfinite(wave).all(dim=1)).int()
        flags = torch.zeros(len(b.old_cycles), dtype=torch.int32, device=self.device)
        flags.index_add_(0, where.item, unsound)
        sound = (wave * FULL_SCALE).to(torch.int16).flatten()
        b.answer.copy_(torch.cat((sound, (flags > 0).to(torch.int16))))

    def _source(self, b: VocoderBuffers, where: VocoderLayout, mel: Tensor, overlap: Tensor) -> Tensor:
        """(rows, hop); writes the phases."""
        hop, module = self.cfg.hop, self.vocoder.m_source
        f0 = self.vocoder.f0_predictor(mel, where.inside[None, None])
        f0 = torch.where(torch.isfinite(f0), f0, 0.0)  # the sum below runs on into the next item
        steps = module.frame_turns(f0)[0] * hop
        total = steps.double().cumsum(dim=0)
        anchor = where.starts - 1 + where.continued * OVERLAP_FRAMES
        offset = b.old_cycles.double() * where.continued[:, None] - total.index_select(0, anchor)
        cycles = torch.remainder(total + offset.index_select(0, where.item), 1.0).float()
        before, after = self._slopes(steps, where)
        first = (where.numbers.index_select(0, where.item) + where.place) * hop
        noise = counter_normal(where.seeds.index_select(0, where.item), first, hop).view(1, -1)
        source = module.render(f0, cycles[None], before[None], after[None], noise).view(-1, hop)
        kept = self._known & where.continued[:, None, None]
        new = source.index_select(0, overlap).view_as(b.old_source)
        source.index_copy_(0, overlap, torch.where(kept, b.old_source, new).flatten(0, 1))
        b.cycles.copy_(cycles)
        return source

    @staticmethod
    def _slopes(steps: Tensor, where: VocoderLayout) -> tuple[Tensor, Tensor]:
        """Cycles to the frame before and behind; phases rest outside of a stream's first and last frame."""
        row = torch.arange(len(steps), device=steps.device)
        begins = (where.place == 0) & ~where.continued.index_select(0, where.item)
        ends = row == where.ends.index_select(0, where.item) - 1
        before = torch.where(begins[:, None], 0.0, steps)
        behind = torch.cat((steps[1:], steps[-1:]))
        goes_on = where.open_end.index_select(0, where.item)[:, None]
        return before, torch.where(ends[:, None], steps * goes_on, behind)

    def _excitation(self, source: Tensor, where: VocoderLayout) -> Tensor:
        """(1, 18, 120 * rows + 1): the source's spectrum, reflected at each item's own edges."""
        fourier, hop = self.vocoder.fourier, self.cfg.hop
        edge = fourier.n_fft // 2
        away = torch.arange(1, edge + 1, device=source.device)
        first, last = where.starts[:, None] * hop, where.ends[:, None] * hop - 1
        outside = torch.cat((first - away, last + away), dim=1).flatten()
        mirrored = torch.cat((first + away, last - away), dim=1).flatten()
        signal = source.flatten().index_copy(0, outside, source.flatten().index_select(0, mirrored))
        frames = F.pad(signal, (edge, edge)).unfold(0, fourier.n_fft, fourier.hop)
        return (frames @ fourier.analysis).t()[None]

    def _convolve(self, mel: Tensor, excitation: Tensor, where: VocoderLayout) -> Tensor:
        rates, scale = self.cfg.upsample_rates, 1
        masks: list[Tensor | None] = [where.inside[None, None]]
        for stage, rate in enumerate(rates):
            scale *= rate
            masks.append(self._spread_mask(where.inside, scale, closed=stage == len(rates) - 1))

        def lengthen(x: Tensor) -> Tensor:
            first = where.starts * scale
            return F.pad(x, (1, 0)).index_copy(2, first, x.index_select(2, first + 1))

        return self.generator.convolve(mel.to(self.dtype), excitation.to(self.dtype), masks, lengthen)

    @staticmethod
    def _spread_mask(inside: Tensor, times: int, closed: bool) -> Tensor:
        """(1, 1, times * rows): `times` positions a frame; `closed`: one more, and each item's end belongs to it."""
        fine = inside.repeat_interleave(times)[None, None]
        return F.pad(fine, (0, 1)) | F.pad(fine, (1, 0)) if closed else fine

    def _cross_fade(self, wave: Tensor, b: VocoderBuffers, where: VocoderLayout, overlap: Tensor) -> None:
        new = wave.index_select(0, overlap).view_as(b.old_speech)
        faded = new * self._rising + b.old_speech * self._falling
        kept = torch.where(where.continued[:, None, None], faded, new)
        wave.index_copy_(0, overlap, kept.flatten(0, 1))

"""The packed vocoder on Triton's kernels (`FusedVocoder`), in the place of `PackedVocoder` on CUDA.

A run is one upload of a table (layout and addresses of what the streams bring), one captured graph of some 55 kernels
and one copy of the streams' new states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor

from inference.models.vocoder import Vocoder
from inference.runtime.backend_spare import Spare, gives_way
from inference.runtime.captured import Programs
from inference.runtime.frame_pack import Ints, upload
from inference.runtime.kernel_build import Variant, recorded
from inference.runtime.packed_vocoder import PackedVocoder
from inference.runtime.vocoder_convolve import FusedConvolutions, TileChoice
from inference.runtime.vocoder_ends import FusedEnds
from inference.runtime.vocoder_pack import GAP, VocoderJob, VocoderPack, table_size
from inference.runtime.vocoder_stream import OVERLAP_FRAMES, VocoderState
from inference.runtime.vocoder_tiles import FEW_ROWS, SOME_ROWS, tile_for

_SHAPES = 32  # kept at most
_ADDRESSES = 5  # of an item: new mel, and its state's mel, source, sound, phases
_PHASES = 16  # room for an item's phases in a slab


class FusedPack(VocoderPack):
    """A `VocoderPack` whose table ends with addresses of the items' float32 tensors; `kept`: copies made for it."""

    def __init__(self, jobs: Sequence[VocoderJob], most_items: int, nothing: Tensor) -> None:
        super().__init__(jobs, most_items)
        self.kept: list[Tensor] = []
        addresses = np.full((_ADDRESSES, most_items), nothing.data_ptr(), dtype=np.int64)
        for number, job in enumerate(jobs):
            addresses[0, number] = self._address(job.mel)
            if job.state is not None:
                state = job.state
                addresses[1, number] = self._address(state.mel[0].t())
                addresses[2, number] = self._address(state.source)
                addresses[3, number] = self._address(state.speech)
                if state.cycles is not None:
                    addresses[4, number] = self._address(state.cycles)
        self.table = np.concatenate((self.table, addresses.ravel()))

    @staticmethod
    def used(lengths: Sequence[int]) -> int:
        """Rows that items of these lengths take: neither a gap behind the last nor spare rows are needed."""
        return sum(length + GAP for length in lengths)

    def nobody(self) -> Ints:
        """What is no item has no rows."""
        return np.zeros((2, 1), dtype=np.int64)

    def _address(self, values: Tensor) -> int:
        if values.dtype != torch.float32 or not values.is_contiguous():
            values = values.float().contiguous()
            self.kept.append(values)
        return values.data_ptr()


@dataclass
class FusedBuffers:
    """Inputs and outputs of a run over `rows` frames; addresses stay the same from run to run."""

    table: Tensor  # int64
    flags: Tensor  # (rows + 2,) int8
    mel: Tensor  # (rows, bins)
    source: Tensor  # (rows, hop)
    wave: Tensor  # (rows, hop)
    cycles: Tensor  # (rows, harmonics)
    slab: Tensor  # (most_items, …): new states
    answer: Tensor  # int16: the sound (rows * hop), then for each item 1 if it is not finite


class FusedVocoder:
    """Like `PackedVocoder`, with half-precision convolutions. Used from one thread, on one stream.

    `spare` is what goes on, from the very batch on in which a kernel fails; until it is set errors get out.
    Raises `ImportError` without Triton and `ValueError` for sizes that the kernels are not made for.
    """

    def __init__(
        self,
        vocoder: Vocoder,
        most_items: int,
        *,
        graphs: bool = False,
        tiles: TileChoice = tile_for,
    ) -> None:
        self.cfg = vocoder.cfg
        self.device = vocoder.conv_pre.weight.device
        self.convolutions = FusedConvolutions(vocoder, tiles)
        self.dtype = self.convolutions.dtype
        self.ends = FusedEnds(vocoder, most_items)
        self.programs: Programs[FusedBuffers] = Programs(self.device, _SHAPES, graphs)
        self._most_items = most_items
        self._nothing = torch.zeros(_PHASES, device=self.device)
        self.spare: Spare[PackedVocoder] | None = None
        self._instead: PackedVocoder | None = None

    @property
    def usable(self) -> bool:
        """Whether no kernel has failed while serving."""
        return self._instead is None

    def run(self, jobs: Sequence[VocoderJob]) -> tuple[VocoderPack, Tensor, list[VocoderState | None]]:
        """Start the batch: its layout, `answer` (see `FusedBuffers`, good until the next run) and the new states."""
        other = self._instead
        if other is None:
            try:
                return self._run(jobs)
            except Exception as error:  # Triton's errors share no base class
                if self.spare is None or not gives_way(error):
                    raise
                other = self.spare.take_over(error)
            self._give_way_to(other)
        return other.run(jobs)

    def _give_way_to(self, other: PackedVocoder) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # a batch before this one may still run the graphs
        self.programs.clear()
        self._instead, self.dtype = other, other.dtype
        self.programs = cast("Programs[FusedBuffers]", other.programs)  # what others count, clear and ask

    @torch.inference_mode()
    def _run(self, jobs: Sequence[VocoderJob]) -> tuple[VocoderPack, Tensor, list[VocoderState | None]]:
        pack = FusedPack(jobs, self._most_items, self._nothing)
        program = self.programs.get(pack.rows, lambda: self._make(pack.rows), self._body)
        buffers = program.buffers
        buffers.table.copy_(upload(pack.table, self.device), non_blocking=True)
        program.run()
        return pack, buffers.answer, self._states(buffers, jobs)

    @torch.inference_mode()
    def kernel_variants(self) -> list[Variant]:
        """The kernels that packed rows of any length need (see `kernel_build`)."""

        def work() -> None:
            backend = FusedSpectrum(self.convolutions, self.ends)
            backend(torch.zeros(1, self.cfg.mel_bins, 8, device=self.device), self._silence(8))
            for rows in (FEW_ROWS, SOME_ROWS, 2 * SOME_ROWS):  # one of each size class
                self._body(self._make(rows))

        return recorded(work)

    def _silence(self, frames: int) -> Tensor:
        count = frames * self.cfg.hop // self.cfg.istft_hop + 1
        return torch.zeros(1, 2 * self.ends.bins, count, device=self.device)

    def _make(self, rows: int) -> FusedBuffers:
        cfg, device = self.cfg, self.device
        held = OVERLAP_FRAMES * (cfg.mel_bins + 2 * cfg.hop) + _PHASES
        scratch = self.programs.scratch
        size = table_size(rows, self._most_items) + _ADDRESSES * self._most_items
        return FusedBuffers(
            table=scratch.zeros("table", size, dtype=torch.int64),
            flags=torch.zeros(rows + 2, dtype=torch.int8, device=device),  # the first and the last stay zero
            mel=scratch.zeros("mel", rows, cfg.mel_bins),
            source=scratch.zeros("source", rows, cfg.hop),
            wave=scratch.zeros("wave", rows, cfg.hop),
            cycles=scratch.zeros("cycles", rows, cfg.nb_harmonics + 1),
            slab=scratch.zeros("slab", self._most_items, held),
            answer=scratch.zeros("answer", rows * cfg.hop + self._most_items, dtype=torch.int16),
        )

    def _body(self, b: FusedBuffers) -> None:
        ends, convolutions = self.ends, self.convolutions
        halves = ends.gather(b.table, b.mel, b.flags)
        f0 = ends.classify(convolutions.pitch(halves, b.flags), b.flags)
        ends.excite(b.table, f0, b.cycles, b.source)
        excitation = ends.analyse(b.table, b.flags, b.source, self.dtype)
        hidden = convolutions.hidden(halves, excitation, b.flags)
        parts = ends.spectrum(hidden, b.flags, sound=True)
        ends.finish(b.table, b.flags, parts, b.mel, b.source, b.wave, b.cycles, b.answer, b.slab)

    def _states(self, b: FusedBuffers, jobs: Sequence[VocoderJob]) -> list[VocoderState | None]:
        """All states are views of one copy."""
        if all(job.final for job in jobs):
            return [None] * len(jobs)
        bins, held = self.cfg.mel_bins, OVERLAP_FRAMES * self.cfg.hop
        copied = b.slab[: len(jobs)].clone()
        mel, source, speech, cycles = copied.split((OVERLAP_FRAMES * bins, held, held, _PHASES), dim=1)
        parts = zip(
            jobs,
            mel.unflatten(1, (OVERLAP_FRAMES, bins)).transpose(1, 2)[:, None].unbind(),
            source[:, None, None].unbind(),
            speech[:, None].unbind(),
            cycles[:, None, : self.cfg.nb_harmonics + 1].unbind(),
        )
        states: list[VocoderState | None] = []
        for job, job_mel, job_source, job_speech, job_cycles in parts:
            first = 0 if job.state is None else job.state.frame
            state = VocoderState(
                job_mel, job_source, job_speech, job_cycles, first + job.frames - OVERLAP_FRAMES
            )
            states.append(None if job.final else state)
        return states


class FusedSpectrum:
    """A `SpectrumBackend` on the same kernels: the convolutions of items of one length."""

    def __init__(self, convolutions: FusedConvolutions, ends: FusedEnds) -> None:
        self.convolutions, self.ends = convolutions, ends

    @staticmethod
    def of(vocoder: Vocoder, tiles: TileChoice = tile_for) -> FusedSpectrum:
        """With weights of its own. Raises as `FusedVocoder` does."""
        return FusedSpectrum(FusedConvolutions(vocoder, tiles), FusedEnds(vocoder, 1))

    @torch.inference_mode()
    def __call__(self, mel: Tensor, excitation: Tensor) -> Tensor:
        """mel (B, 80, T), source spectrum (B, 18, 120*T + 1) float32 → (B, 18, 120*T + 1) float32."""
        items, _, length = mel.shape
        starts, rows, flags = self.ends.layout(items, length, mel.device)
        halves, spectrum = self.ends.spread(mel, excitation, starts, rows, self.convolutions.dtype)
        found = self.ends.spectrum(self.convolutions.hidden(halves, spectrum, flags), flags, sound=False)
        return self.ends.collect(found, starts, length)

    @torch.inference_mode()
    def f0(self, mel: Tensor) -> Tensor:
        """mel (B, 80, T) → F0 (B, T) in Hz."""
        items, bins, length = mel.shape
        starts, rows, flags = self.ends.layout(items, length, mel.device)
        nothing = mel.new_zeros(items, 2 * self.ends.bins, 1)
        halves, _ = self.ends.spread(mel, nothing, starts, rows, self.convolutions.dtype)
        found = self.ends.classify(self.convolutions.pitch(halves, flags), flags)
        return found[starts[:, None] + torch.arange(length, device=mel.device)]

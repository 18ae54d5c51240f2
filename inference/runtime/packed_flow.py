"""Token-to-mel for a batch of any items at once: segments and chunks, first, later and last, of any lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from inference.models.flow import FlowModel
from inference.models.flow_encoder import relative_positions
from inference.models.masks import MixedVisibility, mixed_visibility, valid_positions
from inference.runtime.backend_spare import Spare
from inference.runtime.captured import Programs
from inference.runtime.frame_pack import GAP, FramePack, Ints, PackedMel, block_count, bucket, upload
from inference.runtime.packed_attention import PackedAttention, choose_attention
from inference.runtime.packed_solver import PackedSolver
from inference.runtime.packed_state import PackedStep, SolverBuffers
from inference.runtime.packed_velocity import PackedVelocity
from inference.runtime.paged_layout import most_items
from inference.runtime.velocity_choice import choose_step

_ENCODER_SHAPES = 96  # kept at most
_ENCODER_SCORES = 1 << 21  # tokens of a row, squared, times rows
_SCORES_AN_ITEM = 1 << 17  # of a lane for few


@dataclass(frozen=True)
class FlowJob:
    """One item.

    `tokens` (n,): prompt and generated ones. `causal`: chunk by chunk; `finalize`: no more tokens follow (else the last
    ones only serve as look-ahead). `prompt_mel` (F, 80) and `speaker` (80,), projected, are float32 on the device.
    `first`: the frame, prompt included, from which on the mel is wanted.
    """

    tokens: Ints
    causal: bool
    finalize: bool
    prompt_mel: Tensor
    speaker: Tensor
    first: int


@dataclass
class EncoderBuffers:
    """Inputs and output of the encoder for one padded shape."""

    ids: Tensor  # (B, N) int64
    given: Tensor  # (B,) int64: tokens
    made: Tensor  # (B,) int64: tokens that become frames
    causal: Tensor  # (B,) bool
    mu: Tensor  # (B, 2N, 80) float32


class PackedFlow:
    """The flow model, batched without padding but for the (cheap) encoder. Used from one thread, on one stream.

    `most_items` bounds a batch. Results differ from `FlowModel.inference` by rounding only.
    """

    def __init__(
        self, flow: FlowModel, most_items: int, *, graphs: bool = False, compiled: bool = False
    ) -> None:
        self.flow = flow
        self.most_items = most_items
        self.device = flow.encoder_proj.weight.device
        self._chunk = flow.cfg.estimator.chunk_frames
        dtype = flow.encoder_proj.weight.dtype
        attention = choose_attention(self.device, dtype, flow.cfg.estimator.attention_head_dim)
        self.attention_name = getattr(attention, "__name__", str(attention))
        step, self.velocity_name = choose_step(flow, attention, compiled=compiled)
        self.weights = step.weights  # as rows of streams want them, too
        self.solver = PackedSolver(
            step, flow.cfg, dtype, self.device, graphs=graphs, spare=self._spare(attention)
        )
        self.encoders: Programs[EncoderBuffers] = Programs(self.device, _ENCODER_SHAPES, graphs)

    def _spare(self, attention: PackedAttention) -> Spare[PackedStep] | None:
        if self.velocity_name != "kernels":
            return None
        flow = self.flow
        return Spare("flow", "triton", lambda: PackedVelocity(flow.decoder.estimator, flow.cfg, attention))

    def clear(self) -> None:
        """Give graphs and buffers back."""
        self.solver.programs.clear()
        self.encoders.clear()

    def frames(self, job: FlowJob) -> int:
        """Mel frames that are made, prompt included."""
        kept = len(job.tokens) - (0 if job.finalize else self.flow.cfg.pre_lookahead)
        return kept * self.flow.cfg.token_mel_ratio

    @torch.inference_mode()
    def run(self, jobs: Sequence[FlowJob]) -> tuple[list[Tensor], Tensor]:
        """The wanted frames of each job, (M, 80) float32, and (n,) int32: above 0 where a mel is not finite.

        Nothing waits for the device. The caller has checked lengths (`FlowModel.plan`).
        """
        lengths = [self.frames(job) for job in jobs]
        mu = self.encode(jobs)
        items = [PackedMel(length, job.causal) for job, length in zip(jobs, lengths)]
        rows = bucket(sum(lengths) + GAP * len(items))
        while self._most_items(rows) < len(items):
            rows = bucket(2 * rows)
        pack = FramePack(items, self._most_items(rows), self._chunk, rows)
        buffers = self.solver.begin(pack)
        self._conditions(buffers, mu, jobs)
        x = self.solver.solve()
        layout = buffers.layout
        unsound = (layout.inside & ~torch.isfinite(x).all(dim=1)).int()
        count = torch.zeros(len(jobs), dtype=torch.int32, device=self.device)
        count.index_add_(0, layout.item, unsound)
        return self._wanted(x, pack, jobs, lengths), count

    def _wanted(
        self, x: Tensor, pack: FramePack, jobs: Sequence[FlowJob], lengths: Sequence[int]
    ) -> list[Tensor]:
        parts = [
            np.arange(start + job.first, start + length)
            for start, job, length in zip(pack.starts, jobs, lengths)
        ]
        rows = upload(np.concatenate(parts).astype(np.int32), self.device)
        return list(x.index_select(0, rows).split([len(part) for part in parts]))

    def _conditions(self, buffers: SolverBuffers, mu: Tensor, jobs: Sequence[FlowJob]) -> None:
        """Fill the static half: mu, speaker and prompt mel of each frame, side by side."""
        layout = buffers.layout
        frames = np.array([len(job.prompt_mel) for job in jobs])
        table = upload(np.stack((frames, np.cumsum(frames) - frames)).astype(np.int32), self.device)
        prompts = torch.cat([mu.new_zeros(1, mu.shape[2]), *(job.prompt_mel for job in jobs)])
        count, offset = table.index_select(1, layout.item)
        prompt_rows = torch.where(layout.place < count, offset + layout.place + 1, 0)
        parts = (
            mu.flatten(0, 1).index_select(0, layout.item * mu.shape[1] + layout.place),
            torch.stack([job.speaker for job in jobs]).index_select(0, layout.item),
            prompts.index_select(0, prompt_rows),
        )
        buffers.static[0].copy_(torch.cat(parts, dim=1))

    # ---------------------------------------------------------------------------------------------- encoder
    def encode(self, jobs: Sequence[FlowJob]) -> Tensor:
        """(≥ B, 2N, 80) float32, padded; arbitrary behind an item's end."""
        rows, size = encoder_shape(len(jobs), max(len(job.tokens) for job in jobs), self.most_items)
        if rows >= len(jobs):
            return self._encode(jobs, rows, size)
        parts = [jobs[first : first + rows] for first in range(0, len(jobs), rows)]
        return torch.cat([self._encode(part, rows, size)[: len(part)].clone() for part in parts])

    def _encode(self, jobs: Sequence[FlowJob], rows: int, size: int) -> Tensor:
        ids = np.zeros((rows, size + 3), dtype=np.int64)
        ids[:, size] = ids[:, size + 1] = 1  # a row without an item still has one token
        for row, job in zip(ids, jobs):
            row[: len(job.tokens)] = job.tokens
            row[size] = len(job.tokens)
            row[size + 1] = self.frames(job) // self.flow.cfg.token_mel_ratio
            row[size + 2] = job.causal
        program = self.encoders.get((rows, size), lambda: self._make(rows, size), self._run_encoder)
        table = upload(ids, self.device)
        buffers = program.buffers
        buffers.ids.copy_(table[:, :size])
        for target, column in zip((buffers.given, buffers.made, buffers.causal), table[:, size:].unbind(1)):
            target.copy_(column)
        program.run()
        return buffers.mu

    @torch.inference_mode()
    def prepare_encoder(self, rows: int, size: int) -> None:
        """Capture the encoder for one of `encoder_shape`'s shapes."""
        self.encoders.prepare((rows, size), lambda: self._make(rows, size), self._run_encoder)

    @torch.inference_mode()
    def prepare(self, rows: int) -> None:
        """Capture the solver for one of `bucket`'s lengths."""
        self.solver.prepare(rows, block_count(rows, self._most_items(rows), self._chunk))

    def _most_items(self, rows: int) -> int:
        return most_items(rows, self.most_items)

    def _make(self, rows: int, size: int) -> EncoderBuffers:
        device, cfg = self.device, self.flow.cfg
        return EncoderBuffers(
            ids=torch.zeros(rows, size, dtype=torch.int64, device=device),
            given=torch.ones(rows, dtype=torch.int64, device=device),
            made=torch.ones(rows, dtype=torch.int64, device=device),
            causal=torch.zeros(rows, dtype=torch.bool, device=device),
            mu=torch.zeros(rows, size * cfg.token_mel_ratio, cfg.mel_bins, device=device),
        )

    def _run_encoder(self, b: EncoderBuffers) -> None:
        b.mu.copy_(encode_mixed(self.flow, b.ids, b.given, b.made, b.causal))


def encoder_shape(items: int, tokens: int, most_items: int = 16) -> tuple[int, int]:
    """Rows and tokens of the padded shape that the encoder runs in, so many rows at a time if they do not suffice.

    There are few shapes, so that all are captured at the start, and none takes more than half a gigabyte, less where no
    batch has more than a few items (`most_items`).
    """
    octave = 1 << max(6, (tokens - 1).bit_length())
    size = octave if tokens > octave * 3 // 4 else octave * 3 // 4
    scores = min(_ENCODER_SCORES, most_items * _SCORES_AN_ITEM)
    most = 1 << max(0, (scores // size**2).bit_length() - 1)
    return min(most, 1 << (items - 1).bit_length()), size


def encode_mixed(flow: FlowModel, ids: Tensor, given: Tensor, made: Tensor, causal: Tensor) -> Tensor:
    """ids (B, N), given, made (B,) int, causal (B,) bool → mu (B, 2N, 80), arbitrary behind an item's end.

    The first `made` of an item's `given` tokens become frames. Each item gets what `FlowModel.encode` gives it alone,
    with `streaming` = causal and `finalize` = (made == given).
    """
    encoder, ratio = flow.encoder, flow.cfg.token_mel_ratio
    size = ids.shape[1]
    x = encoder.embed(flow.input_embedding(ids.clamp(0, flow.cfg.vocab_size - 1)))
    x = torch.where(valid_positions(given, size)[..., None], x, 0.0)
    x = encoder.pre_lookahead_layer(x, True)  # with zeros behind the end; what they touch is not `made`
    x = _layers(encoder.encoders, x, mixed_visibility(size, made, causal, encoder.chunk))
    x = encoder.up_embed(encoder.up_layer(x.to(encoder.up_layer.conv.weight.dtype)))
    wide = mixed_visibility(size * ratio, made * ratio, causal, encoder.chunk * ratio)
    mu: Tensor = flow.encoder_proj(encoder.after_norm(_layers(encoder.up_encoders, x, wide)))
    return mu


def _layers(layers: torch.nn.ModuleList, x: Tensor, seen: MixedVisibility) -> Tensor:
    positions = relative_positions(x.shape[1], x.shape[2], x.device)
    x = x.float()
    for layer in layers:
        x = layer(x, positions, seen)
    return x

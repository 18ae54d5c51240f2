"""What a batched token-to-wave lane captures before it serves: every shape that it will need, the largest first, so
that the smaller ones find their memory in the same pool."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator

import torch

from inference.device_memory import Tidy
from inference.runtime.frame_pack import bucket
from inference.runtime.packed_flow import encoder_shape
from inference.runtime.paged_check import BOUNDS, paged_error
from inference.runtime.paged_layout import row_ladder
from inference.runtime.vocoder_pack import VocoderJob, rows_used
from inference.runtime.wave_batch import BatchedWave
from inference.runtime.wave_costs import HURRIED_FRAMES, RELAXED_FRAMES
from inference.runtime.wave_parts import vocoder_frames
from inference.settings import LaneSettings

logger = logging.getLogger(__name__)

_SECONDS = 30.0  # what is not captured by then is captured when it comes up
_LONGEST_ENCODER = 768  # tokens
_STREAM_ROWS = 2 * HURRIED_FRAMES  # at most, of streams in one batch, and a little beyond

Step = tuple[str, Callable[[], None]]


def warm_up(lane: BatchedWave, settings: LaneSettings, progress: Callable[[str], None]) -> None:
    """Capture shapes for about `_SECONDS` at most; nothing without graphs."""
    steps = list(_steps(lane, settings)) if settings.graphs else []
    lane.clear()  # of small shapes that self-tests captured: the graphs' pool begins with the largest
    tidy = Tidy(lane.flow.device)
    begun = since = time.perf_counter()
    for number, ((part, step), following) in enumerate(zip(steps, [*steps[1:], ("", None)]), 1):
        step()
        tidy.up()
        now = time.perf_counter()
        late = now - begun > _SECONDS
        if late or following[0] != part:
            progress(f"warming up: captured {part} in {now - since:.1f} s ({number} of {len(steps)} shapes)")
            since = now
        if late:
            break
    _check_streams(lane)
    for programs in lane.programs():
        programs.settle()


def _check_streams(lane: BatchedWave) -> None:
    """Streams with pages, as they will be served; if they are wrong, they are computed from frame 0 instead."""
    if lane.paged is None or lane.flow.most_items < 2:
        return
    error = paged_error(lane.paged, lane.flow)
    bound = BOUNDS.get(lane.flow.flow.encoder_proj.weight.dtype, 0.0)
    if not error <= bound:  # NaN counts as wrong
        logger.warning("Streams with pages come out wrong here (error %.3g); they are recomputed.", error)
        lane.paged = None


def _steps(lane: BatchedWave, settings: LaneSettings) -> Iterator[Step]:
    """Those of streams first, but for one."""
    vocoder = _buckets(vocoder_frames(settings.max_batch_frames))
    # The largest of all: where it fits everything else does, too, bit by bit.
    yield "the longest vocoder row", lambda: _prepare_vocoder(lane, vocoder[0])
    paged = lane.paged
    if paged is not None:
        for rows in reversed(row_ladder(min(settings.max_batch_frames, _STREAM_ROWS))):
            yield "streams", lambda rows=rows: paged.solver.prepare(rows)  # type: ignore[misc]
    for rows, size in _encoder_shapes(settings.max_batch):
        yield "encoder", lambda rows=rows, size=size: lane.flow.prepare_encoder(rows, size)  # type: ignore[misc]
    for rows in vocoder[1:]:
        yield "vocoder", lambda rows=rows: _prepare_vocoder(lane, rows)  # type: ignore[misc]
    for rows in _buckets(min(settings.max_batch_frames, RELAXED_FRAMES)):
        yield "whole segments", lambda rows=rows: lane.flow.prepare(rows)  # type: ignore[misc]


def _buckets(most: int) -> list[int]:
    """All of `bucket`'s sizes up to `most`'s, the largest first."""
    sizes = [bucket(1)]
    while sizes[-1] < most:
        sizes.append(bucket(sizes[-1] + 1))
    return sizes[::-1]


def _encoder_shapes(most_items: int) -> list[tuple[int, int]]:
    counts = [1 << power for power in range((most_items - 1).bit_length() + 1)]
    shapes = {
        encoder_shape(count, tokens, most_items)
        for count in counts
        for tokens in range(1, _LONGEST_ENCODER + 1, 16)
    }
    return sorted(shapes, key=lambda shape: -shape[0] * shape[1] ** 2)


@torch.inference_mode()
def _prepare_vocoder(lane: BatchedWave, rows: int) -> None:
    """Seen once, captured the second time."""
    vocoder = lane.vocoder
    mel = torch.full((rows - rows_used([0]), vocoder.cfg.mel_bins), -8.0, device=vocoder.device)
    for _ in range(2 if vocoder.programs.graphs else 1):
        vocoder.run([VocoderJob(mel, None, True, 0)])

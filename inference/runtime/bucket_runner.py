"""Steps on a GPU: a few fixed shapes, each a captured graph, that hold whatever is live.

A decode step computes the first 1, 2, 4, … slots over the first 256, 512, … positions; prompts are padded to a few
lengths and numbers. A shape that is not captured yet is served by a captured one that is a little larger, or runs
uncaptured. Rounding differs between shapes, so in half precision a request's tokens may differ with the load.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from inference.models.language_model import PAD, LanguageModel
from inference.runtime.lane_graphs import (
    Shape,
    StepGraphs,
    batch_buckets,
    bucket,
    prefix_buckets,
    prompt_buckets,
)
from inference.runtime.slot_attention import PrefixAttention, PromptAttention
from inference.runtime.slot_runner import Mail, PromptPart, Reading, SlotRunner, draw
from inference.runtime.slot_table import SlotRows, row_width

logger = logging.getLogger(__name__)

DECODE, PREFILL = "decode", "prefill"
_MAX_PROMPTS = 16  # taken in at once
_USUAL_PROMPTS = Shape(8, 512)  # larger batches of prompts are busy enough to run uncaptured
# H200, fp16: attention by products takes 2.03 ms where the kernel takes 2.09 (1 row, 1024 positions), but 1.88 and 1.83
# for 256 positions, and with more rows the kernel always wins.
_PRODUCT_ROWS, _PRODUCT_SIZE = 2, Shape(1, 1024)
_SLOT, _TARGET, _START, _LENGTH, _HEADER = range(
    5
)  # columns of a prompt's row before its table row and symbols


class BucketRunner(SlotRunner):
    """Slots of which the first ones, rounded up to a bucket, take part in each step.

    `graphs`: capture steps; `product`: see `PrefixAttention`, None for whichever was measured to be faster for the
    step's shape.
    """

    def __init__(
        self,
        model: LanguageModel,
        slots: int,
        context: int,
        prefill_tokens: int,
        graphs: bool = True,
        product: bool | None = None,
    ) -> None:
        super().__init__(model, slots, context, prefill_tokens)
        self._product = product
        self._batches = batch_buckets(slots)
        self._prefixes = prefix_buckets(self._cache.max_len)
        self._prompt_batches = batch_buckets(min(_MAX_PROMPTS, slots))
        self._prompt_sizes = prompt_buckets(min(prefill_tokens, self._cache.max_len))
        self.graphs = StepGraphs(self.device, self.stream, graphs)
        self._drawn = torch.zeros(slots + 1, dtype=torch.int64, device=self.device)
        self._mail: list[Mail] = []
        self._inputs: dict[Shape, Tensor] = {}  # what captured prefills read
        self._wanted: list[tuple[str, Shape]] = []  # shapes that were needed and not there

    @property
    def prefixes(self) -> Sequence[int]:
        """Positions that decode steps are made for, ascending."""
        return self._prefixes

    @property
    def table(self) -> Tensor:
        """The slots' state (slots + 1, width) int64."""
        return self._table.data

    def prompt_shapes(self) -> list[Shape]:
        """Batches of prompts that are captured at the start."""
        return self._usual_prompts()

    def bucket(self, rows: int) -> int:
        """See `SlotRunner.bucket`."""
        return bucket(rows, self._batches) if rows else 0

    # ------------------------------------------------------------------------------------------------ decode
    def decode(self, slots: Sequence[int], lengths: Sequence[int]) -> Reading:
        """See `SlotRunner.decode`."""
        wanted = Shape(self.bucket(max(slots) + 1), bucket(max(lengths) + 1, self._prefixes))
        # Even the largest captured step is quicker than launching a small one's kernels one by one.
        shape = self.graphs.best(DECODE, wanted, math.inf)
        if shape != wanted:
            self._want(DECODE, wanted)
        if shape is None:
            self._decode_body(wanted)
        else:
            self.graphs.replay(DECODE, shape)
        return self._reading(max(slots) + 1, slots)

    def _reading(self, count: int, places: Sequence[int]) -> Reading:
        if not self._mail and self.stream is not None:
            self._mail.append(Mail(len(self._drawn)))
        return Reading(self._drawn[:count], places, self._mail)

    def _decode_body(self, shape: Shape) -> None:
        rows = SlotRows(self._table.data[: shape.rows])
        active, positions = rows.active, rows.lengths.clone()
        write_rows = torch.where(active, torch.arange(shape.rows, device=self.device), self.slots)
        product = shape.covers(_PRODUCT_SIZE) and shape.rows <= _PRODUCT_ROWS
        if self._product is not None:
            product = self._product
        memory = PrefixAttention(self._cache, write_rows, positions, shape.size, self._model.dtype, product)
        hidden = self._model.forward(self._model.embed_speech(rows.ids), positions, memory)
        self._drawn[: shape.rows].copy_(draw(self.cfg, self._model.logits(hidden), rows))
        rows.lengths.add_(active)  # last: a step that ran out of memory on the way can be done again

    # ----------------------------------------------------------------------------------------------- prefill
    def fitting(self, parts: Sequence[PromptPart]) -> int:
        """See `SlotRunner.fitting`: padding counts, and beginnings do not mix with continuations."""
        count, longest = 0, 0
        for part in parts[: self._prompt_batches[-1]]:
            longest = max(longest, len(part))
            padded = bucket(count + 1, self._prompt_batches) * bucket(longest, self._prompt_sizes)
            if count and (padded > self.prefill_tokens or (part.start > 0) != (parts[0].start > 0)):
                break
            count += 1
        return count

    def prefill(self, parts: Sequence[PromptPart]) -> Reading:
        """See `SlotRunner.prefill`."""
        wanted = Shape(
            bucket(len(parts), self._prompt_batches),
            bucket(max(len(part) for part in parts), self._prompt_sizes),
        )
        shape = None if parts[0].start else self.graphs.best(PREFILL, wanted)
        if shape is None:
            end = max(part.start + len(part) for part in parts)
            prefix = bucket(end, self._prefixes) if parts[0].start else None
            self._prefill_body(wanted, self.upload(self._packed(parts, wanted)), prefix)
        else:
            self._inputs[shape].copy_(self.upload(self._packed(parts, shape)))
            self.graphs.replay(PREFILL, shape)
        if shape != wanted and not parts[0].start and wanted in self._usual_prompts():
            self._want(PREFILL, wanted)
        return self._reading(len(parts), range(len(parts)))

    def _packed(self, parts: Sequence[PromptPart], shape: Shape) -> npt.NDArray[np.int64]:
        """One row a prompt: slot, target row of the table, start, length, table row, kinds, ids. Padding is spare."""
        width = _HEADER + row_width(self.cfg.sampling)
        packed = np.zeros((shape.rows, width + 2 * shape.size), dtype=np.int64)
        packed[:, _SLOT] = packed[:, _TARGET] = self.slots
        packed[:, _LENGTH] = 1
        packed[:, width : width + shape.size] = PAD
        for row, part in zip(packed, parts):
            target = self.slots if part.row is None else part.slot
            row[:_HEADER] = part.slot, target, part.start, len(part)
            if part.row is not None:
                row[_HEADER:width] = part.row
            row[width : width + len(part)] = part.kinds
            row[width + shape.size : width + shape.size + len(part)] = part.ids
        return packed

    def _prefill_body(self, shape: Shape, packed: Tensor, prefix: int | None) -> None:
        width = _HEADER + row_width(self.cfg.sampling)
        header, table, kinds, ids = packed.split([_HEADER, width - _HEADER, shape.size, shape.size], dim=1)
        slots, targets, starts, lengths = header.unbind(1)
        place = torch.arange(shape.size, device=self.device)
        positions = (starts[:, None] + place).clamp_max(self._cache.max_len - 1)
        write_rows = torch.where(place < lengths[:, None], slots[:, None], self.slots)
        memory = PromptAttention(self._cache, slots, write_rows.flatten(), positions.flatten(), prefix)
        embeddings = self._model.embed(kinds, ids).flatten(0, 1)
        hidden = self._model.forward(embeddings, positions.flatten(), memory)
        last = hidden[torch.arange(shape.rows, device=self.device) * shape.size + lengths - 1]
        rows = SlotRows(table.clone())
        self._drawn[: shape.rows].copy_(draw(self.cfg, self._model.logits(last), rows))
        self._table.data.index_copy_(0, targets, rows.data)

    # ----------------------------------------------------------------------------------------------- capture
    def warm_up(self, seconds: float) -> None:
        """Capture steps, the most useful ones first, until `seconds` are over. No slot may be live.

        The largest decode step comes first: with it every need is met by some captured step.
        """
        started = time.monotonic()
        self.body(PREFILL, self._loading_prompts())()  # load kernels, graphs or not
        self.body(DECODE, Shape(1, self._prefixes[0]))()
        count = 0
        for kind, shape in self._useful():
            self._capture(kind, shape)
            count += 1
            if time.monotonic() - started > seconds:
                break
        spent = time.monotonic() - started
        logger.info("Captured %d steps of the language model in %.1f s.", count, spent)

    def idle(self) -> bool:
        """Capture one step that was needed before. No slot may be live."""
        if self._wanted:
            self._capture(*self._wanted.pop(0))
        return bool(self._wanted)

    def _useful(self) -> Iterator[tuple[str, Shape]]:
        yield DECODE, Shape(self._batches[-1], self._prefixes[-1])
        for prefix in self._prefixes[:2]:
            yield from ((DECODE, Shape(rows, prefix)) for rows in self._batches)
        # The largest first: the others then find their working memory in what it took.
        yield from ((PREFILL, shape) for shape in sorted(self._usual_prompts(), key=lambda one: -one.area))
        for prefix in self._prefixes[2:]:
            yield from ((DECODE, Shape(rows, prefix)) for rows in self._batches)

    def _loading_prompts(self) -> Shape:
        return Shape(1, self._prompt_sizes[-1])

    def _usual_prompts(self) -> list[Shape]:
        sizes = [size for size in self._prompt_sizes if 128 <= size <= _USUAL_PROMPTS.size]
        rows = [count for count in self._prompt_batches if count <= _USUAL_PROMPTS.rows]
        shapes = [Shape(count, size) for count in rows for size in sizes]
        return [shape for shape in shapes if shape.area <= self.prefill_tokens]

    def _want(self, kind: str, shape: Shape) -> None:
        if self.graphs.enabled and (kind, shape) not in self._wanted:
            self._wanted.append((kind, shape))

    def _capture(self, kind: str, shape: Shape) -> None:
        self.graphs.capture(kind, shape, self.body(kind, shape))

    def body(self, kind: str, shape: Shape) -> Callable[[], None]:
        """The step of that shape, uncaptured. A prefill's has prompts of padding only."""
        if kind == DECODE:
            return lambda: self._decode_body(shape)
        if shape not in self._inputs:
            self._inputs[shape] = self.upload(self._packed([], shape)).clone()
        packed = self._inputs[shape]
        return lambda: self._prefill_body(shape, packed, None)

"""Steps on a GPU by kernels of our own: seven a layer instead of twenty, no padding, no masks. Import on CUDA only.

A decode step computes the first 1, 2, 4, … slots, each over exactly its own positions. Prompts are packed one behind
the other, beginnings and continuations alike. What a slot gets depends neither on its neighbours nor on their number.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from inference.models.language_model import LanguageModel
from inference.runtime.bucket_runner import PREFILL, BucketRunner
from inference.runtime.lane_graphs import Shape
from inference.runtime.lm_attention import SPAN
from inference.runtime.lm_prompt_attention import QUERY_BLOCK
from inference.runtime.lm_prompts import PromptPacking
from inference.runtime.lm_step import KernelStep, Strips
from inference.runtime.slot_runner import PromptPart, Reading
from inference.runtime.slot_table import row_width


class KernelRunner(BucketRunner):
    """As its base, by Triton kernels. `strips`: see `KernelStep`."""

    def __init__(
        self,
        model: LanguageModel,
        slots: int,
        context: int,
        prefill_tokens: int,
        graphs: bool = True,
        strips: Strips | None = None,
    ) -> None:
        super().__init__(model, slots, context, prefill_tokens, graphs)
        room = self._cache.max_len
        self._prefixes = (SPAN, room) if room > SPAN else (room,)
        self._packing = PromptPacking(slots, prefill_tokens, row_width(self.cfg.sampling), QUERY_BLOCK)
        self.step = KernelStep(self._model, self._cache, self._table.data, slots, strips)
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(self.device))

    @property
    def cache(self) -> Tensor:
        """Keys and values, see `KvCache.data`."""
        return self._cache.data

    @property
    def drawn(self) -> Tensor:
        """What the last step drew, (slots + 1,) int64."""
        return self._drawn

    def decode_step(self, shape: Shape) -> None:
        """The step of that shape, uncaptured."""
        self.step.decode(shape.rows, shape.size, self._drawn)

    def _decode_body(self, shape: Shape) -> None:
        self.decode_step(shape)

    # ----------------------------------------------------------------------------------------------- prefill
    def fitting(self, parts: Sequence[PromptPart]) -> int:
        """See `SlotRunner.fitting`."""
        return self._packing.fitting(parts)

    def prefill(self, parts: Sequence[PromptPart]) -> Reading:
        """See `SlotRunner.prefill`."""
        wanted = self.prompt_shape(parts)
        shape = self.graphs.best(PREFILL, wanted)
        if shape is None:
            self._prefill_body(wanted, self.upload(self._packed(parts, wanted)))
        else:
            self._inputs[shape].copy_(self.upload(self._packed(parts, shape)))
            self.graphs.replay(PREFILL, shape)
        if shape != wanted:
            self._want(PREFILL, wanted)
        return self._reading(len(parts), range(len(parts)))

    def prompt_shape(self, parts: Sequence[PromptPart]) -> Shape:
        """The batch that is made for parts that fit."""
        shape = self._packing.shape_for(len(parts), sum(len(part) for part in parts))
        if shape is None:
            raise ValueError("more prompts than fit into one batch")
        return shape

    def packed(self, parts: Sequence[PromptPart], shape: Shape) -> npt.NDArray[np.int64]:
        """What `prefill_logits` takes, still on the host."""
        return self._packing.pack(parts, shape)

    def _packed(self, parts: Sequence[PromptPart], shape: Shape) -> npt.NDArray[np.int64]:
        return self.packed(parts, shape)

    def _prefill_body(self, shape: Shape, packed: Tensor, prefix: int | None = None) -> None:
        self.prefill_logits(shape, packed)

    def prefill_logits(self, shape: Shape, packed: Tensor) -> Tensor:
        """Take a batch in and draw; returns the logits (P, V) that were drawn from."""
        given = self._packing.fields(packed, shape)
        rows = given.rows.clone()
        logits = self.step.prefill(
            given.kinds,
            given.ids,
            given.positions,
            given.slots,
            given.blocks,
            given.last,
            rows,
            self._drawn,
        )
        self._table.data.index_copy_(0, given.targets, rows)
        return logits

    def clear(self, slot: int, used: int) -> None:
        """Nothing to do: what a row does not hold is not read, hence cannot be a NaN with weight 0."""

    def _usual_prompts(self) -> list[Shape]:
        return self._packing.shapes

    def _loading_prompts(self) -> Shape:
        return self._packing.shapes[-1]

    def memory_bytes(self) -> int:
        """See `SlotRunner.memory_bytes`; with the steps' buffers."""
        return super().memory_bytes() + self.step.memory_bytes()

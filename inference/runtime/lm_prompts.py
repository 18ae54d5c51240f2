"""Prompts packed one behind the other into one array of whole numbers: what a captured prefill reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from inference.models.language_model import PAD
from inference.runtime.lane_graphs import Shape, prompt_buckets
from inference.runtime.slot_runner import PromptPart

_LEAST_SYMBOLS = 16  # of a usual prompt: a batch has room for as many prompts as that gives
_BLOCK_COLUMNS = 4


@dataclass(frozen=True)
class PromptFields:
    """The parts of the array, as views; see `KernelStep.prefill`. `targets` (P,): rows of the slots' table."""

    kinds: Tensor
    ids: Tensor
    positions: Tensor
    slots: Tensor
    blocks: Tensor
    last: Tensor
    targets: Tensor
    rows: Tensor


class PromptPacking:
    """Batches of up to `tokens` symbols of prompts for `slots` slots; the one behind the last slot is spare.

    A batch of `Shape(P, T)` has room for P prompts with T symbols altogether. `width`: of a row of the slots' table;
    `block`: symbols that are attended for together.
    """

    def __init__(self, slots: int, tokens: int, width: int, block: int) -> None:
        self._spare, self._width, self._block = slots, width, block
        sizes = prompt_buckets(tokens)
        self.shapes = [Shape(min(slots, max(1, size // _LEAST_SYMBOLS)), size) for size in sizes]

    def shape_for(self, prompts: int, symbols: int) -> Shape | None:
        """The smallest batch with room for that much, None if there is none."""
        wanted = Shape(prompts, symbols)
        return next((shape for shape in self.shapes if shape.covers(wanted)), None)

    def fitting(self, parts: Sequence[PromptPart]) -> int:
        """How many of the parts, from the front, go into one batch."""
        count = symbols = 0
        for part in parts:
            symbols += len(part)
            if count and self.shape_for(count + 1, symbols) is None:
                break
            count += 1
        return count

    def pack(self, parts: Sequence[PromptPart], shape: Shape) -> npt.NDArray[np.int64]:
        """The batch as one flat array. What is padding is written to the spare slot."""
        packed = np.zeros(sum(self._sizes(shape)), dtype=np.int64)
        kinds, ids, positions, slots, blocks, last, targets, rows = self._split(packed, shape)
        kinds.fill(PAD)
        slots.fill(self._spare)
        targets.fill(self._spare)
        start = block = 0
        for number, part in enumerate(parts):
            end = start + len(part)
            kinds[start:end], ids[start:end], slots[start:end] = part.kinds, part.ids, part.slot
            positions[start:end] = np.arange(part.start, part.start + len(part))
            last[number] = end - 1
            if part.row is not None:
                targets[number] = part.slot
                rows[number] = part.row
            for first in range(0, len(part), self._block):
                count = min(self._block, len(part) - first)
                blocks[block] = start + first, count, part.slot, part.start + first
                block += 1
            start = end
        return packed

    def fields(self, packed: Tensor, shape: Shape) -> PromptFields:
        """Views of the array on the device."""
        kinds, ids, positions, slots, blocks, last, targets, rows = packed.split(self._sizes(shape))
        blocks, rows = blocks.view(-1, _BLOCK_COLUMNS), rows.view(shape.rows, self._width)
        return PromptFields(kinds, ids, positions, slots, blocks, last, targets, rows)

    def _sizes(self, shape: Shape) -> list[int]:
        blocks = shape.size // self._block + shape.rows
        return [shape.size] * 4 + [_BLOCK_COLUMNS * blocks, shape.rows, shape.rows, shape.rows * self._width]

    def _split(self, packed: npt.NDArray[np.int64], shape: Shape) -> list[npt.NDArray[np.int64]]:
        parts = np.split(packed, np.cumsum(self._sizes(shape))[:-1])
        parts[4] = parts[4].reshape(-1, _BLOCK_COLUMNS)
        parts[7] = parts[7].reshape(shape.rows, self._width)
        return parts

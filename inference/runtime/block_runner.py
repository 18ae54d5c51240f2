"""Steps on the CPU: blocks of always the same number of rows, so that a row's result does not depend on the others.

The rounding of a matrix product depends on its shape, never on what stands in the other rows. So products always take
a full block, attention takes each row over as many positions as its own length says, and a prompt is taken in alone,
in parts that depend on it only.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial

import numpy as np
import torch
from torch import Tensor

from inference.models.language_model import LanguageModel
from inference.runtime.slot_attention import PromptAttention, RowAttention
from inference.runtime.slot_runner import PromptPart, Reading, SlotRunner, draw
from inference.runtime.slot_table import SlotRows
from inference.runtime.spare_cores import SpareCores, each
from inference.runtime.step_threads import StepThreads

# Reading the weights takes most of a step, hence 8 rows cost little more than 1 (nano: 2.0 ms of products against 1.7
# for 4 rows), while for 8 users one block of 8 halves the work of two of 4.
BLOCK_ROWS = 8
_TRIAL_LENGTH = 300  # positions


class BlockRunner(SlotRunner):
    """Slots in blocks of `block` rows; blocks without a live row are left out.

    `cores`: who else works on this machine's cores; without it a step takes one.
    """

    def __init__(
        self,
        model: LanguageModel,
        slots: int,
        context: int,
        prefill_tokens: int,
        block: int = BLOCK_ROWS,
        cores: SpareCores | None = None,
    ) -> None:
        padded = -(-slots // block) * block
        super().__init__(model, slots, context, prefill_tokens, spare=padded - slots + 1)
        self._block, self._spare = block, padded
        self._packed_bytes = self._model.pack(block)
        self._cores, self._threads = cores, StepThreads(cores)

    def bucket(self, rows: int) -> int:
        """See `SlotRunner.bucket`."""
        return -(-rows // self._block) * self._block

    def fitting(self, parts: Sequence[PromptPart]) -> int:
        """See `SlotRunner.fitting`."""
        total = np.cumsum([len(part) for part in parts])
        return max(1, int((total <= self.prefill_tokens).sum()))

    def prefill(self, parts: Sequence[PromptPart]) -> Reading:
        """See `SlotRunner.prefill`."""
        takes = [partial(self._prefill_one, part) for part in parts]
        with nullcontext() if self._cores is None else self._cores.working():
            drawn = each(takes)
        return Reading(torch.cat(drawn), range(len(parts)))

    def _prefill_one(self, part: PromptPart) -> Tensor:
        size = len(part)
        positions = torch.arange(part.start, part.start + size)
        row = torch.tensor([part.slot])
        prefix = part.start + size if part.start else None
        memory = PromptAttention(self._cache, row, row.expand(size), positions, prefix)
        kinds, ids = (torch.from_numpy(array).long() for array in (part.kinds, part.ids))
        hidden = self._model.forward(self._model.embed(kinds, ids), positions, memory)
        if part.row is None:
            return torch.zeros(1, dtype=torch.int64)
        state = SlotRows(torch.tensor([part.row]))
        drawn = draw(self.cfg, self._model.logits(hidden[-1:]), state)
        self._table.data[part.slot] = state.data[0]
        return drawn

    def decode(self, slots: Sequence[int], lengths: Sequence[int]) -> Reading:
        """See `SlotRunner.decode`."""
        drawn = torch.zeros(self._spare, dtype=torch.int64)
        length_of = dict(zip(slots, lengths))
        done = []
        with self._threads.step():
            for first in sorted({slot - slot % self._block for slot in slots}):
                live = [slot for slot in range(first, first + self._block) if slot in length_of]
                ids, rows = self._decode_block(first, live, length_of)
                drawn[live] = ids
                done.append((live, rows))
        for live, rows in done:  # last: a step that ran out of memory on the way can be done again
            self._table.data[live] = rows.data
        return Reading(drawn, slots)

    def _decode_block(
        self, first: int, live: list[int], length_of: dict[int, int]
    ) -> tuple[Tensor, SlotRows]:
        """Ids and next rows of the live slots of a block."""
        rows = SlotRows(self._table.data[first : first + self._block])
        active = rows.active
        positions = rows.lengths.clone()
        places = torch.arange(first, first + self._block)
        memory = RowAttention(
            self._cache,
            torch.where(active, places, self._spare),
            positions,
            [(slot - first, slot, length_of[slot] + 1) for slot in live],
        )
        hidden = self._model.forward(self._model.embed_speech(rows.ids), positions, memory)
        index = torch.tensor(live)
        drawing = SlotRows(self._table.data[index])
        # Sampling treats each row alone, whatever their number; most of its work is per row.
        drawn = draw(self.cfg, self._model.logits(hidden)[index - first], drawing)
        drawing.lengths.add_(active[index - first])
        return drawn, drawing

    def warm_up(self, seconds: float) -> None:
        """One step of each kind, so that the first request finds everything in place."""
        none = np.zeros(1, dtype=np.int32)
        self.prefill([PromptPart(self._spare, 0, none, none, None)])
        self.decode([0], [0])
        self._threads.try_out(self._trial)

    def _trial(self) -> Tensor:
        """What one block makes of numbers that are always the same: its probabilities, and how they came about."""
        length = min(_TRIAL_LENGTH, self._cache.data.shape[4])
        memory = self._cache.data[:, :, : self._block, :, :length]
        memory.copy_(torch.linspace(-3.0, 3.0, memory.numel()).view(memory.shape))
        unkept = torch.full((self._block,), self._spare)
        places = [(row, row, length) for row in range(self._block)]
        attention = RowAttention(self._cache, unkept, torch.zeros_like(unkept), places)
        embedded = self._model.embed_speech(torch.arange(self._block))
        hidden = self._model.forward(embedded, torch.zeros_like(unkept), attention)
        memory.zero_()
        logits = self._model.logits(hidden)
        shares = torch.softmax(torch.log_softmax(logits, dim=1), dim=1)  # as sampling makes them
        return torch.cat([part.flatten() for part in (hidden, logits, shares)])

    def memory_bytes(self) -> int:
        """See `SlotRunner.memory_bytes`; with the repacked weights."""
        return super().memory_bytes() + self._packed_bytes

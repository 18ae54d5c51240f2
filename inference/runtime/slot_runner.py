"""The device's side of the language-model lane: slots, their memory, and reading results without a wait."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from inference.models.config import LanguageModelConfig
from inference.models.language_model import LanguageModel
from inference.runtime.feed import IntArray
from inference.runtime.fused_language_model import FusedLanguageModel
from inference.runtime.kv_cache import KvCache
from inference.runtime.lane_graphs import on_stream
from inference.runtime.sampling import sample_step
from inference.runtime.slot_table import SlotRows

POSITION_STEP = 64  # room for cached positions is a multiple of this, as fast attention kernels like it


@dataclass(frozen=True)
class PromptPart:
    """A run of one prompt's symbols for the slot `slot`, whose first `start` positions are there already.

    `row`: what the slot's row of the table holds before the first draw, given with the last part only.
    """

    slot: int
    start: int
    kinds: IntArray
    ids: IntArray
    row: list[int] | None

    def __len__(self) -> int:
        return len(self.ids)


class Mail:
    """Pinned memory for up to `count` ids, and the event that says when they are there."""

    def __init__(self, count: int) -> None:
        self.values = torch.empty(count, dtype=torch.int64, pin_memory=True)
        self.numbers = self.values.numpy()
        self.event = torch.cuda.Event()


class Reading:
    """Ids on their way to the host, in the order of `places` within what was drawn.

    `spare`: mail that can be used, and is used again once the ids are read, as making it takes a while.
    """

    def __init__(self, drawn: Tensor, places: Sequence[int], spare: list[Mail] | None = None) -> None:
        self._places, self._count = places, len(drawn)
        self._spare = spare
        self._mail: Mail | None = None
        if drawn.is_cuda:
            self._mail = spare.pop() if spare else Mail(self._count)
            self._mail.values[: self._count].copy_(drawn, non_blocking=True)
            self._mail.event.record()
        else:
            self._values = drawn.clone()

    def ready(self) -> bool:
        """Whether the ids are there already, as far as that can be told."""
        return self._mail is not None and bool(self._mail.event.query())

    def ids(self) -> list[int]:
        """Waits until the ids are there. To be called once."""
        if self._mail is None:
            values = self._values.tolist()
        else:
            self._mail.event.synchronize()
            values = self._mail.numbers[: self._count].tolist()
            if self._spare is not None:
                self._spare.append(self._mail)
        return [values[place] for place in self._places]


class SlotRunner(ABC):
    """Slots with keys, values and sampling state. Rows beyond the slots take writes that are not to be kept.

    Nothing here waits for the device but `Reading.ids`, and nothing knows of requests.
    """

    def __init__(
        self, model: LanguageModel, slots: int, context: int, prefill_tokens: int, spare: int = 1
    ) -> None:
        room = cache_room(context)
        self.cfg, self.device = model.cfg, model.device
        self.slots, self.prefill_tokens = slots, prefill_tokens
        self.stream = torch.cuda.Stream(self.device, priority=-1) if self.device.type == "cuda" else None
        self._model = FusedLanguageModel(model, room)
        self._cache = KvCache(self.cfg, slots + spare, room, self.device, model.dtype)
        self._table = SlotRows.create(slots + spare, self.cfg.sampling, self.device)
        # Steps that may be on their way when the next one begins. With one of them waiting on the device, the host may
        # be busy for a whole step (other threads hold the interpreter, say) before the device runs dry.
        self.steps_ahead = 1 if self.stream is None else 2
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(self.device))

    @abstractmethod
    def bucket(self, rows: int) -> int:
        """The number of rows that a step computes when `rows` slots, the first ones, are live."""

    @abstractmethod
    def fitting(self, parts: Sequence[PromptPart]) -> int:
        """How many of the parts, from the front, make the next batch: at most `prefill_tokens`, at least one part."""

    @abstractmethod
    def prefill(self, parts: Sequence[PromptPart]) -> Reading:
        """Take prompts in and draw a first id for each last part; the reading gives one id a part."""

    @abstractmethod
    def decode(self, slots: Sequence[int], lengths: Sequence[int]) -> Reading:
        """One step of the given slots, which hold `lengths` positions each; the reading gives their ids."""

    @abstractmethod
    def warm_up(self, seconds: float) -> None:
        """Load kernels, capture steps."""

    def idle(self) -> bool:
        """Use a moment without work; True if there is more to do in the next one."""
        return False

    def clear(self, slot: int, used: int) -> None:
        """Forget the first `used` positions: weight 0 for what is masked would not stop an old NaN."""
        with on_stream(self.stream):
            self._cache.clear(slot, used)

    def stop(self, slot: int) -> None:
        """The slot draws no more."""
        with on_stream(self.stream):
            self._table.stop(slot)

    def move(self, source: int, target: int, used: int) -> None:
        """Continue slot `source`, of `used` positions, in the empty slot `target`."""
        with on_stream(self.stream):
            self._cache.move(source, target, used)
            self._table.data[target].copy_(self._table.data[source])
            self._table.stop(source)

    def memory_bytes(self) -> int:
        """Keys, values and state of all slots."""
        return self._cache.data.nbytes + self._table.data.nbytes

    def on_stream(self) -> AbstractContextManager[object]:
        return on_stream(self.stream)

    def upload(self, values: npt.NDArray[np.int64]) -> Tensor:
        """The array on the device, copied without a wait."""
        tensor = torch.from_numpy(values)
        if self.stream is None:
            return tensor
        return tensor.pin_memory().to(self.device, non_blocking=True)


def cache_room(context: int) -> int:
    """Positions that are set aside for a slot of `context` positions."""
    return -(-context // POSITION_STEP) * POSITION_STEP


def draw(cfg: LanguageModelConfig, logits: Tensor, rows: SlotRows) -> Tensor:
    """Draw the next id of every row from its logits (n, V) and bring the rows up to date; ids (n,) int64."""
    drawn = sample_step(logits, rows.sampler(), cfg, rows.exact)
    # What was not finite is fed once more, and then must be some row of the embedding.
    rows.ids.copy_(drawn.clamp_min(0))
    return drawn

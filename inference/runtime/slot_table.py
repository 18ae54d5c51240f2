"""What the device remembers of each slot between two steps: one row of whole numbers a slot.

One table, so that a slot is filled, moved or copied out with one operation.
"""

from __future__ import annotations

import torch
from torch import Tensor

from inference.models.config import SamplingConfig
from inference.runtime.feed import SpeechPrompt
from inference.runtime.sampling import NO_ID, SamplerState
from inference.runtime.uniforms import stream_key

# Columns of the table.
ID, LENGTH, KEY, STEPS, LEAST, MOST, EXACT, ACTIVE, RECENT = range(9)


class SlotRows:
    """Rows (n, width) int64 of a table, as a view of it or as a copy; the columns by name."""

    def __init__(self, data: Tensor) -> None:
        self.data = data

    @classmethod
    def create(cls, rows: int, cfg: SamplingConfig, device: torch.device) -> SlotRows:
        """Rows that are not active."""
        return cls(torch.zeros(rows, row_width(cfg), dtype=torch.int64, device=device))

    @property
    def ids(self) -> Tensor:
        """(n,) what was drawn last: the next input."""
        return self.data[:, ID]

    @property
    def lengths(self) -> Tensor:
        """(n,) positions whose keys and values are there."""
        return self.data[:, LENGTH]

    @property
    def exact(self) -> Tensor:
        """(n,) bool: the original's quirks."""
        return self.data[:, EXACT] > 0

    @property
    def active(self) -> Tensor:
        """(n,) bool: still drawing."""
        return self.data[:, ACTIVE] > 0

    def sampler(self) -> SamplerState:
        """The columns that sampling reads and brings up to date, as views."""
        columns = self.data
        return SamplerState(
            keys=columns[:, KEY],
            steps=columns[:, STEPS],
            min_len=columns[:, LEAST],
            max_len=columns[:, MOST],
            recent=columns[:, RECENT:],
            active=columns[:, ACTIVE],
        )

    def stop(self, row: int) -> None:
        """The row draws no more; nothing waits for the device."""
        self.data[row : row + 1, ACTIVE].fill_(0)


def row_width(cfg: SamplingConfig) -> int:
    return RECENT + cfg.win_size


def fresh_row(prompt: SpeechPrompt, length: int, limit: int, cfg: SamplingConfig) -> list[int]:
    """The row of a prompt of `length` positions before its first draw; `limit`: most ids to draw."""
    row = [0] * RECENT
    row[LENGTH], row[LEAST], row[MOST] = length, prompt.min_len, limit
    row[KEY] = stream_key(prompt.seed)
    row[EXACT], row[ACTIVE] = int(prompt.exact), 1
    return row + [NO_ID] * cfg.win_size

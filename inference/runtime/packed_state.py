"""What a solve of packed mels reads and writes, at addresses that stay the same from run to run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from inference.runtime.frame_pack import DeviceLayout, FramePack, device_layout, table_size, upload
from inference.runtime.scratch import Scratch
from inference.runtime.velocity_weights import NetworkWeights


@dataclass
class SolverBuffers:
    """Buffers of one bucket. The guidance halves lie behind each other, the second one without conditions."""

    table: Tensor  # int32, see `FramePack`
    inputs: Tensor  # (2, rows, 4 bins) in the network's dtype: state, mu, speaker, prompt mel
    x: Tensor  # (rows, bins) float32, the state
    step: Tensor  # (1,) int64, counts the steps
    past: Tensor  # (2, rows, 2) int32: rows of the frame before and of the one before that, -1 for none
    reach: Tensor  # (2, rows, 2) int32: what they are where there are any
    rows: int
    blocks: int

    @classmethod
    def make(
        cls,
        rows: int,
        blocks: int,
        bins: int,
        dtype: torch.dtype,
        device: torch.device,
        scratch: Scratch | None = None,
    ) -> SolverBuffers:
        """Zeroed ones for `rows` frames and `blocks` attention blocks; of `scratch`, good from `lay_out` on until it
        is another's turn."""
        scratch = scratch or Scratch(device)
        row = torch.arange(2 * rows, dtype=torch.int32, device=device)
        reach = scratch.zeros(
            "reach", 2, rows, 2, dtype=torch.int32
        )  # the same for all sizes, as far as they go
        reach.copy_(torch.stack((row - 1, row - 2), dim=1).view(2, rows, 2))
        return cls(
            table=scratch.zeros("table", table_size(rows, blocks), dtype=torch.int32),
            inputs=scratch.zeros("inputs", 2, rows, 4 * bins, dtype=dtype),
            x=scratch.zeros("x", rows, bins),
            step=torch.zeros(1, dtype=torch.int64, device=device),
            past=scratch.zeros("past", 2, rows, 2, dtype=torch.int32).fill_(-1),
            reach=reach,
            rows=rows,
            blocks=blocks,
        )

    @property
    def static(self) -> Tensor:
        """(2, rows, 3 bins): what stays the same in all steps. The second half stays zero."""
        return self.inputs[:, :, self.x.shape[1] :]

    @property
    def layout(self) -> DeviceLayout:
        """The table's columns."""
        return device_layout(self.table, self.rows, self.blocks)

    def lay_out(self, pack: FramePack) -> None:
        """Bring a batch's layout to the device."""
        self.table.copy_(upload(pack.table, self.table.device), non_blocking=True)
        self.static[1].zero_()
        place = self.layout.place[None, :, None]
        taps = torch.arange(2, dtype=torch.int32, device=place.device)
        torch.where(place > taps, self.reach, self.reach.new_full((), -1), out=self.past)

    def start(self, noise: Tensor) -> None:
        """Put the state to the noise (frames, bins) of each frame's place, before the first step."""
        torch.index_select(noise, 0, self.layout.place, out=self.x)
        self.inputs[:, :, : self.x.shape[1]] = self.x
        self.step.zero_()


class PackedStep(Protocol):
    """The velocity network with the Euler solver's update."""

    weights: NetworkWeights

    def advance(self, buffers: SolverBuffers) -> None:
        """One Euler step: moves `x`, its copy in `inputs`, and `step`. Waits for nothing, can be captured."""
        ...

"""Backends that evaluate the velocity network on padded batches, where the solvers want them.

`BoundVelocity` makes one a `flow_solver.VelocityBackend` (the plain path), `PaddedSolver` puts one below `PackedFlow`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from inference.models.config import FlowConfig
from inference.models.velocity import VelocityNetwork
from inference.runtime.backend_spare import Spare, gives_way
from inference.runtime.captured import Programs
from inference.runtime.flow_solver import VelocityStep, time_grid
from inference.runtime.frame_pack import FramePack, bucket, upload
from inference.runtime.network_graphs import chunk_numbers
from inference.runtime.packed_solver import PackedSolver
from inference.runtime.packed_state import PackedStep, SolverBuffers

_MOST_PADDING = 1.5  # padded frames for each packed one


class PaddedVelocity(Protocol):
    """One evaluation of a `network_graphs.VelocityGraph`, inputs of any float type; None: it cannot take this shape."""

    def __call__(
        self, x: Tensor, mask: Tensor, mu: Tensor, t: Tensor, spks: Tensor, cond: Tensor, chunks: Tensor
    ) -> Tensor | None: ...


class BoundVelocity:
    """A `VelocityBackend`. What the backend does not take goes to `network`; its errors get out."""

    def __init__(self, network: VelocityNetwork, backend: PaddedVelocity) -> None:
        self._network, self._backend = network, backend

    def bind(
        self, mask: Tensor | None, mu: Tensor, spks: Tensor, cond: Tensor, times: Tensor, *, streaming: bool
    ) -> VelocityStep:
        """See `VelocityNetwork.bind`."""
        batch, _, frames = mu.shape
        keep = mu.new_ones(batch, 1, frames) if mask is None else mask
        size = self._network.cfg.chunk_frames if streaming else None
        chunks = chunk_numbers(frames, size, mu.device).repeat(batch, 1)
        plain: list[VelocityStep] = []

        def step(x: Tensor, k: int) -> Tensor:
            if not plain:
                found = self._backend(x, keep, mu, times[k : k + 1].repeat(batch), spks, cond, chunks)
                if found is not None:
                    return found
                plain.append(self._network.bind(mask, mu, spks, cond, times, streaming=streaming))
            return plain[0](x, k)

        return step


class UnfitError(Exception):
    """A backend does not take this shape; nothing is broken."""


def padded_shape(items: int, longest: int) -> tuple[int, int]:
    """Rows and frames of the padded batch for `items` of at most `longest` frames, bucketed as packed rows are."""
    rows = 1 << (items - 1).bit_length()
    if rows - items > rows // 4:
        rows -= rows // 4
    return rows, bucket(longest)


@dataclass
class PaddedBuffers:
    """What a padded solve reads and writes; addresses stay the same from run to run. B: both guidance halves."""

    table: Tensor  # (items, 3, T) int32: row in the pack, inside, chunk number
    x: Tensor  # (items, 80, T) float32, the state
    step: Tensor  # (1,) int64
    mask: Tensor  # (B, 1, T) in the network's dtype, as mu, spks and cond
    mu: Tensor  # (B, 80, T)
    spks: Tensor  # (B, 80)
    cond: Tensor  # (B, 80, T)
    chunks: Tensor  # (B, T) float32


class PaddedSolver(PackedSolver):
    """A `PackedSolver` that evaluates the velocity by a padded backend, and packed where that cannot or fails.

    `velocity` is the step that serves then, `spare` what serves should that fail too. `failed` is told of an error,
    after which this solve and all later ones run packed: nothing is lost. Without it errors get out. Set it as
    `PackedFlow.solver`.
    """

    def __init__(
        self,
        velocity: PackedStep,
        cfg: FlowConfig,
        dtype: torch.dtype,
        device: torch.device,
        backend: PaddedVelocity,
        *,
        graphs: bool,
        failed: Callable[[Exception], None] | None = None,
        spare: Spare[PackedStep] | None = None,
    ) -> None:
        super().__init__(velocity, cfg, dtype, device, graphs=graphs, spare=spare)
        # The same as the packed ones, with other keys: what is given back in need is given back of both.
        self._padded = cast("Programs[PaddedBuffers]", self.programs)
        self._backend, self._failed = backend, failed
        self._usable = True
        times, sizes = time_grid(cfg.n_timesteps)
        self._times = torch.tensor(times, device=device)
        self._sizes = torch.tensor(sizes, device=device)
        self._pack: FramePack | None = None

    def begin(self, pack: FramePack) -> SolverBuffers:
        self._pack = pack
        return super().begin(pack)

    def solve(self) -> Tensor:
        pack = self._pack
        if pack is None or not self._usable or not _dense(pack):
            return super().solve()
        try:
            return self._solve_padded(pack)
        except UnfitError:
            return super().solve()
        except Exception as error:
            if self._failed is None or not gives_way(error):
                raise
            self._usable = False
            self._failed(error)
            self._forget_programs()
            return super().solve()

    @torch.inference_mode()
    def _solve_padded(self, pack: FramePack) -> Tensor:
        longest = max(item.frames for item in pack.items)
        items, frames = padded_shape(len(pack.items), longest)
        program = self._padded.get(
            ("padded", items, frames), lambda: self._make_padded(items, frames), self._padded_step
        )
        b = program.buffers
        b.table.copy_(upload(padded_table(pack, items, frames), self._device), non_blocking=True)
        self._fill(b, self._program.buffers.static[0])
        b.x.copy_(self._noise[:frames].t())
        b.step.zero_()
        program.run(self._cfg.n_timesteps, self.tail)
        rows = self._program.buffers
        layout = rows.layout
        found = b.x.transpose(1, 2).flatten(0, 1)
        torch.index_select(found, 0, layout.item * frames + layout.place, out=rows.x)
        return rows.x

    def _make_padded(self, items: int, frames: int) -> PaddedBuffers:
        bins, device = self._cfg.mel_bins, self._device

        def zeros(*shape: int, dtype: torch.dtype = self._dtype) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        return PaddedBuffers(
            table=zeros(items, 3, frames, dtype=torch.int32),
            x=zeros(items, bins, frames, dtype=torch.float32),
            step=zeros(1, dtype=torch.int64),
            mask=zeros(2 * items, 1, frames),
            mu=zeros(2 * items, bins, frames),
            spks=zeros(2 * items, bins),
            cond=zeros(2 * items, bins, frames),
            chunks=zeros(2 * items, frames, dtype=torch.float32),
        )

    def _fill(self, b: PaddedBuffers, static: Tensor) -> None:
        """The packed conditions (rows, 240), spread; the second guidance half has none."""
        where, inside, chunks = b.table.unbind(1)
        items, bins = len(where), b.mu.shape[1]
        rows = static.index_select(0, where.flatten()).view(items, -1, 3 * bins)
        rows = torch.where(inside[..., None] > 0, rows, 0.0).transpose(1, 2)
        b.mu[:items].copy_(rows[:, :bins])
        b.spks[:items].copy_(rows[:, bins : 2 * bins, 0])
        b.cond[:items].copy_(rows[:, 2 * bins :])
        for half in (slice(0, items), slice(items, None)):
            b.mask[half, 0].copy_(inside)
            b.chunks[half].copy_(chunks)

    def _padded_step(self, b: PaddedBuffers) -> None:
        rate = self._cfg.cfg_rate
        size = self._sizes.index_select(0, b.step)
        t = self._times.index_select(0, b.step).expand(len(b.mu))
        found = self._backend(torch.cat((b.x, b.x)), b.mask, b.mu, t, b.spks, b.cond, b.chunks)
        if found is None:
            raise UnfitError
        guided, free = found.float().chunk(2)
        b.x.add_(size * ((1.0 + rate) * guided - rate * free))
        b.step.add_(1)


def padded_table(pack: FramePack, items: int, frames: int) -> npt.NDArray[np.int32]:
    """(items, 3, frames): each frame's row in the pack (0 outside), whether it is inside, its chunk's number."""
    table = np.zeros((items, 3, frames), dtype=np.int32)
    for row, item, start in zip(table, pack.items, pack.starts):
        row[0, : item.frames] = np.arange(start, start + item.frames)
        row[1, : item.frames] = 1
        if item.causal:
            row[2] = np.arange(frames) // pack.chunk
    return table


def _dense(pack: FramePack) -> bool:
    """Whether padding costs less than half as much again: else the packed way is faster whatever the backend."""
    longest = max(item.frames for item in pack.items)
    items, frames = padded_shape(len(pack.items), longest)
    return items * frames <= _MOST_PADDING * pack.rows

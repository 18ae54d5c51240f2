"""The vocoder's convolutions over a packed row with Triton's kernels (`FusedConvolutions`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from inference.models.vocoder import Vocoder
from inference.runtime.vocoder_tiles import Tile, tile_for
from inference.runtime.vocoder_weights import (
    ConvPack,
    Pair,
    StagePack,
    pack_parallel,
    pack_stage,
    pack_wide,
    padded,
)

PAIR_WIDTH = 64  # channels up to which two rows at a time can be worth it
_FINAL_SLOPE = 0.01
TileChoice = Callable[[str, int, int, int], Tile]


class FusedConvolutions:
    """Weights in float16, and launches. `tiles` chooses block sizes (the tuning script tries others).

    Rows are frames of the packed row. `flags` (rows + 2) int8: see `vocoder_kernels.inside_items`; bit 1 is set on an
    item's first frame. Raises `ValueError` for sizes the kernels are not made for.
    """

    def __init__(self, vocoder: Vocoder, tiles: TileChoice = tile_for) -> None:
        from inference.runtime import vocoder_kernels  # imports Triton

        check_sizes(vocoder)
        self._kernels = vocoder_kernels
        self.cfg, self.tiles = vocoder.cfg, tiles
        self.dtype = dtype = torch.float16
        self.device = vocoder.conv_pre.weight.device
        with torch.no_grad():
            self._stages = [pack_stage(vocoder, i, dtype, PAIR_WIDTH) for i in range(len(vocoder.ups))]
            self._pre = pack_parallel([vocoder.conv_pre], dtype)
            convs = [layer for layer in vocoder.f0_predictor.condnet if isinstance(layer, nn.Conv1d)]
            self._wide = [pack_wide(conv, padded(conv.in_channels)) for conv in convs]
        self._nothing = torch.zeros(2, device=self.device)

    # ------------------------------------------------------------------------------------------------- whole
    def pitch(self, halves: Tensor, flags: Tensor) -> Tensor:
        """Mel in two halves (rows, 2 * padded bins) float16 → the F0 predictor's last layer (rows, 2 * channels)."""
        x, rows = halves, len(halves)
        for pack, scale in self._wide:
            y = torch.empty(rows, 2 * pack.width, dtype=torch.float16, device=self.device)
            self.launch("wide", pack, x, y, flags, rows, spread=1, finish="ELU_SPLIT", scale=scale)
            x = y
        return x

    def hidden(self, halves: Tensor, excitation: Tensor, flags: Tensor) -> Tensor:
        """Mel as for `pitch`, source spectrum (120 * rows + 1 or more, 24), zero outside of items → the last layer's
        input (120 * rows + 1, channels), zero outside of items."""
        rows = len(halves)
        x = torch.empty(rows, padded(self.cfg.base_channels), dtype=self.dtype, device=self.device)
        self.launch(
            "pre", self._pre, halves, x, flags, rows, spread=1, finish="MEAN",
            pitch=halves.shape[1], leak=self.cfg.lrelu_slope, res_count=0,
        )  # fmt: skip
        spread = 1
        for number, rate in enumerate(self.cfg.upsample_rates):
            spread *= rate
            x = self._stage(number, x, excitation, flags, rows, spread)
        return x

    def _stage(
        self, number: int, x: Tensor, excitation: Tensor, flags: Tensor, frames: int, spread: int
    ) -> Tensor:
        stage = self._stages[number]
        last = number == len(self._stages) - 1
        rows = frames * spread + last
        where: dict[str, Any] = {"spread": spread, "closed": last, "frames": frames}

        def empty(branches: int) -> Tensor:
            return torch.empty(branches, rows, stage.width, dtype=self.dtype, device=self.device)

        spare, active, middle, first = empty(3), empty(3), empty(3), empty(1)
        # The source's part: its convolution, its residual block.
        self.launch(
            "down", stage.down, excitation, first, flags, rows, finish="RESIDUAL", act=active,
            slopes=stage.down_slopes, **where,
        )  # fmt: skip
        source = torch.empty_like(first)
        self._blocks(stage.source, first, active, middle, spare, source, flags, leak=1.0, **where)
        self.launch(
            "up", stage.up, x, first, flags, rows, finish="UPSAMPLE", act=active, slopes=stage.up_slopes,
            res=source, **where,
        )  # fmt: skip
        leak = _FINAL_SLOPE if last else self.cfg.lrelu_slope
        self._blocks(stage.blocks, first, active, middle, spare, source, flags, leak=leak, **where)
        return source[0]

    def _blocks(
        self,
        layers: list[Pair],
        x: Tensor,
        active: Tensor,
        middle: Tensor,
        spare: Tensor,
        out: Tensor,
        flags: Tensor,
        leak: float,
        **where: Any,
    ) -> None:
        """x (1, rows, width), its Snakes `active` → `out`: leaky ReLU of the parallel blocks' mean.

        `active`, `middle`, `spare` (3, rows, width) are written.
        """
        rows, residual = x.shape[1], x
        for layer in layers:
            self.launch(
                "conv", layer.dilated, active, None, flags, rows, finish="ACTIVATE", act=middle,
                slopes=layer.middle, paired=layer.dilated_paired, **where,
            )  # fmt: skip
            if layer.after is None:
                count = layer.dilated.branches
                self.launch(
                    "mean", layer.plain, middle, out, flags, rows, finish="MEAN", res=residual,
                    res_count=count, scale=1.0 / count, leak=leak, paired=layer.plain_paired, **where,
                )  # fmt: skip
            else:
                self.launch(
                    "conv", layer.plain, middle, spare, flags, rows, finish="RESIDUAL", act=active,
                    slopes=layer.after, res=residual, paired=layer.plain_paired, **where,
                )  # fmt: skip
                residual = spare

    # ------------------------------------------------------------------------------------------------ launch
    def launch(
        self,
        kind: str,
        pack: ConvPack,
        x: Tensor,
        out: Tensor | None,
        flags: Tensor,
        rows: int,
        *,
        spread: int,
        finish: str,
        closed: bool = False,
        act: Tensor | None = None,
        slopes: Tensor | None = None,
        res: Tensor | None = None,
        res_count: int = 0,
        scale: float = 1.0,
        leak: float = 1.0,
        pitch: int = 0,
        frames: int = 0,
        paired: ConvPack | None = None,
        tile: Tile | None = None,
    ) -> None:
        """One convolution to `rows` rows. x (branches, rows, pitch) or without the first."""
        tile = tile or self.tiles(kind, pack.width, pack.inner, frames or rows // spread)
        if tile.pair and paired is not None:
            pack = paired
        pitch = pitch or pack.pitch
        x_rows = x.shape[-2]
        groups = -(-rows // pack.rate)
        if pack.pair:
            groups = -(-rows // (2 * pack.dilation)) * pack.dilation
        grid = (
            -(-groups // tile.rows) * -(-pack.columns // tile.columns),
            1 if finish == "MEAN" else pack.branches,
        )
        engine = tile.engine and pack.row_step == 1 and not pack.pair and pack.inner_real == pack.inner
        source, weight = x, pack.weight
        if engine:
            source = _described(x.view(-1, pitch), tile.rows, tile.inner)
            weight = _described(pack.weight, tile.inner, tile.columns)
        nothing = self._nothing
        self._kernels.conv_rows[grid](
            source, weight, pack.bias,
            nothing if slopes is None else slopes,
            nothing if res is None else res,
            nothing if out is None else out,
            nothing if act is None else act,
            flags,
            groups, x_rows, rows, 0 if res is None or len(res) == 1 else rows, res_count,
            *pack.taps, *pack.centers, pack.dilation, scale, leak,
            inner=pack.inner, inner_real=pack.inner_real, pitch=pitch, wrap=pack.wrap,
            row_step=pack.row_step, columns=pack.columns, width=pack.width, rate=pack.rate,
            late=int(closed and pack.rate > 1), pair=pack.pair, spread=spread, closed=closed,
            finish=getattr(self._kernels, finish), has_res=res is not None, tma=engine,
            bm=tile.rows, bn=tile.columns, bk=tile.inner, num_warps=tile.warps, num_stages=tile.stages,
            **({"maxnreg": tile.registers} if tile.registers else {}),
        )  # fmt: skip


def _described(values: Tensor, rows: int, columns: int) -> Any:
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor(values, list(values.shape), list(values.stride()), [rows, columns])


def check_sizes(vocoder: Vocoder) -> None:
    """Raises `ValueError` for a vocoder built unlike the public one (other widths are fine)."""
    cfg = vocoder.cfg
    blocks = [cast(Any, block) for block in (*vocoder.resblocks, *vocoder.source_resblocks)]
    ok = (
        len(cfg.resblock_kernel_sizes) == 3
        and cfg.istft_n_fft == 16
        and cfg.istft_hop == 4
        and all(size % 2 == 1 for size in (*cfg.resblock_kernel_sizes, *cfg.source_resblock_kernel_sizes))
        and len({tuple(dilations) for dilations in cfg.resblock_dilation_sizes}) == 1
        and all(len(block.convs1) > 1 for block in blocks)
    )
    if not ok:
        raise ValueError("the vocoder's kernels are made for other sizes")


__all__ = ["FusedConvolutions", "StagePack", "check_sizes"]

"""Block sizes of the vocoder's convolution kernel, as `benchmarks/vocoder_kernels.py` found them on an H200."""

from __future__ import annotations

from dataclasses import dataclass, replace

FEW_ROWS, SOME_ROWS = 256, 1024  # frames of a packed row up to which smaller blocks fill the GPU better


@dataclass(frozen=True)
class Tile:
    """Rows, columns and inner values a block works on; warps, stages of its pipeline; whether it makes two rows of
    output at a time (`ConvPack.pair`), whether the copy engine loads its blocks, and a bound on registers (0: none)."""

    rows: int
    columns: int
    inner: int
    warps: int = 4
    stages: int = 3
    pair: bool = False
    engine: bool = False
    registers: int = 0


_SMALL = Tile(64, 64, 64, 4, 4)
_MIDDLE = Tile(128, 64, 64, 4, 4)
_LARGE = Tile(128, 128, 64, 8, 3)

# By kind and output channels of a row: for few rows, for some and for many.
_TILES: dict[tuple[str, int], tuple[Tile, Tile, Tile]] = {
    ("conv", 256): (_SMALL, _LARGE, _LARGE),
    ("conv", 128): (_SMALL, _LARGE, _LARGE),
    ("conv", 64): (_SMALL, _MIDDLE, _MIDDLE),
    ("mean", 256): (_SMALL, _LARGE, _LARGE),
    ("mean", 128): (_SMALL, _LARGE, _LARGE),
    ("mean", 64): (_SMALL, _MIDDLE, _MIDDLE),
    ("up", 256): (_SMALL, _LARGE, _LARGE),
    ("up", 128): (_SMALL, _LARGE, _LARGE),
    ("up", 64): (_SMALL, _SMALL, _SMALL),
    ("pre", 512): (Tile(64, 64, 32, 4, 4),) * 3,
    ("wide", 512): (Tile(64, 32, 128, 4, 3), Tile(64, 32, 128, 4, 3), Tile(128, 128, 64, 8, 3)),
}


def tile_for(kind: str, width: int, inner: int, frames: int) -> Tile:
    """For `width` output channels a row and `inner` values of a tap, over `frames` rows of the mel."""
    found = _TILES.get((kind, width))
    if found is None:  # any other size: blocks that always fit
        columns = next(size for size in (64, 32) if width % size == 0)
        return Tile(64, columns, 64 if inner % 64 == 0 else 32, 4, 3)
    tile = found[(frames > FEW_ROWS) + (frames > SOME_ROWS)]
    return tile if inner % tile.inner == 0 else replace(tile, inner=32)

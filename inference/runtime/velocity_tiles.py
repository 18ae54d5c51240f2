"""Tile sizes of the velocity network's kernels by number of rows: a small set, measured on an H200
(`python -m benchmarks.velocity_kernels`). A row's result does not depend on the number of rows within a plan."""

from __future__ import annotations

from dataclasses import dataclass, replace

# Up to here the number of programs counts, above it what each gets done. Both guidance halves are counted.
FEW_ROWS = 1024
SOME_ROWS = 7168


@dataclass(frozen=True)
class LinearTiles:
    """A program's rows and columns, how deep a slice of the sum it takes at a time, and how many tiles of columns it
    makes one after the other."""

    rows: int
    columns: int
    warps: int
    stages: int
    depth: int = 64
    tiles: int = 1


@dataclass(frozen=True)
class FeedForwardTiles:
    """Rows and how many hidden values exist at a time."""

    rows: int
    width: int
    warps: int
    stages: int


@dataclass(frozen=True)
class AttentionTiles:
    """Queries of a program, 64 or 128, and keys at a time."""

    queries: int
    keys: int
    warps: int
    stages: int


@dataclass(frozen=True)
class Plan:
    """How a number of rows is computed. With `feed_forward`, that is one kernel, else `up` and `down` are two."""

    qkv: LinearTiles
    up: LinearTiles
    out: LinearTiles
    down: LinearTiles
    conv: LinearTiles
    final: LinearTiles
    attention: AttentionTiles
    feed_forward: FeedForwardTiles | None = None


FEW = Plan(
    qkv=LinearTiles(64, 128, 4, 1),
    up=LinearTiles(32, 128, 4, 1),
    out=LinearTiles(32, 32, 4, 4, depth=128),
    down=LinearTiles(32, 32, 4, 4, depth=128),
    conv=LinearTiles(16, 256, 8, 3),
    final=LinearTiles(16, 128, 4, 3),
    attention=AttentionTiles(64, 64, 4, 3),
)
SOME = Plan(
    qkv=LinearTiles(64, 128, 4, 1),
    up=LinearTiles(64, 128, 4, 1),
    out=LinearTiles(64, 64, 4, 4),
    down=LinearTiles(64, 64, 4, 4),
    conv=LinearTiles(16, 256, 8, 3),
    final=LinearTiles(16, 128, 4, 3),
    attention=AttentionTiles(64, 64, 4, 3),
)
MANY = Plan(
    qkv=LinearTiles(128, 64, 8, 3, tiles=24),
    up=LinearTiles(128, 64, 8, 3, tiles=16),
    out=LinearTiles(128, 256, 8, 3),
    down=LinearTiles(128, 256, 8, 3),
    conv=LinearTiles(128, 256, 8, 3),
    final=LinearTiles(32, 128, 4, 3),
    attention=AttentionTiles(128, 64, 8, 3),
    feed_forward=FeedForwardTiles(128, 64, 8, 2),
)
LARGE_CARD = (FEW, SOME, MANY)

# Cards with 99 KiB of shared memory a program (RTX 30 to 50, A10, L4, L40S): what fits there twice or once, as the
# compiler says (`tests/runtime/test_kernels_fit.py`); nobody has measured them on such a card.
_SMALL_FEW = replace(FEW, qkv=LinearTiles(64, 64, 8, 1), up=LinearTiles(32, 64, 4, 1))
_SMALL_SOME = replace(SOME, qkv=LinearTiles(64, 64, 8, 1), up=LinearTiles(64, 64, 8, 1))
_SMALL_MANY = Plan(
    qkv=LinearTiles(64, 64, 4, 2, tiles=24),
    up=LinearTiles(64, 64, 4, 2, tiles=16),
    out=LinearTiles(128, 128, 8, 3, depth=32),
    down=LinearTiles(128, 128, 8, 3, depth=32),
    conv=LinearTiles(64, 256, 8, 3, depth=32),
    final=LinearTiles(32, 128, 4, 3),
    attention=AttentionTiles(128, 64, 8, 2),
    feed_forward=FeedForwardTiles(64, 32, 4, 2),
)
SMALL_CARD = (_SMALL_FEW, _SMALL_SOME, _SMALL_MANY)
_LARGE_BYTES = 160 * 1024


def plans_for(shared: int) -> tuple[Plan, Plan, Plan]:
    """For few, some and many rows. `shared`: bytes of shared memory that a program may take."""
    return LARGE_CARD if shared >= _LARGE_BYTES else SMALL_CARD


def plan_for(rows: int, shared: int) -> Plan:
    """The plan for so many rows, both guidance halves counted."""
    few, some, many = plans_for(shared)
    if rows <= FEW_ROWS:
        return few
    return some if rows <= SOME_ROWS else many

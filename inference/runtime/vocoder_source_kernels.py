"""What comes before the packed vocoder's convolutions, as Triton kernels: mel, phases, source and its spectrum.

All of it is float32 as in the plain modules (phases are summed in float64). A batch's layout is one int64 table on the
device (`vocoder_fused.FusedPack`): for each row its item, its frame in the item, whether it is inside one; then for
each item its first row, end, seed, place in its stream, whether it has a state and whether it goes on; then addresses
of what it brings. Import this only where Triton is.
"""

from __future__ import annotations

import triton
import triton.language as tl

from inference.runtime.counter_noise_kernels import STEP, mixed
from inference.runtime.vocoder_kernels import inside_items

_TURN = tl.constexpr(6.283185307179586)


@triton.jit
def item_field(table, rows, most, number: tl.constexpr, item):  # type: ignore[no-untyped-def]
    """Of an item: 0 first row, 1 end, 2 seed, 3 place, 4 has a state, 5 goes on, 6… addresses."""
    return tl.load(table + 3 * rows + number * most + item)


@triton.jit
def floats(address):  # type: ignore[no-untyped-def]
    return address.to(tl.pointer_type(tl.float32))


@triton.jit(do_not_specialize=["rows", "most"])
def gather_mel(  # type: ignore[no-untyped-def]
    table, mel, halves, flags, rows, most,
    bins: tl.constexpr, wide: tl.constexpr, overlap: tl.constexpr, block: tl.constexpr, lanes: tl.constexpr,
):  # fmt: skip
    """Each item's kept frames and new ones to their rows: mel (rows, bins), its two halves, flags (see `conv_rows`)."""
    row = tl.program_id(0) * block + tl.arange(0, block)
    there = row < rows
    item = tl.load(table + row, mask=there, other=0)
    place = tl.load(table + rows + row, mask=there, other=0)
    inside = tl.load(table + 2 * rows + row, mask=there, other=0) != 0
    known = item_field(table, rows, most, 4, item) * overlap
    kept = place < known
    new, old = item_field(table, rows, most, 6, item), item_field(table, rows, most, 7, item)
    address = tl.where(kept, old, new) + tl.where(kept, place, place - known) * (4 * bins)
    lane = tl.arange(0, lanes)
    real = inside[:, None] & (lane < bins)[None, :]
    value = tl.load(floats(address)[:, None] + lane[None, :], mask=real, other=0.0)
    ok = there[:, None] & (lane < bins)[None, :]
    tl.store(mel + row[:, None] * bins + lane[None, :], value, mask=ok)
    high = value.to(tl.float16)
    ok = there[:, None] & (lane < wide)[None, :]
    at = halves + row[:, None] * (2 * wide) + lane[None, :]
    tl.store(at, high, mask=ok)
    tl.store(at + wide, (value - high.to(tl.float32)).to(tl.float16), mask=ok)
    flag = tl.where(inside, tl.where(place == 0, 3, 1), 0)
    tl.store(flags + 1 + row, flag.to(tl.int8), mask=there)


@triton.jit(do_not_specialize=["rows"])
def classify(  # type: ignore[no-untyped-def]
    hidden, weight, bias, flags, f0, rows, width: tl.constexpr, block: tl.constexpr, lanes: tl.constexpr
):  # fmt: skip
    """hidden (rows, 2 * width) in two halves → F0 (rows,) in Hz, 0 outside of items and where it is not finite."""
    row = tl.program_id(0) * block + tl.arange(0, block)
    lane = tl.arange(0, lanes)
    real = (row < rows)[:, None] & (lane < width)[None, :]
    at = hidden + row[:, None] * (2 * width) + lane[None, :]
    value = tl.load(at, mask=real, other=0.0).to(tl.float32) + tl.load(at + width, mask=real, other=0.0)
    total = tl.sum(value * tl.load(weight + lane, mask=lane < width, other=0.0)[None, :], 1)
    found = tl.abs(total + tl.load(bias))
    keep = inside_items(flags, row, rows, 1, False) & (found < float("inf"))
    tl.store(f0 + row, tl.where(keep, found, 0.0), mask=row < rows)


@triton.jit
def _turns(f0, number, rate: tl.constexpr):  # type: ignore[no-untyped-def]
    """Cycles that harmonic `number` makes in one sample, modulo 1; rounded as the plain module rounds."""
    share = tl.div_rn(f0 * number.to(tl.float32), tl.full([], rate, tl.float32))
    return share - tl.floor(share)


@triton.jit(do_not_specialize=["rows", "most"])
def sum_phases(  # type: ignore[no-untyped-def]
    table, f0, cycles, rows, most,
    count: tl.constexpr, rate: tl.constexpr, hop: tl.constexpr, overlap: tl.constexpr,
    block: tl.constexpr, lanes: tl.constexpr,
):  # fmt: skip
    """Phases (rows, count) of one item's harmonics at its frames' centres, in cycles modulo 1."""
    item = tl.program_id(0)
    start, end = item_field(table, rows, most, 0, item), item_field(table, rows, most, 1, item)
    continued = item_field(table, rows, most, 4, item) != 0
    lane = tl.arange(0, lanes)
    used = lane < count
    frame = tl.arange(0, block)
    offset = tl.zeros([lanes], tl.float64)
    if continued:  # the phases are known at the centre of the last kept frame
        row = start + frame
        pitch = tl.load(f0 + row, mask=(frame < overlap) & (row < end), other=0.0)
        steps = _turns(pitch[:, None], (lane + 1)[None, :], rate) * hop
        old = tl.load(floats(item_field(table, rows, most, 10, item)) + lane, mask=used, other=0.0)
        offset = old.to(tl.float64) - tl.sum(steps.to(tl.float64), 0)
    for first in range(start, end, block):
        row = first + frame
        pitch = tl.load(f0 + row, mask=row < end, other=0.0)
        steps = _turns(pitch[:, None], (lane + 1)[None, :], rate) * hop
        steps = steps.to(tl.float64)
        total = tl.cumsum(steps, 0) + offset[None, :]
        offset += tl.sum(steps, 0)
        found = (total - tl.floor(total)).to(tl.float32)
        tl.store(
            cycles + row[:, None] * count + lane[None, :], found, mask=(row < end)[:, None] & used[None, :]
        )


@triton.jit
def _noise(seed, position):  # type: ignore[no-untyped-def]
    """`counter_normal`, bit for bit."""
    bits = mixed(mixed(seed * STEP) + position * STEP)
    total = (bits & 0xFFFF) + ((bits >> 16) & 0xFFFF) + ((bits >> 32) & 0xFFFF) + ((bits >> 48) & 0xFFFF)
    return (total.to(tl.float32) - 131070.0) * 2.6428997921303014e-05


@triton.jit(do_not_specialize=["rows", "most"])
def render_source(  # type: ignore[no-untyped-def]
    table, f0, cycles, weight, bias, norm, source, rows, most,
    amplitude, sigma, threshold,
    count: tl.constexpr, rate: tl.constexpr, hop: tl.constexpr, overlap: tl.constexpr, lanes: tl.constexpr,
):  # fmt: skip
    """One frame of the source (rows, hop): sines along straight lines between phases, noise, what an item kept."""
    row = tl.program_id(0)
    n = tl.arange(0, lanes)
    ok = n < hop
    if tl.load(table + 2 * rows + row) != 0:
        item, place = tl.load(table + row), tl.load(table + rows + row)
        continued = item_field(table, rows, most, 4, item) != 0
        last = row == item_field(table, rows, most, 1, item) - 1
        pitch = tl.load(f0 + row)
        behind = tl.load(f0 + tl.where(last, row, row + 1))
        rests = (place == 0) & (continued == 0)
        stops = last & (item_field(table, rows, most, 5, item) == 0)
        time = tl.div_rn(n.to(tl.float32) + 0.5, tl.full([], hop, tl.float32)) - 0.5
        total = tl.zeros([lanes], tl.float32)
        for number in tl.static_range(count):
            one = tl.full([], number + 1, tl.float32)
            before = tl.where(rests, 0.0, _turns(pitch, one, rate) * hop)
            after = tl.where(stops, 0.0, _turns(behind, one, rate) * hop)
            phase = tl.load(cycles + row * count + number) + tl.where(n < hop // 2, before, after) * time
            total += tl.sin((phase - tl.floor(phase + 0.5)) * _TURN) * tl.load(weight + number)
        voiced = pitch > threshold
        level = tl.where(voiced, sigma, amplitude / 3.0) * tl.load(norm)
        position = (item_field(table, rows, most, 3, item) + place) * hop + n
        value = tl.where(voiced, total * amplitude, 0.0) + tl.load(bias)
        value += level * _noise(item_field(table, rows, most, 2, item), position)
        fall = tl.exp(-2.0 * tl.abs(value))
        size = (1.0 - fall) / (1.0 + fall)
        value = tl.where(value < 0, -size, size)
        # Behind the last kept frame's centre the phases head for a frame that only now is known.
        kept = (continued != 0) & (place * hop + n < overlap * hop - hop // 2)
        old = floats(item_field(table, rows, most, 8, item))
        value = tl.where(kept, tl.load(old + place * hop + n, mask=kept & ok, other=0.0), value)
        tl.store(source + row * hop + n, value, mask=ok)
    else:
        tl.store(source + row * hop + n, tl.zeros([lanes], tl.float32), mask=ok)


@triton.jit(do_not_specialize=["rows", "most", "frames", "room"])
def analyse(  # type: ignore[no-untyped-def]
    table, flags, source, window, spectrum, rows, most, frames, room,
    hop: tl.constexpr, size: tl.constexpr, step: tl.constexpr, values: tl.constexpr, pitch: tl.constexpr,
    block: tl.constexpr, lanes: tl.constexpr,
):  # fmt: skip
    """The source's spectrum (room, pitch), reflected at each item's own edges, zero outside of the items and behind
    its `frames`."""
    i = tl.program_id(0) * block + tl.arange(0, block)
    spread: tl.constexpr = hop // step
    inside = inside_items(flags, i, frames, spread, True)
    frame = i // spread
    owner = tl.where(tl.load(flags + 1 + frame, mask=i < frames, other=0) != 0, frame, frame - 1)
    item = tl.load(table + owner, mask=inside, other=0)
    start, end = (
        item_field(table, rows, most, 0, item) * hop,
        item_field(table, rows, most, 1, item) * hop - 1,
    )
    lane = tl.arange(0, lanes)
    total = tl.zeros([block, lanes], tl.float32)
    for number in tl.static_range(size):
        at = (i * step + (number - size // 2)).to(tl.int64)
        at = tl.where(at < start, 2 * start - at, at)
        at = tl.where(at > end, 2 * end - at, at)
        sample = tl.load(source + at, mask=inside & (at >= start), other=0.0)
        total += (
            sample[:, None] * tl.load(window + number * values + lane, mask=lane < values, other=0.0)[None, :]
        )
    ok = (i < room)[:, None] & (lane < pitch)[None, :]
    total = tl.where(inside[:, None] & (lane < values)[None, :], total, 0.0)
    tl.store(spectrum + i[:, None] * pitch + lane[None, :], total.to(spectrum.dtype.element_ty), mask=ok)

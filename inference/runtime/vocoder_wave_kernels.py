"""What comes behind the packed vocoder's convolutions, as Triton kernels: inverse transform, cross-fade, states.

Float32, on the table that `vocoder_source_kernels` tells of. Import this only where Triton is.
"""

from __future__ import annotations

import triton
import triton.language as tl

from inference.runtime.vocoder_kernels import inside_items
from inference.runtime.vocoder_source_kernels import floats, item_field


@triton.jit(do_not_specialize=["frames"])
def end_spectrum(  # type: ignore[no-untyped-def]
    x, w, bias, flags, backward, out, frames,
    taps: tl.constexpr, inner: tl.constexpr, bins: tl.constexpr, limit: tl.constexpr, spread: tl.constexpr,
    sound: tl.constexpr, block: tl.constexpr, bk: tl.constexpr,
):  # fmt: skip
    """The last convolution, 16 columns of log magnitudes and 16 of phases, of weights in two halves.

    x (frames, inner) → with `sound` the windowed frames (frames, 16) of the inverse transform, zero outside of the
    items; else the columns themselves (frames, 32). Float32. w (taps, inner, 64): columns' high halves, then their low
    ones; backward (2, 16, 16).
    """
    i = tl.program_id(0) * block + tl.arange(0, block)
    k = tl.arange(0, bk)
    n = tl.arange(0, 32)
    both = tl.arange(0, 64)
    pair = tl.zeros([block, 64], tl.float32)
    blocks: tl.constexpr = inner // bk
    for step in range(taps * blocks):
        tap = step // blocks
        at = (step - tap * blocks) * bk
        seen = i + (tap - taps // 2)
        there = (seen >= 0) & (seen < frames)
        part = tl.load(x + seen[:, None] * inner + (at + k)[None, :], mask=there[:, None], other=0.0)
        pair = tl.dot(part, tl.load(w + (step * bk + k)[:, None] * 64 + both[None, :]), pair)
    high, low = tl.split(tl.permute(tl.reshape(pair, [block, 2, 32]), (0, 2, 1)))
    acc = high + low + tl.load(bias + n)[None, :]
    if sound:
        log_size, angle = tl.split(tl.permute(tl.reshape(acc, [block, 2, 16]), (0, 2, 1)))
        b = tl.arange(0, 16)
        size = tl.exp(log_size)
        size = tl.where(size > limit, limit, size)  # keeps what is not a number
        size = tl.where((b < bins)[None, :], size, 0.0)
        angle = tl.sin(angle)
        square = b[:, None] * 16 + b[None, :]
        real = tl.dot(size * tl.cos(angle), tl.load(backward + square), input_precision="ieee")
        imaginary = tl.dot(size * tl.sin(angle), tl.load(backward + 256 + square), input_precision="ieee")
        keep = inside_items(flags, i, frames, spread, True)[:, None]
        found = tl.where(keep, real + imaginary, 0.0)
        tl.store(out + i[:, None] * 16 + b[None, :], found, mask=(i < frames)[:, None])
    else:
        tl.store(out + i[:, None] * 32 + n[None, :], acc, mask=(i < frames)[:, None])


@triton.jit(do_not_specialize=["rows", "most", "frames"])
def finish_wave(  # type: ignore[no-untyped-def]
    table, flags, parts, energy, rising, wave, answer, unsound, rows, most, frames, limit,
    hop: tl.constexpr, overlap: tl.constexpr, lanes: tl.constexpr,
):  # fmt: skip
    """One frame of sound: overlapping windowed frames (frames, 16) added, faded into what the item kept, as int16."""
    row = tl.program_id(0)
    n = tl.arange(0, lanes)
    ok = n < hop
    if tl.load(table + 2 * rows + row) != 0:
        item, place = tl.load(table + row), tl.load(table + rows + row)
        total = tl.zeros([lanes], tl.float32)
        weight = tl.zeros([lanes], tl.float32)
        sample = row * hop + n + 8
        for number in tl.static_range(4):
            i = sample // 4 - number
            within = sample % 4 + 4 * number
            keep = inside_items(flags, i, frames, hop // 4, True) & ok
            total += tl.load(parts + i * 16 + within, mask=keep, other=0.0)
            weight += tl.where(keep, tl.load(energy + within), 0.0)
        value = tl.div_rn(total, tl.where(weight > 1e-11, weight, 1e-11))
        bad = tl.max(((value != value) & ok).to(tl.int32), 0)
        value = tl.where(value > limit, limit, tl.where(value < -limit, -limit, value))
        if (place < overlap) & (item_field(table, rows, most, 4, item) != 0):
            at = place * hop + n
            old = tl.load(floats(item_field(table, rows, most, 9, item)) + at, mask=ok, other=0.0)
            rise = tl.load(rising + at, mask=ok, other=0.0)
            fall = tl.load(rising + overlap * hop + at, mask=ok, other=0.0)
            value = value * rise + old * fall
        tl.store(wave + row * hop + n, value, mask=ok)
        tl.store(answer + row * hop + n, tl.where(value == value, value * 32768.0, 0.0).to(tl.int16), mask=ok)
        tl.store(unsound + row, bad)
    else:
        tl.store(answer + row * hop + n, tl.zeros([lanes], tl.int16), mask=ok)
        tl.store(unsound + row, 0)


@triton.jit(do_not_specialize=["rows", "most"])
def keep_states(  # type: ignore[no-untyped-def]
    table, mel, source, wave, cycles, unsound, answer, slab, rows, most,
    hop: tl.constexpr, bins: tl.constexpr, count: tl.constexpr, overlap: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """An item's state: mel, source, sound of its last frames and its last phases, one behind the other in a slab's
    row; and whether its sound is finite, behind all sound in `answer`."""
    item = tl.program_id(0)
    start, end = item_field(table, rows, most, 0, item), item_field(table, rows, most, 1, item)
    n = tl.arange(0, block)
    bad = tl.zeros([block], tl.int32)
    for row in range(start, end, block):
        bad = tl.maximum(bad, tl.load(unsound + row + n, mask=row + n < end, other=0))
    tl.store(answer + rows * hop + item, tl.max(bad, 0).to(tl.int16))
    if item_field(table, rows, most, 5, item) != 0:
        begin = end - overlap
        spot = slab + item.to(tl.int64) * (overlap * (bins + 2 * hop) + 16)
        for first in range(0, overlap * bins, block):
            ok = first + n < overlap * bins
            tl.store(spot + first + n, tl.load(mel + begin * bins + first + n, mask=ok), mask=ok)
        spot += overlap * bins
        for first in range(0, overlap * hop, block):
            ok = first + n < overlap * hop
            at = begin * hop + first + n
            tl.store(spot + first + n, tl.load(source + at, mask=ok), mask=ok)
            tl.store(spot + overlap * hop + first + n, tl.load(wave + at, mask=ok), mask=ok)
        spot += 2 * overlap * hop
        ok = n < count
        tl.store(spot + n, tl.load(cycles + (end - 1) * count + n, mask=ok), mask=ok)

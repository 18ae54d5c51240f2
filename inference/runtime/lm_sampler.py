"""`sample_step` as one Triton kernel: a program a row, the same decisions from the same uniforms.

Import this on CUDA only. Sums over the vocabulary are float32 as in the plain code, but added in another order.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from inference.models.config import LanguageModelConfig
from inference.runtime.counter_noise_kernels import STEP, mixed, shifted
from inference.runtime.slot_table import ACTIVE, EXACT, ID, KEY, LEAST, LENGTH, MOST, RECENT, STEPS

_ID, _LENGTH, _KEY, _STEPS = tl.constexpr(ID), tl.constexpr(LENGTH), tl.constexpr(KEY), tl.constexpr(STEPS)
_LEAST, _MOST, _EXACT = tl.constexpr(LEAST), tl.constexpr(MOST), tl.constexpr(EXACT)
_ACTIVE, _RECENT = tl.constexpr(ACTIVE), tl.constexpr(RECENT)
_NO_ID = tl.constexpr(1 << 30)  # above every id
_WARPS = 8


@triton.jit
def _uniform(key, counter):  # type: ignore[no-untyped-def]
    """`uniforms.keyed_uniforms`, one of them: float64 in [0, 1)."""
    return shifted(mixed(key + counter * STEP), 11).to(tl.float64) * (1.0 / 9007199254740992.0)


@triton.jit
def _softmax(values):  # type: ignore[no-untyped-def]
    shares = tl.exp(values - tl.max(values, 0))
    return shares / tl.sum(shares, 0)


@triton.jit(do_not_specialize=["advance"])
def _draw(  # type: ignore[no-untyped-def]
    logits, table, drawn, uniforms, top_p, repeats, advance,
    width: tl.constexpr, ids: tl.constexpr, block: tl.constexpr, end: tl.constexpr, count: tl.constexpr,
    places: tl.constexpr, window: tl.constexpr, window_block: tl.constexpr, given: tl.constexpr,
):  # fmt: skip
    """Draw one row's next id from its logits and bring its state up to date."""
    row = tl.program_id(0).to(tl.int64)
    state = table + row * width
    steps, active = tl.load(state + _STEPS), tl.load(state + _ACTIVE)
    number = tl.arange(0, block)
    known = number < ids
    values = tl.load(logits + row * ids + number, mask=known, other=float("-inf")).to(tl.float32)
    finite = (values == values) & (tl.abs(values) < float("inf"))
    sound = tl.sum((known & (finite == 0)).to(tl.int32), 0) == 0
    high = tl.max(values, 0)
    logp = values - high - tl.log(tl.sum(tl.exp(values - high), 0))
    too_early = steps < tl.load(state + _LEAST)
    banned = (number == end) & too_early | (number > end) & (tl.load(state + _EXACT) <= 0)
    logp = tl.where(banned | (number >= ids), float("-inf"), logp)
    # As whole numbers, which warps reduce in one instruction; the bits of non-negative floats sort like the floats.
    left = tl.where(known, _softmax(logp).to(tl.int32, bitcast=True), -1)
    # The nucleus: one by one from the top, the lower id first among equals, while the sum before is below top_p.
    slot = tl.arange(0, places)
    weights = tl.zeros([places], tl.float32)
    names = tl.zeros([places], tl.int32)
    before = tl.sum(tl.zeros([places], tl.float32), 0)
    found = 0
    while (found < count) & (before < top_p):
        bits = tl.max(left, 0)
        value = bits.to(tl.float32, bitcast=True)
        name = tl.min(tl.where(left == bits, number, _NO_ID), 0)
        weights = tl.where(slot == found, value, weights)
        names = tl.where(slot == found, name, names)
        left = tl.where(number == name, -1, left)
        before += value
        found += 1
    if given:
        first_uniform, second_uniform = tl.load(uniforms + row * 2), tl.load(uniforms + row * 2 + 1)
    else:
        key = tl.load(state + _KEY)
        first_uniform = _uniform(key, steps * 2 + 1)
        second_uniform = _uniform(key, steps * 2 + 2)
    sums = tl.cumsum(weights.to(tl.float64), 0)
    passed = tl.sum(((sums <= first_uniform * tl.max(sums, 0)) & (slot < count)).to(tl.int32), 0)
    passed = tl.minimum(passed, tl.maximum(found - 1, 0))
    chosen = tl.sum(tl.where(slot == passed, names, 0), 0)
    age = tl.arange(0, window_block)
    recent = tl.load(state + _RECENT + age, mask=age < window, other=-1)
    later = tl.load(state + _RECENT + age + 1, mask=age < window - 1, other=-1)
    again = tl.sum((recent == chosen).to(tl.int32), 0).to(tl.float32) >= repeats
    if again:
        # Dropped; another one from the whole vocabulary, in the order of ids.
        shares = _softmax(tl.where(number == chosen, float("-inf"), logp))
        every = tl.cumsum(shares.to(tl.float64), 0)
        skipped = tl.sum(((every <= second_uniform * tl.max(every, 0)) & known).to(tl.int32), 0)
        chosen = tl.minimum(skipped, ids - 1)
    chosen = tl.where(sound, chosen, -1).to(tl.int64)
    goes_on = (active > 0) & sound & (chosen < end) & (steps + 1 < tl.load(state + _MOST))
    length = tl.load(state + _LENGTH)
    tl.debug_barrier()  # all of the state has been read
    tl.store(drawn + row, chosen)
    tl.store(state + _ID, tl.maximum(chosen, 0))
    tl.store(state + _STEPS, steps + 1)
    tl.store(state + _ACTIVE, goes_on.to(tl.int64))
    tl.store(state + _RECENT + age, tl.where(age == window - 1, chosen, later), mask=age < window)
    tl.store(state + _LENGTH, length + advance * (active > 0).to(tl.int64))


def draw_ids(
    logits: Tensor,
    table: Tensor,
    drawn: Tensor,
    cfg: LanguageModelConfig,
    advance: bool,
    uniforms: Tensor | None = None,
    warps: int = _WARPS,
) -> None:
    """Ids of the first B rows of the slots' `table` from logits (B, V) → drawn (≥ B,) int64; the table is updated.

    What an id is, and what of the row changes, is as in `sample_step`; with `advance` an active row is one position
    longer. `uniforms` (B, 2) float64 stand in for those of the rows' keys.
    """
    rows, ids = logits.shape
    sampling = cfg.sampling
    count = min(sampling.top_k, ids)
    _draw[(rows,)](
        logits, table, drawn, logits if uniforms is None else uniforms,
        float(sampling.top_p), float(sampling.win_size * sampling.tau_r), int(advance),
        width=table.stride(0), ids=ids, block=triton.next_power_of_2(ids), end=cfg.end_of_speech, count=count,
        places=triton.next_power_of_2(count), window=sampling.win_size,
        window_block=triton.next_power_of_2(sampling.win_size), given=uniforms is not None,
        num_warps=warps,
    )  # fmt: skip

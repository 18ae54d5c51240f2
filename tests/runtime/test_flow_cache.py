"""The incremental flow held against recomputation from frame 0."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from inference.models.flow import FlowModel
from inference.runtime.flow_cache import FlowCache, IncrementalFlow
from inference.runtime.packed_flow import PackedFlow
from inference.runtime.paged_flow import PagedFlow, PagedStream
from inference.runtime.schedule import ChunkSchedule
from inference.types import EngineError, RequestError
from tests.golden_data import relative_error
from tests.models.flow_support import TINY, Request, make_request, random_flow, run_flow

pytestmark = pytest.mark.unit
TOLERANCE = 1e-5
ROOM = 1 << 28
Call = tuple[int, bool]  # generated tokens handed over in all, final
WAYS = pytest.mark.parametrize("together", [False, True], ids=["chunk by chunk", "rows"])


class Together:
    """`PagedFlow` with `IncrementalFlow`'s interface."""

    def __init__(self, flow: FlowModel, budget: int, graphs: bool = False) -> None:
        self.paged = PagedFlow(flow, PackedFlow(flow, 8, graphs=graphs), budget, 8, graphs=graphs)
        self.page_bytes = self.paged.page_bytes

    @property
    def memory_bytes(self) -> int:
        return self.paged.used_bytes

    def open(self, *given: Tensor) -> PagedStream:
        return self.paged.open(*given)

    def extend(
        self, streams: Sequence[PagedStream], new: Sequence[Tensor], final: Sequence[bool]
    ) -> list[Tensor]:
        mels, unsound = self.paged.extend(streams, [part.tolist() for part in new], final)
        assert [bool(torch.isfinite(mel).all()) for mel in mels] == (unsound == 0).tolist()
        return [mel.t()[None] for mel in mels]

    def close(self, stream: PagedStream) -> None:
        self.paged.close(stream)


Flow = IncrementalFlow | Together
Cache = FlowCache | PagedStream


def make(together: bool, budget: int = ROOM, flow: FlowModel | None = None) -> Flow:
    return (Together if together else IncrementalFlow)(flow or random_flow(), budget)


def schedule_calls(prompt: int, tokens: int, first_hop: int = 25) -> list[Call]:
    """The calls of a stream whose tokens are all there."""
    schedule = ChunkSchedule(prompt, TINY.pre_lookahead, first_hop)
    calls = []
    while call := schedule.next_call(tokens, finished=True):
        calls.append((call.token_count, call.final))
    return calls


def expected_frames(request: Request, calls: Sequence[Call], model: FlowModel | None = None) -> list[Tensor]:
    """What each call adds, (80, M), every call computed from frame 0."""
    made, added = 0, []
    for count, final in calls:
        part = replace(request, tokens=request.tokens[:count])
        (mel,), _ = run_flow(model or random_flow(), [part], streaming=True, finalize=final)
        added.append(mel[:, made:])
        made = mel.shape[1]
    return added


def opened(flow: Flow, request: Request) -> Any:
    return flow.open(request.prompt, request.prompt_mel, request.speaker)


def extended(flow: Flow, cache: Any, request: Request, call: Call) -> Tensor:
    """One call of one stream: (80, M)."""
    count, final = call
    (mel,) = flow.extend([cache], [request.tokens[cache.given : count]], [final])
    return mel[0]


def streamed(flow: Flow, request: Request, calls: Sequence[Call]) -> list[Tensor]:
    cache = opened(flow, request)
    frames = [extended(flow, cache, request, call) for call in calls]
    flow.close(cache)
    return frames


def check_same(found: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    assert [part.shape for part in found] == [part.shape for part in expected]
    for one, other in zip(found, expected):
        if other.numel():
            assert relative_error(one, other) <= TOLERANCE


def bitwise(found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    return len(found) == len(expected) and all(map(torch.equal, found, expected))


# ------------------------------------------------------------------------------------------------- equality
@WAYS
@pytest.mark.parametrize(
    ("prompt", "frames", "tokens", "first_hop"),
    [
        (50, None, 130, 25),  # ends on a border
        (37, None, 240, 25),
        (0, None, 90, 25),
        (1, None, 20, 25),  # the last call alone
        (60, 97, 110, 25),  # a mel that is shorter than its tokens
        (60, 0, 60, 25),
        (30, None, 100, 7),  # hops that end between borders
        (26, None, 200, 100),
        (80, None, 73, 25),
    ],
)
def test_every_call_of_a_schedule(
    together: bool, prompt: int, frames: int | None, tokens: int, first_hop: int
) -> None:
    request = make_request(tokens, prompt, frames)
    calls = schedule_calls(prompt, tokens, first_hop)
    flow = make(together)
    check_same(streamed(flow, request, calls), expected_frames(request, calls))
    assert flow.memory_bytes == flow.page_bytes * max(
        0, (prompt - 3) // 25 if frames is None else frames // 50
    )


@WAYS
@pytest.mark.parametrize("last", [0, 1, 2, 3, 4])
def test_a_last_call_with_few_new_tokens(together: bool, last: int) -> None:
    request = make_request(53 + last, 22)
    calls = [(28 + 3, False), (53, False), (53 + last, True)]
    flow = make(together)
    check_same(streamed(flow, request, calls), expected_frames(request, calls))


@WAYS
def test_a_call_without_anything_new(together: bool) -> None:
    request = make_request(60, 10)
    calls = [(43, False), (43, False), (44, False), (44, False), (60, True)]
    flow = make(together)
    check_same(streamed(flow, request, calls), expected_frames(request, calls))


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(
    prompt=st.integers(0, 60),
    missing=st.integers(0, 9),
    hops=st.lists(st.integers(0, 40), min_size=1, max_size=5),
    together=st.booleans(),
)
def test_any_hops(prompt: int, missing: int, hops: list[int], together: bool) -> None:
    counts = [4 + missing + sum(hops[: i + 1]) for i in range(len(hops))]
    calls = [(count, False) for count in counts[:-1]] + [(counts[-1], True)]
    request = make_request(counts[-1], prompt, max(0, 2 * prompt - missing))
    flow = make(together)
    check_same(streamed(flow, request, calls), expected_frames(request, calls))


@WAYS
def test_streams_of_different_age_and_size_in_one_call(together: bool) -> None:
    requests = [make_request(160, 50), make_request(90, 0), make_request(120, 33, 60), make_request(40, 7)]
    plans: list[list[Call]] = [
        [(28, False), (78, False), (160, True)],
        [(28, False), (53, False), (90, True)],
        [(45, False), (70, False), (120, True)],
        [(21, False), (24, False), (40, True)],
    ]
    flow = make(together)
    caches = [opened(flow, request) for request in requests]
    found: list[list[Tensor]] = [[] for _ in requests]
    for turn in ([0], [0, 1], [2, 1, 0, 3], [2, 3], [3, 2, 1]):
        due = [plans[i][len(found[i])] for i in turn]
        new = [requests[i].tokens[caches[i].given : count] for i, (count, _) in zip(turn, due)]
        mels = flow.extend([caches[i] for i in turn], new, [final for _, final in due])
        for i, mel in zip(turn, mels):
            found[i].append(mel[0])
    for request, plan, frames in zip(requests, plans, found):
        check_same(frames, expected_frames(request, plan))
        if not together:
            assert bitwise(frames, streamed(IncrementalFlow(random_flow(), ROOM), request, plan))


def test_no_voice_hears_another() -> None:
    """A stream that overflows leaves its neighbours in a block, and those who get its pages later, untouched."""
    bad = make_request(60, 30)
    bad.prompt_mel[:] = torch.nan
    good = make_request(60, 30, seed=1)
    calls = [(48, False), (60, True)]
    flow = make(True)
    caches = [opened(flow, bad), opened(flow, good)]
    found = []
    for count, final in calls:
        new = [item.tokens[cache.given : count] for item, cache in zip((bad, good), caches)]
        mels = flow.extend(caches, new, [final] * 2)
        assert not torch.isfinite(mels[0]).all()
        found.append(mels[1][0])
    check_same(found, expected_frames(good, calls))
    for cache in caches:
        flow.close(cache)
    after = make_request(71, 12, seed=2)
    check_same(
        streamed(flow, after, [(36, False), (71, True)]), expected_frames(after, [(36, False), (71, True)])
    )


# ------------------------------------------------------------------------------------------- bits on the CPU
def test_bits_depend_on_neither_budget_nor_prompt_memory_nor_hops() -> None:
    request = make_request(140, 60)
    calls = schedule_calls(60, 140)
    flow = IncrementalFlow(random_flow(), ROOM)
    first = streamed(flow, request, calls)
    assert flow.memory_bytes > 0  # the prompt's pages
    assert bitwise(first, streamed(flow, request, calls))
    poor = IncrementalFlow(random_flow(), 0)
    assert bitwise(first, streamed(poor, request, calls)) and poor.memory_bytes == 0
    cramped = IncrementalFlow(random_flow(), 5 * flow.page_bytes)
    assert bitwise(first, streamed(cramped, request, calls))
    other = make_request(140, 60, seed=0)
    at_once = streamed(flow, other, [(120, False), (140, True)])
    assert torch.equal(
        torch.cat(first[:2], dim=1), torch.cat(at_once, dim=1)[:, : sum(p.shape[1] for p in first[:2])]
    )


# ---------------------------------------------------------------------------------------------------- budget
def pages(count: int, together: bool) -> Flow:
    size = make(together, 0).page_bytes
    return make(together, count * size + size // 2)


@WAYS
def test_a_stream_that_outgrows_the_budget_goes_on(together: bool) -> None:
    request = make_request(150, 50)
    calls = schedule_calls(50, 150)
    flow = pages(4, together)
    cache = opened(flow, request)
    found = [extended(flow, cache, request, calls[0])]
    assert flow.memory_bytes == 3 * flow.page_bytes
    found += [extended(flow, cache, request, call) for call in calls[1:]]
    if together:
        assert len(cache.pages) == 4  # and the others are computed from there on
    else:
        assert cache.lost and flow.memory_bytes == flow.page_bytes  # the prompt's first chunk stays
    check_same(found, expected_frames(request, calls))


def test_a_full_budget() -> None:
    flow = pages(4, together=False)
    first = make_request(30, 60)
    holder = opened(flow, first)
    extended(flow, holder, first, (28, False))
    second = make_request(40, 20)
    cache = opened(flow, second)
    assert cache.lost
    check_same([extended(flow, cache, second, (40, True))], expected_frames(second, [(40, True)]))
    flow.close(holder)
    assert not opened(flow, second).lost


def test_streams_make_do_with_the_pages_there_are() -> None:
    """The later ones get what is left, or nothing, and give the same frames."""
    requests = [make_request(100, prompt) for prompt in (50, 0, 33)]
    calls: list[Call] = [(28, False), (60, False), (100, True)]
    for count in (0, 1, 3, 5, 8):
        flow = pages(count, together=True)
        for request, frames in zip(requests, in_turns(flow, requests, calls)):
            check_same(frames, expected_frames(request, calls))
        assert flow.memory_bytes <= count * flow.page_bytes


def test_closing_gives_everything_back() -> None:
    flow = pages(8, together=False)
    request = make_request(90, 20)
    for _ in range(12):
        cache = opened(flow, request)
        extended(flow, cache, request, (90, False))
        flow.close(cache)
        flow.close(cache)
    assert flow.memory_bytes == 0


def test_a_forgotten_stream_gives_everything_back() -> None:
    flow = pages(5, together=False)
    request = make_request(90, 20)
    for _ in range(3):
        cache = opened(flow, request)
        extended(flow, cache, request, (90, False))
        assert not cache.lost
        del cache
    assert flow.memory_bytes == 0


def test_streams_go_on_when_there_is_no_memory_for_more_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    flow = make(True)
    assert isinstance(flow, Together)

    def ensure(page: int) -> None:
        if page > 2:
            raise torch.OutOfMemoryError("CUDA out of memory. (so it is said)")

    monkeypatch.setattr(flow.paged._memory, "ensure", ensure)
    requests = [make_request(100, prompt) for prompt in (50, 0, 33)]
    calls: list[Call] = [(28, False), (60, False), (100, True)]
    for request, frames in zip(requests, in_turns(flow, requests, calls)):
        check_same(frames, expected_frames(request, calls))
    assert 0 < flow.memory_bytes <= 3 * flow.page_bytes


def test_what_can_be_made_again_is_given_back() -> None:
    flow = make(True)
    assert isinstance(flow, Together)
    gone = make_request(40, 60)
    streamed(flow, gone, [(40, True)])
    request, calls = make_request(100, 40, seed=1), schedule_calls(40, 100)
    cache = opened(flow, request)
    found = [extended(flow, cache, request, calls[0])]
    flow.paged.clear()
    assert len(flow.paged.solver.programs) == 0
    assert flow.memory_bytes == len(cache.pages) * flow.page_bytes  # the other voice is forgotten
    found += [extended(flow, cache, request, call) for call in calls[1:]]
    check_same(found, expected_frames(request, calls))


# --------------------------------------------------------------------------------------------- shared prompts
def of_one_voice(*tokens: int, prompt: int) -> list[Request]:
    first = make_request(tokens[0], prompt)
    return [first] + [
        replace(
            make_request(count, prompt, seed=5),
            prompt=first.prompt, prompt_mel=first.prompt_mel, speaker=first.speaker,
        )
        for count in tokens[1:]
    ]  # fmt: skip


@pytest.mark.parametrize("budget", [0, ROOM])
def test_streams_that_begin_together_compute_their_prompt_once(budget: int) -> None:
    flow = make(True, budget)
    assert isinstance(flow, Together)
    voice = of_one_voice(60, 70, 40, prompt=80)
    requests = [make_request(50, 30), *voice]
    calls: list[Call] = [(20, False), (33, False), (40, True)]
    rows: list[int] = []
    solver, plain = flow.paged.solver, flow.paged.solver._rows
    solver._rows = lambda needed, items: (rows.append(needed), plain(needed, items))[1]  # type: ignore[method-assign,func-returns-value]
    for request, frames in zip(requests, in_turns(flow, requests, calls)):
        check_same(frames, expected_frames(request, calls))
    # The other voice (47 positions), the prompt's three chunks, and 22 positions behind them of each.
    assert rows[0] == 2 * (47 + 75 + 3 * 22)
    caches = [opened(flow, request) for request in requests]
    assert flow.memory_bytes == (4 * flow.page_bytes if budget else 0)
    kept = [flow.paged.rows(cache, 20, False) for cache in caches]
    assert kept == ([2 * 22] * 4 if budget else [2 * 47, *[2 * 97] * 3])


@WAYS
def test_streams_of_one_voice_share_their_prompt(together: bool) -> None:
    flow = make(together)
    first = make_request(60, 80)
    second = replace(
        make_request(70, 80, seed=5), prompt=first.prompt, prompt_mel=first.prompt_mel, speaker=first.speaker
    )
    calls = [(48, False), (60, True)]
    held = opened(flow, first)
    found = [extended(flow, held, first, calls[0])]
    cache = opened(flow, second)
    if not isinstance(flow, Together):
        assert cache.done_chunks == 3 and cache.pages == held.pages[:3]
    check_same([extended(flow, cache, second, call) for call in calls], expected_frames(second, calls))
    found.append(extended(flow, held, first, calls[1]))
    check_same(found, expected_frames(first, calls))


@pytest.mark.parametrize("what", ["prompt", "prompt_mel", "speaker"])
def test_another_prompt_is_another_voice(what: str) -> None:
    flow = IncrementalFlow(random_flow(), ROOM)
    first = make_request(40, 60)
    streamed(flow, first, [(40, True)])
    changed = getattr(first, what).clone()
    changed.view(-1)[0] += 1
    second = replace(first, **{what: changed})
    assert opened(flow, first).done_chunks == 2 and opened(flow, second).done_chunks == 0
    check_same(streamed(flow, second, [(40, True)]), expected_frames(second, [(40, True)]))


def test_old_voices_make_way() -> None:
    flow = pages(6, together=False)
    voices = [make_request(30, 60, seed=seed) for seed in range(4)]
    for voice in voices:
        check_same(
            streamed(flow, voice, [(28, False), (30, True)]),
            expected_frames(voice, [(28, False), (30, True)]),
        )
    assert opened(flow, voices[0]).done_chunks == 0
    assert opened(flow, voices[-1]).done_chunks == 2


# ------------------------------------------------------------------------------------------------- refusals
def test_refusals_change_nothing() -> None:
    flow = IncrementalFlow(random_flow(), ROOM)
    request = make_request(60, 20)
    cache = opened(flow, request)
    found = [extended(flow, cache, request, (33, False))]
    other = opened(flow, make_request(2, 0))
    with pytest.raises(EngineError) as caught:
        flow.extend([cache, other], [request.tokens[33:60], request.tokens[:2]], [True, False])
    assert caught.value.code == "flow_input_too_short"
    with pytest.raises(RequestError) as refused:
        flow.extend([cache], [torch.zeros(7500)], [True])
    assert refused.value.code == "too_long"
    assert cache.given == 33
    found.append(extended(flow, cache, request, (60, True)))
    check_same(found, expected_frames(request, [(33, False), (60, True)]))
    with pytest.raises(EngineError) as caught:
        flow.open(request.prompt, torch.zeros(41, 80), request.speaker)
    assert caught.value.code == "prompt_mel_too_long"


# ------------------------------------------------------------------------------------------ precision, devices
@WAYS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_as_near_as_recomputation(together: bool, dtype: torch.dtype) -> None:
    request, calls = make_request(90, 30), [(48, False), (90, True)]
    half = copy.deepcopy(random_flow()).to(dtype)
    exact = torch.cat(expected_frames(request, calls), dim=1)
    recomputed = torch.cat(expected_frames(request, calls, half), dim=1)
    found = torch.cat(streamed(make(together, ROOM, half), request, calls), dim=1)
    assert found.dtype == torch.float32
    assert relative_error(found, exact) <= 1.5 * relative_error(recomputed, exact) + 1e-4


def in_turns(flow: Flow, requests: Sequence[Request], calls: Sequence[Call]) -> list[list[Tensor]]:
    """The same calls for all streams at once."""
    caches = [opened(flow, item) for item in requests]
    found: list[list[Tensor]] = [[] for _ in requests]
    for count, final in calls:
        new = [item.tokens[cache.given : count] for item, cache in zip(requests, caches)]
        for frames, mel in zip(found, flow.extend(caches, new, [final] * len(requests))):
            frames.append(mel[0].cpu())
    return found


def test_few_lengths_of_rows() -> None:
    """What is captured on CUDA: fixed buffers for each length, places in memory read on the device."""
    flow = make(True)
    assert isinstance(flow, Together)
    requests = [make_request(100, prompt) for prompt in (50, 0, 33)]
    calls: list[Call] = [(28, False), (60, False), (100, True)]
    for item, frames in zip(requests, in_turns(flow, requests, calls)):
        check_same(frames, expected_frames(item, calls))
    kept = len(flow.paged.solver.programs)
    again = [replace(item, tokens=item.tokens.flip(0)) for item in requests]
    for item, frames in zip(again, in_turns(flow, again, calls)):
        check_same(frames, expected_frames(item, calls))
    assert len(flow.paged.solver.programs) <= kept + 1  # the prompts are there already


def test_a_row_that_is_there_is_taken_for_a_shorter_one() -> None:
    flow = make(True)
    assert isinstance(flow, Together)
    flow.paged.solver.prepare(768)
    request, calls = make_request(60, 20), schedule_calls(20, 60)
    check_same(streamed(flow, request, calls), expected_frames(request, calls))
    assert len(flow.paged.solver.programs) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("graphs", [False, True])
def test_on_cuda(cuda: torch.device, graphs: bool) -> None:
    flow = Together(copy.deepcopy(random_flow()).to(cuda), ROOM, graphs)
    if graphs:
        for rows in (512, 256, 128):
            flow.paged.solver.prepare(rows)
    torch.randn(3, device=cuda)  # the generator is as before
    requests = [make_request(90, prompt) for prompt in (50, 0, 33)]
    calls: list[Call] = [(50, False), (75, False), (90, True)]
    for _ in range(3):  # a new voice, a known one
        for item, frames in zip(requests, in_turns(flow, requests, calls)):
            for one, other in zip(frames, expected_frames(item, calls)):
                assert relative_error(one, other) <= 1e-4
    if graphs:
        assert flow.paged.solver.programs.captured == len(flow.paged.solver.programs) > 0

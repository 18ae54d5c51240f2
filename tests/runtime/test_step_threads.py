"""Threads of a decode step: idle cores only, only where bits stay the same, and only while that is faster."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from inference.runtime import step_threads
from inference.runtime.block_runner import BlockRunner
from inference.runtime.language_model_lane import LanguageModelLane
from inference.runtime.spare_cores import SpareCores
from inference.runtime.step_threads import StepThreads
from inference.settings import LaneSettings
from tests.models.language_model_support import random_model
from tests.runtime.lane_support import jobs_of, make_lane, random_prompts, speak

pytestmark = pytest.mark.unit


class Clock:
    """Time goes by only inside steps: `seconds` for a step on so many threads."""

    def __init__(self) -> None:
        self.now = 0.0
        self.seconds = {1: 2.0, 2: 1.0, 4: 0.5}

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(step_threads, "time", clock)
    return clock


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def steps(threads: StepThreads, clock: Clock, count: int) -> list[int]:
    used = []
    for _ in range(count):
        with threads.step():
            used.append(torch.get_num_threads())
            clock.now += clock.seconds[used[-1]]
    assert torch.get_num_threads() == 1
    return used


def the_same() -> Tensor:
    return torch.ones(3)


def made(cores: SpareCores, step: Callable[[], Tensor] = the_same) -> StepThreads:
    threads = StepThreads(cores)
    threads.try_out(step)
    return threads


def test_as_many_as_are_idle(clock: Clock) -> None:
    cores = SpareCores(5)
    threads = made(cores)
    assert set(steps(threads, clock, 4)) == {4}
    with cores.working():
        assert set(steps(threads, clock, 4)) == {4}
        with cores.working():
            assert set(steps(threads, clock, 4)) == {2}
            with cores.working(), cores.working():
                assert set(steps(threads, clock, 4)) == {1}
    assert set(steps(StepThreads(None), clock, 4)) == {1}


def test_the_slower_number_is_tried_now_and_then(clock: Clock) -> None:
    cores = SpareCores(2)
    threads = made(cores)
    with cores.working():
        steps(threads, clock, 1)  # what one thread takes
    used = steps(threads, clock, 160)
    assert used.count(1) == 10
    clock.seconds[2] = 9.0  # somebody else wants the other core
    used = steps(threads, clock, 160)[20:]
    assert 0 < used.count(2) <= 10
    clock.seconds[2] = 1.0  # and is gone
    assert steps(threads, clock, 400)[-20:].count(2) >= 18


def test_other_bits_are_not_taken(clock: Clock) -> None:
    threads = made(SpareCores(4), lambda: torch.tensor(1.0 if torch.get_num_threads() <= 2 else 1.0000001))
    assert set(steps(threads, clock, 8)) == {2}
    threads = made(SpareCores(4), lambda: torch.tensor(torch.get_num_threads()))
    assert set(steps(threads, clock, 8)) == {1}


def test_a_step_that_fails_leaves_one_thread(clock: Clock) -> None:
    threads = made(SpareCores(2))
    with pytest.raises(MemoryError), threads.step():
        assert torch.get_num_threads() == 2
        raise MemoryError
    assert torch.get_num_threads() == 1


def test_the_trial_leaves_no_trace_and_tokens_stay_the_same() -> None:
    model = random_model()
    settings = LaneSettings(slots=9, context=256, prefill_tokens=64)
    runner = BlockRunner(model, 9, 256, 64, cores=SpareCores(2))
    lane = LanguageModelLane(model, settings, runner)
    lane.warm_up()
    assert not runner._cache.data[:, :, :9].any()  # rows beyond the slots hold nothing that counts
    prompts = random_prompts(12, model, seed=3)
    alone = speak(make_lane(model, slots=9), {0: jobs_of(prompts)}).tokens
    assert speak(lane, {0: jobs_of(prompts)}).tokens == alone

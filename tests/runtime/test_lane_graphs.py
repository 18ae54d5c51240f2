"""Which shapes steps have, which captured one serves a need, and what happens when capturing fails."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch

from inference.runtime.bucket_runner import DECODE, PREFILL, BucketRunner
from inference.runtime.lane_graphs import (
    Shape,
    StepGraphs,
    batch_buckets,
    bucket,
    cheapest_cover,
    prefix_buckets,
    prompt_buckets,
)
from inference.runtime.slot_runner import PromptPart
from tests.models.language_model_support import prompt, random_model
from tests.runtime.lane_support import drain, jobs_of, make_lane, random_prompts, recorded

CPU = torch.device("cpu")


def test_buckets() -> None:
    assert batch_buckets(1) == (1,)
    assert batch_buckets(6) == (1, 2, 4, 6)
    assert batch_buckets(64) == (1, 2, 4, 8, 16, 32, 64)
    assert prefix_buckets(192) == (192,)
    assert prefix_buckets(256) == (256,)
    assert prefix_buckets(3072) == (256, 512, 768, 1024, 1536, 2048, 3072)
    assert prompt_buckets(48) == (48,)
    assert prompt_buckets(1024) == (64, 96, 128, 192, 256, 384, 512, 768, 1024)
    assert [bucket(needed, (1, 2, 4, 6)) for needed in (1, 2, 3, 5, 6)] == [1, 2, 4, 6, 6]


def test_the_cheapest_captured_shape_serves() -> None:
    wanted = Shape(3, 300)
    assert cheapest_cover(wanted, []) is None
    assert cheapest_cover(wanted, [Shape(2, 512), Shape(4, 256)]) is None
    assert cheapest_cover(wanted, [Shape(8, 512), Shape(4, 512), Shape(4, 1024)]) == Shape(4, 512)
    assert cheapest_cover(wanted, [Shape(64, 512)], tolerated=4.0) is None
    assert cheapest_cover(wanted, [Shape(64, 512)], tolerated=64.0) == Shape(64, 512)


def test_steps_are_recorded_once_and_replayed() -> None:
    graphs, calls = StepGraphs(CPU, None, True), []
    shape = Shape(2, 256)
    assert graphs.best("decode", shape) is None
    for _ in range(2):
        assert graphs.capture("decode", shape, lambda: calls.append(1))
    assert graphs.best("decode", Shape(1, 200)) == shape and graphs.best("prefill", shape) is None
    graphs.replay("decode", shape)
    assert len(calls) == 2


def test_a_failed_capture_is_said_once_and_steps_go_on_uncaptured(caplog: pytest.LogCaptureFixture) -> None:
    graphs = StepGraphs(CPU, None, True)
    graphs.capture("decode", Shape(1, 256), lambda: None)

    def fail() -> None:
        raise RuntimeError("no")

    with caplog.at_level(logging.ERROR):
        assert not graphs.capture("decode", Shape(2, 256), fail)
        assert not graphs.capture("decode", Shape(4, 256), fail)
    assert len(caplog.records) == 1
    assert graphs.best("decode", Shape(1, 256)) is None


def test_a_shape_without_memory_costs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    graphs = StepGraphs(CPU, None, True)
    graphs.capture("decode", Shape(1, 256), lambda: None)

    def fail() -> None:
        raise torch.OutOfMemoryError("full")

    assert graphs.capture("decode", Shape(8, 256), fail)
    assert graphs.best("decode", Shape(1, 256)) == Shape(1, 256)
    assert graphs.best("decode", Shape(8, 256)) is None
    assert "too little memory" in caplog.text


def test_warm_up_captures_what_serves_everything_first() -> None:
    runner = BucketRunner(random_model(), 6, 1000, 512)
    runner.warm_up(0.0)  # the first one whatever the time
    assert runner.graphs.shapes(DECODE) == [Shape(6, 1024)]
    assert runner.graphs.shapes(PREFILL) == []
    runner.warm_up(60.0)
    assert set(runner.graphs.shapes(DECODE)) == {
        Shape(rows, size) for rows in (1, 2, 4, 6) for size in (256, 512, 768, 1024)
    }
    assert Shape(2, 256) in runner.graphs.shapes(PREFILL)
    assert all(shape.area <= 512 for shape in runner.graphs.shapes(PREFILL))


def test_what_was_missed_is_captured_in_idle_moments() -> None:
    lane = make_lane(random_model(), recorded, slots=4, context=1024, seconds=0.0)
    runner = lane._runner
    lane.admit(jobs_of([prompt(range(5))]))
    drain(lane)
    assert runner.graphs.shapes(DECODE) == [Shape(4, 1024)]
    while lane.idle():
        pass
    assert Shape(1, 256) in runner.graphs.shapes(DECODE)


def part(length: int, start: int = 0, slot: int = 0) -> PromptPart:
    symbols = np.ones(length, dtype=np.int32)
    return PromptPart(slot, start, symbols, symbols, None)


def test_prompts_are_batched_by_their_padded_size() -> None:
    runner = BucketRunner(random_model(), 8, 1024, 256, graphs=False)
    assert runner.fitting([part(60)] * 8) == 4  # 4 × 64
    assert runner.fitting([part(60), part(60), part(120)]) == 2  # 4 × 128 would be 512
    assert runner.fitting([part(256), part(10)]) == 1
    assert runner.fitting([part(20), part(20, start=256)]) == 1
    assert runner.fitting([part(20, start=256), part(20, start=512)]) == 2


def test_padding_touches_no_slot() -> None:
    """Of a batch padded in both directions, only what the prompt itself holds is written."""
    runner = BucketRunner(random_model(), 6, 256, 512, graphs=False)
    marked = 7.0
    runner._cache.data.fill_(marked)
    with torch.inference_mode():
        runner.prefill([part(10, slot=1), part(70, slot=3), part(5, slot=4)])
        runner.decode([1, 3], [10, 70])  # not live: nothing was drawn
    for slot, length in enumerate((0, 10, 0, 70, 5, 0)):
        written = (runner._cache.data[:, :, slot] != marked).any(-1)
        assert written[..., :length].all() and not written[..., length:].any()


def test_many_sizes_and_lengths_say_the_same_captured_or_not() -> None:
    model = random_model()
    prompts = random_prompts(12, model, longest=60)
    heard = []
    for seconds in (60.0, 0.0):  # every shape captured, or only the largest
        lane = make_lane(model, recorded, slots=5, context=1024, prefill_tokens=128, seconds=seconds)
        lane.admit(jobs_of(prompts))
        heard.append(drain(lane).tokens)
    assert heard[0] == heard[1]

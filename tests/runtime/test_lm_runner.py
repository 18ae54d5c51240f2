"""The lane by kernels: what is said, how prompts are packed, and that unsound kernels are not used."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from inference.models.language_model import PAD, LanguageModel
from inference.runtime.bucket_runner import DECODE, PREFILL, BucketRunner
from inference.runtime.kernel_build import recorded
from inference.runtime.lane_graphs import Shape
from inference.runtime.language_model_lane import SpeechJob, make_runner
from inference.runtime.lm_prompts import PromptPacking
from inference.runtime.slot_runner import PromptPart, SlotRunner
from inference.runtime.slot_table import ACTIVE
from inference.settings import LaneSettings
from tests.models.language_model_support import prompt, random_model
from tests.runtime.lane_support import drain, jobs_of, make_lane, random_prompts, speak
from tests.runtime.lm_kernel_support import kernel_model
from tests.runtime.test_language_model_lane import by_generator
from tests.triton_interpreter import need_triton

DEVICE = need_triton()
pytestmark = [pytest.mark.gpu] if DEVICE.type == "cuda" else []

from inference.runtime.lm_runner import KernelRunner  # noqa: E402
from inference.runtime.lm_self_test import find_fault, kernel_runner  # noqa: E402
from inference.runtime.lm_variants import kernel_variants  # noqa: E402

on_cuda = pytest.mark.skipif(DEVICE.type != "cuda", reason="takes too long in Triton's interpreter")


def kernels(model: LanguageModel, settings: LaneSettings) -> SlotRunner:
    return KernelRunner(model, settings.slots, settings.context, settings.prefill_tokens)


def uncaptured(model: LanguageModel, settings: LaneSettings) -> SlotRunner:
    return KernelRunner(model, settings.slots, settings.context, settings.prefill_tokens, graphs=False)


def test_the_lane_says_what_the_plain_path_says() -> None:
    """float32, few slots: prompts in parts, a cancelled job, a slot that is used twice."""
    model = kernel_model()
    model.llm_decoder.bias[model.cfg.end_of_speech] = 4.0  # short speech
    prompts = [prompt([3], seed=1), prompt([1], range(30), seed=2), prompt([4], [1], seed=3)]
    expected = by_generator(model, prompts)
    lane = make_lane(model.to(DEVICE), uncaptured, slots=2, context=128, prefill_tokens=24)
    jobs = [*jobs_of(prompts), SpeechJob(9, prompt([7, 8], seed=9))]
    ears = speak(lane, {0: jobs[:2], 2: jobs[2:]}, {5: 9})
    assert {key: ears.tokens[key] for key in expected} == expected
    assert not ears.errors and not lane.busy and lane.room == 2


def test_what_stays_in_a_slot_is_never_read() -> None:
    model = kernel_model(layers=1)
    given = prompt([3], range(9), seed=4)
    expected = by_generator(model, [given])
    lane = make_lane(model.to(DEVICE), uncaptured, slots=1, context=128)
    lane._runner._cache.data.fill_(torch.nan)
    lane.admit(jobs_of([given]))
    assert drain(lane).tokens == expected


@on_cuda
def test_a_crowd_says_what_the_plain_path_says() -> None:
    model = kernel_model()
    prompts = random_prompts(80, model, longest=20)
    expected = by_generator(model, prompts)
    lane = make_lane(model.to(DEVICE), kernels, slots=33, context=1024, prefill_tokens=256)
    lane.admit(jobs_of(prompts))
    assert drain(lane).tokens == expected


@on_cuda
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_sound_and_repeats_itself(dtype: torch.dtype) -> None:
    model = kernel_model(layers=4).to(DEVICE, dtype)
    prompts = random_prompts(60, model, longest=20)
    heard = []
    for _ in range(2):
        lane = make_lane(model, kernels, slots=16, context=1024, prefill_tokens=256)
        assert find_fault(lane._runner, model) == ""
        lane.admit(jobs_of(prompts))
        heard.append(drain(lane).tokens)
    assert heard[0] == heard[1]


@on_cuda
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_company_does_not_change_what_is_said(dtype: torch.dtype) -> None:
    """A prompt alone and among 63 others, taken in with them: the same tokens."""
    model = kernel_model(layers=4).to(DEVICE, dtype)
    prompts = random_prompts(64, model, longest=20)
    lane = make_lane(model, kernels, slots=64, context=1024, prefill_tokens=1024)
    lane.admit(jobs_of(prompts))
    among = drain(lane).tokens
    for key in range(0, 64, 7):
        lane.admit([SpeechJob(key, prompts[key])])
        assert drain(lane).tokens[key] == among[key]


@on_cuda
def test_a_step_does_not_wait_for_the_device() -> None:
    """Torch raises where an operation waits; only reading ids, through an event, may."""
    model = kernel_model().to(DEVICE, torch.float16)
    lane = make_lane(model, kernels, slots=8, context=1024, prefill_tokens=256)
    lane.admit(jobs_of([prompt(range(9), seed=key) for key in range(8)]))
    lane.step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(5):
            lane.step()
        lane.cancel(3)
        lane.admit([SpeechJob(20, prompt(range(4), range(30)))])
        lane.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    drain(lane)


# ------------------------------------------------------------------------------------------------------- packing
def part(length: int, start: int = 0, slot: int = 0, row: list[int] | None = None) -> PromptPart:
    symbols = np.arange(1, length + 1, dtype=np.int32)
    return PromptPart(slot, start, symbols % 3 + 1, symbols, row)


def test_prompts_are_packed_without_gaps() -> None:
    packing = PromptPacking(slots=8, tokens=256, width=4, block=64)
    parts = [part(70, start=5, slot=3, row=[1, 2, 3, 4]), part(10, slot=1)]
    shape = packing.shape_for(2, 80)
    assert shape == Shape(6, 96)
    fields = packing.fields(torch.from_numpy(packing.pack(parts, shape)), shape)
    assert fields.ids.tolist() == [*range(1, 71), *range(1, 11), *[0] * 16]
    assert fields.kinds[80:].tolist() == [PAD] * 16
    assert fields.positions[:80].tolist() == [*range(5, 75), *range(10)]
    assert fields.slots.tolist() == [3] * 70 + [1] * 10 + [8] * 16
    assert fields.blocks.tolist() == [[0, 64, 3, 5], [64, 6, 3, 69], [70, 10, 1, 0], *[[0] * 4] * 4]
    assert fields.last.tolist() == [69, 79, 0, 0, 0, 0]
    assert fields.targets.tolist() == [3, *[8] * 5]  # the second one's last part is still to come
    assert fields.rows[0].tolist() == [1, 2, 3, 4]


def test_blocks_never_run_out() -> None:
    packing = PromptPacking(slots=64, tokens=1024, width=4, block=64)
    for lengths in ([17] * 60, [65] * 15, [1] * 64, [1024], [129, 895]):
        parts = [part(length) for length in lengths]
        assert packing.fitting(parts) == len(parts)
        shape = packing.shape_for(len(parts), sum(lengths))
        fields = packing.fields(torch.from_numpy(packing.pack(parts, shape)), shape)
        assert int(fields.blocks[:, 1].sum()) == sum(lengths)


def test_what_fits_is_counted_in_symbols_and_prompts() -> None:
    packing = PromptPacking(slots=4, tokens=128, width=4, block=64)
    assert packing.fitting([part(60)] * 4) == 2
    assert packing.fitting([part(128), part(1)]) == 1
    assert packing.fitting([part(2)] * 9) == 4
    assert packing.fitting([part(20, start=256), part(20)]) == 2  # continuations and beginnings together


# ----------------------------------------------------------------------------------------------------- self-test
def settings(**changes: int) -> LaneSettings:
    return replace(LaneSettings(slots=3, context=600, prefill_tokens=64), **changes)


def test_a_sound_runner_is_used_and_left_empty() -> None:
    model = kernel_model(layers=1).to(DEVICE, torch.float16)
    runner = kernel_runner(model, settings())
    assert runner is not None
    assert not runner.table[:3, ACTIVE].any()


@pytest.mark.parametrize("what", ["norm", "sampling"])
def test_unsound_kernels_are_found_out(what: str) -> None:
    model = kernel_model(layers=1).to(DEVICE, torch.float16)
    runner = KernelRunner(model, 3, 64, 64, graphs=False)
    if what == "norm":
        runner.step.fused.last_norm.neg_()
        assert "error" in find_fault(runner, model)
    else:
        sampling = replace(model.cfg.sampling, top_p=0.01)
        runner.step.cfg = replace(model.cfg, sampling=sampling)
        assert find_fault(runner, model) == "sampling differs"


def test_what_the_kernels_cannot_do_runs_plainly(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert kernel_runner(random_model().to(DEVICE, torch.float16), settings()) is None
    assert "heads of 8" in caplog.text


def test_a_compiler_that_fails_is_said_and_steps_run_plainly(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no ptxas")

    monkeypatch.setattr("inference.runtime.lm_step.embed_symbols", fail)
    with caplog.at_level(logging.WARNING):
        assert kernel_runner(kernel_model(layers=1).to(DEVICE, torch.float16), settings()) is None
    assert "plain steps" in caplog.text


@on_cuda
def test_cuda_takes_the_kernels_in_half_precision_only() -> None:
    model = kernel_model(layers=1).to(DEVICE, torch.float16)
    assert isinstance(make_runner(model, settings()), KernelRunner)
    plain = make_runner(model.float(), settings())
    assert isinstance(plain, BucketRunner) and not isinstance(plain, KernelRunner)


# ------------------------------------------------------------------------------------------------- compiled ahead
_COUNT = """
import torch
from inference.models.config import LanguageModelConfig
from inference.models.language_model import LanguageModel
from inference.runtime.lm_variants import kernel_variants
from inference.settings import LaneSettings
with torch.device("meta"):
    model = LanguageModel(LanguageModelConfig()).half()
print(len(kernel_variants(model, LaneSettings(slots=64, context=3072, prefill_tokens=4096))))
print(len(kernel_variants(model.float(), LaneSettings())))
"""


def test_a_lane_needs_few_kernels() -> None:
    """Each takes a second at the first start. In a process of its own: listing them is not for the interpreter."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    found = subprocess.run(
        [sys.executable, "-c", _COUNT], env=environment, capture_output=True, text=True, check=True
    )
    few, none = map(int, found.stdout.split())
    assert 10 < few <= 32 and none == 0


@on_cuda
def test_what_a_runner_launches_was_compiled_ahead() -> None:
    model = kernel_model(layers=3).to(DEVICE, torch.float16)
    lanes = LaneSettings(slots=64, context=1000, prefill_tokens=1024)
    ahead = {one.key for one in kernel_variants(model, lanes)}
    runner = KernelRunner(model, lanes.slots, lanes.context, lanes.prefill_tokens, graphs=False)

    def work() -> None:
        for rows in (1, 2, 16, 32, 64):
            for size in runner.prefixes:
                runner.body(DECODE, Shape(rows, size))()
        for shape in runner.prompt_shapes():
            runner.body(PREFILL, shape)()

    assert {one.key for one in recorded(work)} <= ahead

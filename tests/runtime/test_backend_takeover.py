"""Backends that fail in the middle of serving: no piece of speech is lost, one line says so, and it is counted."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from inference.models.vocoder import Vocoder
from inference.runtime import kernel_build
from inference.runtime.backend_generator import BackendGenerator
from inference.runtime.backend_plan import WaveBackends
from inference.runtime.backend_report import REPORT
from inference.runtime.backend_spare import Spare
from inference.runtime.captured import Programs
from inference.runtime.packed_flow import PackedFlow
from inference.runtime.packed_solver import PackedSolver
from inference.runtime.packed_state import PackedStep, SolverBuffers
from inference.runtime.packed_vocoder import PackedVocoder
from inference.runtime.vocoder_fused import FusedVocoder
from inference.runtime.vocoder_pack import VocoderJob, VocoderPack
from inference.runtime.vocoder_stream import VocoderState
from inference.runtime.wave_lane import WaveLane
from inference.settings import BackendSettings, LaneSettings
from tests.models.flow_support import random_flow
from tests.runtime.wave_support import Speaker, make_lane, own_flow, quiet_vocoder, samples, speak_together
from tests.triton_interpreter import need_triton

pytestmark = pytest.mark.unit


class KernelError(Exception):
    """As Triton's, it is no RuntimeError."""


@pytest.fixture(autouse=True)
def dropped() -> Iterator[Callable[[], int]]:
    """How many backends were dropped so far."""
    before = REPORT.failures
    yield lambda: REPORT.failures - before
    for part in ("flow", "vocoder"):
        REPORT.use(part, "torch")


class FailingStep:
    """The solver's step until its `good` calls are over; the failing one has already spoilt the state."""

    def __init__(self, plain: PackedStep, good: int, error: Exception) -> None:
        self.plain, self.left, self.error = plain, good, error

    def advance(self, buffers: SolverBuffers) -> None:
        self.left -= 1
        if self.left < 0:
            buffers.x.fill_(7.0)
            raise self.error
        self.plain.advance(buffers)


class FailingKernels(FusedVocoder):
    """The packed vocoder in the place of kernels, until its `good` batches are over."""

    def __init__(self, vocoder: Vocoder, most: int, good: int, error: Exception) -> None:
        self.plain, self.left, self.error = PackedVocoder(vocoder, most), good, error
        self.cfg, self.device, self.dtype = vocoder.cfg, torch.device("cpu"), torch.float16
        self.programs = Programs(self.device, 4, False)
        self.spare, self._instead = None, None

    def _run(self, jobs: Sequence[VocoderJob]) -> tuple[VocoderPack, Tensor, list[VocoderState | None]]:
        self.left -= 1
        if self.left < 0:
            raise self.error
        return self.plain.run(jobs)


def _fail_flow(lane: WaveLane, good: int, error: Exception) -> FailingStep:
    assert lane._batched is not None
    flow = lane._batched.flow
    plain = flow.solver._velocity
    step = FailingStep(plain, good, error)
    flow.solver = PackedSolver(
        step,
        flow.flow.cfg,
        torch.float32,
        flow.device,
        graphs=False,
        spare=Spare("flow", "triton", lambda: plain),
    )
    return step


def _fail_vocoder(lane: WaveLane, good: int, error: Exception) -> FailingKernels:
    assert lane._batched is not None
    kernels = FailingKernels(quiet_vocoder(), 8, good, error)
    kernels.spare = Spare("vocoder", "triton", lambda: PackedVocoder(quiet_vocoder(), 8))
    lane._batched.vocoder = kernels
    return kernels


SPEAKERS = [Speaker(60, 20, whole=True), Speaker(48, 25, seed=1, whole=True), Speaker(70, 20, seed=2)]


def _said(lane: WaveLane) -> list[np.ndarray[tuple[int], np.dtype[np.int16]]]:
    return [samples(results) for results in speak_together(lane, SPEAKERS)]


@pytest.mark.parametrize("part", ["flow", "vocoder"])
def test_every_piece_of_every_stream_is_there(
    part: str, dropped: Callable[[], int], caplog: pytest.LogCaptureFixture
) -> None:
    """A failure in the first batch's fourth step, or in the second batch's row."""
    expected = _said(make_lane(batched=True))
    lane = make_lane(batched=True)
    failing = (
        _fail_flow(lane, 3, KernelError("out of resources: shared memory"))
        if part == "flow"
        else _fail_vocoder(lane, 1, KernelError("out of resources: shared memory"))
    )
    REPORT.use(part, "triton")
    with caplog.at_level(logging.WARNING):
        found = _said(lane)
    assert failing.left == -1  # it was not asked again
    for one, other in zip(found, expected):
        assert len(one) == len(other) and np.abs(one.astype(int) - other).max() <= 1
    assert dropped() == 1 and REPORT.used()[part] == "torch"
    lines = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) == 1 and "triton failed while serving (KernelError" in lines[0]


def test_streams_whose_pages_fail_are_computed_whole(
    monkeypatch: pytest.MonkeyPatch, dropped: Callable[[], int], caplog: pytest.LogCaptureFixture
) -> None:
    expected = _said(make_lane(batched=True))
    lane = make_lane(batched=True)
    paged = None if lane._batched is None else lane._batched.paged
    assert paged is not None

    def fail(*values: object) -> Tensor:
        raise KernelError("out of resources")

    calls: list[int] = []
    real = paged.solver.run

    def sometimes(*values: Any) -> Any:
        calls.append(1)
        return fail() if len(calls) == 2 else real(*values)

    monkeypatch.setattr(paged.solver, "run", sometimes)
    with caplog.at_level(logging.WARNING):
        for one, other in zip(_said(lane), expected):
            assert len(one) == len(other) and np.abs(one.astype(int) - other).max() <= 2
    assert dropped() == 1 and len(caplog.records) == 1
    assert lane._batched is not None and lane._batched.paged is paged  # one failure may be a request's own
    monkeypatch.setattr(paged.solver, "run", fail)
    for one, other in zip(_said(lane), expected):
        assert len(one) == len(other) and np.abs(one.astype(int) - other).max() <= 2
    assert lane._batched.paged is None and dropped() == 3


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("out of memory"), RuntimeError("CUDA error: bad")])
def test_memory_and_the_device_are_not_the_kernels_fault(
    error: Exception, dropped: Callable[[], int]
) -> None:
    lane = make_lane(batched=True)
    kernels = _fail_vocoder(lane, 0, error)
    step = _fail_flow(lane, 0, error)
    with pytest.raises(type(error)):
        kernels.run([VocoderJob(torch.zeros(20, 80), None, True, 0)])
    assert lane._batched is not None
    with pytest.raises(type(error)):
        lane._batched.flow.prepare(64)
    assert dropped() == 0 and kernels.usable and step.left == -1


def test_failure_while_warming_up_does_not_end_the_worker(dropped: Callable[[], int]) -> None:
    lane = make_lane(batched=True)
    _fail_flow(lane, 0, KernelError("no"))
    assert lane._batched is not None
    lane._batched.flow.prepare(64)
    assert dropped() == 1 and lane._batched.flow.solver.spare is None


def test_kernels_that_fail_their_self_test_have_no_spare_yet(dropped: Callable[[], int]) -> None:
    """There a failure must show: the chooser deals with it."""
    kernels = FailingKernels(quiet_vocoder(), 2, 0, KernelError("no"))
    with pytest.raises(KernelError):
        kernels.run([VocoderJob(torch.zeros(20, 80), None, True, 0)])
    assert dropped() == 0


def test_lane_goes_back_to_its_kernels_when_an_engine_fails(dropped: Callable[[], int]) -> None:
    """PyTorch makes up for the batch that failed; the next one runs on what is faster."""
    kernels = FailingKernels(quiet_vocoder(), 4, 100, KernelError("no"))
    settings = LaneSettings(max_batch=4, backends=BackendSettings("triton", "torch"))
    backends = WaveBackends(settings)
    assert backends.attach(PackedFlow(random_flow(), 4), kernels, quiet_vocoder()) is kernels
    assert REPORT.used()["vocoder"] == "triton" and backends.poll() is None
    engine = PackedVocoder(quiet_vocoder(), 4)

    def broken(*values: object) -> Tensor:
        raise ValueError("engine lost")

    engine.generator = BackendGenerator(quiet_vocoder(), "tensorrt", broken)  # type: ignore[assignment]
    backends._vocoder = engine
    assert backends.poll() is None  # nothing has failed
    engine.run([VocoderJob(torch.zeros(20, 80) - 5, None, True, 0)])
    assert dropped() == 1 and REPORT.used()["vocoder"] == "torch"
    assert backends.poll() is kernels and REPORT.used()["vocoder"] == "triton"
    assert backends.poll() is None


def test_flow_by_torch_is_that_of_its_streams_too() -> None:
    for name, expected in (("torch", "torch"), ("auto", "kernels")):
        flow = PackedFlow(own_flow(), 4)
        flow.velocity_name, step = "kernels", flow.solver._velocity
        flow.solver.spare = Spare("flow", "triton", lambda step=step: step)  # type: ignore[misc]
        backends = WaveBackends(LaneSettings(max_batch=4, backends=BackendSettings("torch", name)))
        backends.attach(flow, PackedVocoder(quiet_vocoder(), 4), quiet_vocoder())
        assert flow.velocity_name == expected
        assert REPORT.used()["flow"] == ("torch" if name == "torch" else "triton")
        assert (flow.solver.spare is None) == (name == "torch")


def test_real_kernels_that_fail_while_serving(
    monkeypatch: pytest.MonkeyPatch, dropped: Callable[[], int]
) -> None:
    """The fused vocoder itself, in Triton's interpreter where there is no GPU."""
    device = need_triton()
    vocoder = copy.deepcopy(quiet_vocoder()).to(device)
    kernels = FusedVocoder(vocoder, 2)
    kernels.spare = Spare("vocoder", "triton", lambda: PackedVocoder(vocoder, 2))

    def lost(*values: object) -> Tensor:
        raise KernelError("out of resources")

    monkeypatch.setattr(kernels.ends, "gather", lost)
    job = VocoderJob(torch.zeros(20, 80, device=device) - 5, None, False, 0)
    pack, answer, states = kernels.run([job])
    _, expected, others = PackedVocoder(vocoder, 2).run([job])
    assert torch.equal(answer, expected) and dropped() == 1
    assert states[0] is not None and others[0] is not None and torch.equal(states[0].speech, others[0].speech)
    assert not kernels.usable and kernels.dtype == torch.float32


def test_kernels_without_a_folder_to_keep_them_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They are compiled one by one as they come: nobody goes without them for that."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setattr(kernel_build, "_capability", lambda device: 90)
    with caplog.at_level(logging.WARNING):
        assert kernel_build.build([], what="kernels of the flow model") == 0
    assert "kernels of the flow model cannot be compiled ahead" in caplog.text
    assert kernel_build.build([], device=torch.device("cpu")) == 0 and len(caplog.records) == 1

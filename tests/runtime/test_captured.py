"""Programs by shape: kept, given up, run; compiled functions that cannot be compiled."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from inference.runtime.captured import Programs
from inference.runtime.fused import Fused

pytestmark = pytest.mark.unit


@dataclass
class Buffers:
    x: Tensor


def add_one(buffers: Buffers) -> None:
    buffers.x.add_(1)


def test_programs_are_kept_by_key_and_the_oldest_is_given_up() -> None:
    programs: Programs[Buffers] = Programs(torch.device("cpu"), 2, graphs=True)
    make = lambda: Buffers(torch.zeros(3))  # noqa: E731
    first = programs.get("a", make, add_one)
    first.run(3)
    assert programs.get("a", make, add_one) is first and first.buffers.x.tolist() == [3, 3, 3]
    programs.get("b", make, add_one)
    programs.get("a", make, add_one)
    programs.get("c", make, add_one)  # "b" is the one that was used longest ago
    assert len(programs) == 2 and programs.bytes() == 2 * 12
    assert programs.get("a", make, add_one) is first
    programs.clear()
    assert len(programs) == 0 and programs.captured == 0
    assert programs.get("a", make, add_one) is not first


def test_what_was_prepared_is_taken_for_smaller_needs() -> None:
    programs: Programs[Buffers] = Programs(torch.device("cpu"), 4, graphs=True)
    assert programs.ready([8, 16]) is None
    program = programs.prepare(16, lambda: Buffers(torch.zeros(3)), add_one)
    assert program.buffers.x.tolist() == [1, 1, 1]  # it has run once, as kernels are loaded then
    assert programs.ready([8, 16, 32]) == 16 and programs.ready([32]) is None
    assert programs.get(16, lambda: Buffers(torch.ones(3)), add_one) is program


def test_what_cannot_be_compiled_runs_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(function: object, **_: object) -> object:
        def fail(*_: object) -> None:
            raise RuntimeError("no compiler here")

        return fail

    monkeypatch.setattr(torch, "compile", broken)
    double = Fused(lambda x: 2 * x)
    assert double.compiled
    with caplog.at_level(logging.WARNING):
        assert double(3) == 6 and double(4) == 8
    assert not double.compiled and len(caplog.records) == 1


def test_faults_of_the_data_do_not_stop_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    divide = Fused(lambda x: 1 / x)
    with pytest.raises(ZeroDivisionError):
        divide(0)
    assert divide(2) == 0.5


@pytest.mark.gpu
@pytest.mark.parametrize("default_stream", [True, False])
def test_a_key_is_captured_the_second_time(cuda: torch.device, default_stream: bool) -> None:
    with torch.cuda.stream(None if default_stream else torch.cuda.Stream()):
        programs: Programs[Buffers] = Programs(cuda, 4, graphs=True)
        for round_ in range(1, 4):
            program = programs.get("a", lambda: Buffers(torch.zeros(3, device=cuda)), add_one)
            program.run(2)
            assert program.buffers.x.tolist() == [2.0 * round_] * 3
            assert programs.captured == int(round_ > 1)
        prepared = programs.prepare("b", lambda: Buffers(torch.zeros(3, device=cuda)), add_one)
        assert prepared.graph is not None and programs.ready(["c", "b"]) == "b"
        prepared.buffers.x.zero_()
        prepared.run(3)
        assert prepared.buffers.x.tolist() == [3.0] * 3


@pytest.mark.gpu
def test_a_capture_that_fails_leaves_the_device_as_it_was(
    cuda: torch.device, caplog: pytest.LogCaptureFixture
) -> None:
    def waits(buffers: Buffers) -> None:
        buffers.x.add_(1)
        torch.cuda.current_stream().synchronize()  # which nothing that is captured may do

    programs: Programs[Buffers] = Programs(cuda, 4, graphs=True)
    with caplog.at_level(logging.WARNING):
        program = programs.prepare("a", lambda: Buffers(torch.zeros(3, device=cuda)), waits)
    assert len(caplog.records) == 1 and not programs.graphs
    program.run(2)
    assert program.buffers.x.tolist() == [3.0] * 3
    assert torch.isfinite(torch.randn(100, device=cuda)).all()
    assert len(torch.empty(1 << 20, device=cuda)) == 1 << 20

"""The choice among backends: sound ones only, the fastest, remembered; and what happens when one fails later."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor

from inference.models.velocity import VelocityNetwork
from inference.models.vocoder import Vocoder
from inference.runtime import backends, onnx_backends
from inference.runtime.backend_choice import (
    Chosen,
    RememberedChoices,
    Soundness,
    Verdict,
    best_seconds,
    choose,
    machine_facts,
)
from inference.runtime.backend_report import REPORT, BackendReport
from inference.runtime.backends import GuardedSpectrum, install_spectrum_backend, plain_spectrum, probe
from inference.runtime.channels_last import ChannelsLast
from inference.runtime.flow_solver import VelocityStep, time_grid
from inference.runtime.padded_velocity import BoundVelocity
from inference.runtime.velocity_backends import (
    GuardedVelocity,
    install_velocity_backend,
    velocity_soundness,
)
from inference.types import RequestError
from tests.models.flow_support import random_flow
from tests.runtime.tensorrt_support import small_network, small_vocoder
from tests.runtime.wave_support import own_flow

pytestmark = pytest.mark.unit

SOUND = Soundness(1e-6, 0.0)


def _candidates(*names: str) -> dict[str, Callable[[], str]]:
    return {name: lambda name=name: name for name in names}  # type: ignore[misc]


# ------------------------------------------------------------------------------------------------ choosing
def test_fastest_sound_one() -> None:
    seconds = {"first": 1.0, "slow": 2.0, "fast": 0.5, "unsound": 0.1}
    found = choose(
        _candidates(*seconds),
        lambda name: Soundness(0.5, 0.0) if name == "unsound" else SOUND,
        1e-3,
        seconds.__getitem__,
    )
    assert found is not None and found.name == found.backend == "fast"
    assert [verdict.seconds for verdict in found.verdicts] == [1.0, 2.0, 0.5, None]
    assert "error 0.5" in found.verdicts[-1].reason


def test_barely_faster_does_not_displace() -> None:
    seconds = {"first": 1.0, "second": 0.95}
    found = choose(_candidates(*seconds), lambda name: SOUND, 1e-3, seconds.__getitem__)
    assert found is not None and found.name == "first"


def test_no_further_candidate_when_the_time_is_up() -> None:
    tried: list[str] = []

    def measure(backend: str) -> float:
        tried.append(backend)
        time.sleep(0.05)
        return 1.0

    chosen = choose(_candidates("a", "b"), lambda backend: SOUND, 1.0, measure, limit=0.01)
    assert chosen is not None and chosen.name == "a" and tried == ["a"]
    assert "no time" in chosen.verdicts[1].reason and chosen.verdicts[1].seconds is None


def test_what_a_candidate_raises_stays_inside() -> None:
    def fail() -> str:
        raise OSError("no such library")

    found = choose({"broken": fail, **_candidates("good")}, lambda name: SOUND, 1e-3, lambda name: 1.0)
    assert found is not None and found.name == "good"
    assert found.verdicts[0].reason == "OSError: no such library"
    assert choose({"broken": fail}, lambda name: SOUND, 1e-3, lambda name: 1.0) is None


@pytest.mark.parametrize(
    ("found", "sound"),
    [
        (torch.ones(4), True),
        (torch.ones(4) * (1 + 1e-5), True),
        (torch.tensor([1.0, 1.0, 1.0, 1.1]), False),
        (torch.ones(4) * 0.9, False),
        (torch.tensor([1.0, 1.0, 1.0, float("nan")]), False),
        (torch.tensor([1.0, 1.0, 1.0, float("inf")]), False),
        (torch.zeros(4), False),
        (torch.ones(3), False),
        (None, False),
    ],
)
def test_soundness(found: Tensor | None, sound: bool) -> None:
    assert Soundness.of(found, torch.ones(4)).within(1e-3) == sound


def test_level_counts_beside_the_error() -> None:
    assert not Soundness(1e-6, 0.2).within(1e-3)
    assert not Soundness(1e-6, math.nan).within(1e-3)


def test_best_of_some_runs() -> None:
    calls: list[str] = []
    seconds = best_seconds(lambda: calls.append("run"), lambda: calls.append("wait"), repeat=3)
    assert calls.count("run") == 4 and calls.count("wait") == 6
    assert seconds >= 0


# --------------------------------------------------------------------------------------------- remembering
def test_choice_is_remembered_by_all_that_decides(tmp_path: Path) -> None:
    choices = RememberedChoices(tmp_path)
    facts = {"device": "cpu", "torch": "2.13"}
    path = choices.path("vocoder", facts, "abc", ["torch", "onnxruntime"])
    assert choices.get(path) is None
    choices.put(path, Chosen("torch", None, (Verdict("torch", 1e-7, 0.1),)), facts)
    assert choices.get(path) == "torch"
    assert json.loads(path.read_text())["verdicts"][0]["seconds"] == 0.1
    others = {
        choices.path("flow", facts, "abc", ["torch", "onnxruntime"]),
        choices.path("vocoder", {**facts, "torch": "2.14"}, "abc", ["torch", "onnxruntime"]),
        choices.path("vocoder", facts, "abd", ["torch", "onnxruntime"]),
        choices.path("vocoder", facts, "abc", ["torch", "onnxruntime", "tensorrt"]),
    }
    assert len(others | {path}) == 5
    assert choices.path("vocoder", dict(reversed(facts.items())), "abc", ["torch", "onnxruntime"]) == path


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"name": 3}', '{"name"'])
def test_damaged_choice_counts_as_none(content: str, tmp_path: Path) -> None:
    path = tmp_path / "choice.json"
    path.write_text(content)
    assert RememberedChoices(tmp_path).get(path) is None


def test_choice_that_cannot_be_kept_is_not_missed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    choices = RememberedChoices(tmp_path / "file")
    path = choices.path("vocoder", {}, "abc", [])
    choices.put(path, Chosen("torch", None, ()), {})
    assert choices.get(path) is None


def test_facts_of_this_machine() -> None:
    facts = machine_facts(torch.device("cpu"))
    assert facts["torch"] == torch.__version__.partition("+")[0] or facts["torch"] == torch.__version__
    assert facts["device"] == "cpu" and "gpu" not in facts


# ------------------------------------------------------------------------------------------------- the CPU
def _seconds(monkeypatch: pytest.MonkeyPatch, given: dict[type, float], calls: list[object]) -> None:
    def seconds(vocoder: Vocoder, backend: object) -> float:
        calls.append(backend)
        return given.get(type(backend), 1.0)

    monkeypatch.setattr(backends, "_seconds", seconds)


def test_auto_takes_the_fastest_and_measures_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnx")
    calls: list[object] = []
    _seconds(monkeypatch, {onnx_backends.OnnxSpectrum: 0.1}, calls)
    onnx_backends.OnnxSpectrum.make(small_vocoder(), cache_dir=tmp_path)
    for _ in range(2):
        assert install_spectrum_backend(small_vocoder(), cache_dir=tmp_path) == "onnxruntime"
    assert len(calls) == len(backends.CPU_SPECTRUM)
    assert REPORT.used()["vocoder"] == "onnxruntime"


def test_auto_exports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An export takes a second, and users have no package onnx."""
    calls: list[object] = []
    _seconds(monkeypatch, {ChannelsLast: 0.7}, calls)
    vocoder = small_vocoder()
    assert install_spectrum_backend(vocoder, cache_dir=tmp_path) == "channels_last"
    assert len(calls) == 2 and not list(tmp_path.glob("*.onnx"))
    # What has just been tested is what is used.
    assert isinstance(vocoder.backend, GuardedSpectrum) and vocoder.backend.backend is calls[0]


def test_a_new_graph_is_a_new_candidate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnx")
    _seconds(monkeypatch, {onnx_backends.OnnxSpectrum: 0.1, ChannelsLast: 0.7}, [])
    vocoder = small_vocoder()
    assert install_spectrum_backend(vocoder, cache_dir=tmp_path) == "channels_last"
    assert install_spectrum_backend(vocoder, "onnxruntime", cache_dir=tmp_path) == "onnxruntime"
    assert install_spectrum_backend(vocoder, cache_dir=tmp_path) == "onnxruntime"


def test_remembered_choice_that_is_unsound_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _seconds(monkeypatch, {ChannelsLast: 0.1}, [])
    install_spectrum_backend(small_vocoder(), cache_dir=tmp_path)
    monkeypatch.setattr(ChannelsLast, "__call__", lambda self, mel, excitation: excitation * 0.0)
    before = REPORT.failures
    vocoder = small_vocoder()
    with caplog.at_level(logging.WARNING):
        assert install_spectrum_backend(vocoder, cache_dir=tmp_path) == "torch"
    assert vocoder.backend is None
    assert REPORT.failures == before + 1
    assert "unsound" in caplog.text


@pytest.mark.parametrize("name", ["tensorrt", "triton", "compiled"])
def test_backend_of_another_device(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert install_spectrum_backend(small_vocoder(), name) == "torch"
        assert install_velocity_backend(random_flow(), name) == "torch"
    assert len(caplog.records) == 2 and all(name in record.message for record in caplog.records)


# -------------------------------------------------------------------------------------------- while serving
@torch.inference_mode()
def test_vocoder_backend_that_fails_later_loses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    vocoder = small_vocoder()
    answers = iter([None, RuntimeError("device lost")])

    def backend(mel: Tensor, excitation: Tensor, mask: Tensor | None = None) -> Tensor | None:
        answer = next(answers)
        if answer is None:
            return None
        raise answer

    guarded = GuardedSpectrum(vocoder, "onnxruntime", backend)
    vocoder.backend = guarded
    mel, excitation = probe(vocoder)
    expected = plain_spectrum(vocoder, mel, excitation)
    before = REPORT.failures
    with caplog.at_level(logging.WARNING):
        for _ in range(3):  # not taken, failed, dropped
            assert torch.equal(guarded(mel, excitation), expected)
    assert REPORT.failures == before + 1
    assert len(caplog.records) == 1 and "device lost" in caplog.text
    assert REPORT.used()["vocoder"] == "torch"


class _Failing:
    """A `VelocityBackend` that fails at its second step, or when bound."""

    def __init__(self, network: VelocityNetwork, bound: bool = False) -> None:
        self.network, self.bound, self.calls = network, bound, 0

    def bind(self, *given: Tensor | None, streaming: bool) -> VelocityStep:
        if self.bound:
            raise ValueError("device lost")
        plain = self.network.bind(*given, streaming=streaming)  # type: ignore[arg-type]

        def step(x: Tensor, k: int) -> Tensor:
            self.calls += 1
            if self.calls == 2:
                raise ValueError("device lost")
            return plain(x, k)

        return step


@pytest.mark.parametrize("bound", [False, True])
@torch.inference_mode()
def test_flow_backend_that_fails_in_the_middle_of_a_solve(
    bound: bool, caplog: pytest.LogCaptureFixture
) -> None:
    network = small_network()
    failing = _Failing(network, bound)
    guarded = GuardedVelocity(network, "fused", failing)
    x, mu, cond = (torch.randn(2, 80, 20) for _ in range(3))
    given = (None, mu, torch.randn(2, 80), cond, torch.tensor(time_grid(10)[0]))
    before = REPORT.failures
    with caplog.at_level(logging.WARNING):
        step, plain = (way.bind(*given, streaming=False) for way in (guarded, network))
        assert all(torch.equal(step(x, k), plain(x, k)) for k in range(4))
        step, plain = (way.bind(*given, streaming=True) for way in (guarded, network))
        assert torch.equal(step(x, 0), plain(x, 0))
    assert failing.calls == (0 if bound else 2)  # it is not asked again
    assert REPORT.failures == before + 1 and REPORT.used()["flow"] == "torch"
    assert len(caplog.records) == 1 and "device lost" in caplog.text


class _Raising:
    """A backend of either part that raises `error` whenever it computes."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __call__(self, mel: Tensor, excitation: Tensor, mask: Tensor | None = None) -> Tensor:
        raise self.error

    def bind(self, *given: Tensor | None, streaming: bool) -> VelocityStep:
        return lambda x, k: self(x, x)


@pytest.mark.parametrize(
    ("channels", "error"), [(40, ValueError("40?")), (80, torch.OutOfMemoryError("full"))]
)
@torch.inference_mode()
def test_what_is_not_the_backend_s_fault_drops_nothing(channels: int, error: Exception) -> None:
    network, vocoder = small_network(), small_vocoder()
    mel, excitation = probe(vocoder)
    flow, sound = (
        GuardedVelocity(network, "fused", _Raising(error)),
        GuardedSpectrum(vocoder, "onnxruntime", _Raising(error)),
    )
    x, mu, cond = (torch.randn(2, channels, 20) for _ in range(3))
    given = (None, mu, torch.randn(2, 80), cond, torch.tensor(time_grid(10)[0]))
    before = REPORT.failures
    for _ in range(2):
        with pytest.raises(RuntimeError):  # the network's own for wrong sizes
            flow.bind(*given, streaming=False)(x, 0)
        with pytest.raises(RuntimeError):
            sound(mel[:, :channels], excitation)
    assert REPORT.failures == before
    assert sound.backend is not None


@torch.inference_mode()
def test_two_threads_that_meet_the_same_failure_drop_it_once() -> None:
    network, both = small_network(), threading.Barrier(2)

    class Broken:
        def bind(self, *given: object, streaming: bool) -> VelocityStep:
            def step(x: Tensor, k: int) -> Tensor:
                both.wait(30)
                raise ValueError("device lost")

            return step

    guarded = GuardedVelocity(network, "fused", Broken())
    x, mu, cond = (torch.randn(2, 80, 20) for _ in range(3))
    given = (None, mu, torch.randn(2, 80), cond, torch.tensor(time_grid(10)[0]))
    before = REPORT.failures
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: guarded.bind(*given, streaming=False)(x, 0), range(2)))
    assert torch.equal(found[0], found[1])
    assert REPORT.failures == before + 1


@torch.inference_mode()
def test_bound_velocity_leaves_to_the_network_what_it_does_not_take() -> None:
    network = small_network()
    calls: list[int] = []

    def backend(*values: Tensor) -> Tensor | None:
        calls.append(1)
        return None

    x, mu, cond = (torch.randn(2, 80, 20) for _ in range(3))
    given = (None, mu, torch.randn(2, 80), cond, torch.tensor(time_grid(10)[0]))
    step, plain = (way.bind(*given, streaming=False) for way in (BoundVelocity(network, backend), network))
    assert all(torch.equal(step(x, k), plain(x, k)) for k in range(3))
    assert len(calls) == 1  # asked once a solve


def test_flow_by_onnxruntime(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    flow = own_flow()
    assert install_velocity_backend(flow, "onnxruntime", cache_dir=tmp_path) == "onnxruntime"
    assert flow.backend is not None
    assert velocity_soundness(flow.decoder.estimator, flow.backend).within(1e-5)
    assert install_velocity_backend(flow, "torch") == "torch"
    assert flow.backend is None


def test_unsound_flow_backend_gives_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnx")
    flow = own_flow()
    monkeypatch.setattr(onnx_backends, "_run", lambda session, *values: values[0] * 0.0)
    assert install_velocity_backend(flow, "onnxruntime", cache_dir=tmp_path) == "torch"
    assert flow.backend is None


def test_unknown_flow_backend() -> None:
    with pytest.raises(RequestError) as caught:
        install_velocity_backend(random_flow(), "channels_last")
    assert caught.value.code == "unknown_backend"


def test_flags_name_all_backends() -> None:
    """The options have them as plain words, since they must not import torch."""
    from webui.options import Options

    choices = {field.name: field.metadata["flag"].choices for field in dataclasses.fields(Options)}
    assert choices["vocoder_backend"] == backends.SPECTRUM_BACKENDS
    assert choices["flow_backend"] == backends.VELOCITY_BACKENDS


def test_report_of_a_process(caplog: pytest.LogCaptureFixture) -> None:
    report = BackendReport()
    report.use("flow", "tensorrt")
    with caplog.at_level(logging.WARNING):
        report.drop("flow", "tensorrt", "failed while serving", ValueError("x"))
    assert report.used() == {"flow": "torch"} and report.failures == 1
    assert [record.message for record in caplog.records] == [
        "The flow's backend tensorrt failed while serving (ValueError: x); torch is used."
    ]

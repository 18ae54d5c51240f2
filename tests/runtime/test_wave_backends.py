"""Backends below the packed lane: put in, checked, measured, dropped; engines by a fake TensorRT."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from inference import build_engines
from inference.build_engines import build_all
from inference.runtime import backend_plan, background_build, wave_backends, wave_probes
from inference.runtime.backend_generator import BackendGenerator
from inference.runtime.backend_plan import WaveBackends
from inference.runtime.backend_report import REPORT
from inference.runtime.background_build import BackgroundBuild, command, run_beside
from inference.runtime.network_graphs import SpectrumGraph, velocity_graph
from inference.runtime.packed_flow import FlowJob, PackedFlow
from inference.runtime.packed_vocoder import PackedVocoder
from inference.runtime.padded_velocity import PaddedSolver, padded_table
from inference.runtime.precision import relative_error
from inference.runtime.vocoder_pack import VocoderJob
from inference.runtime.wave_backends import AnyVocoder, buckets_up_to
from inference.settings import BackendSettings, LaneSettings
from tests.models.flow_support import random_flow
from tests.runtime.tensorrt_support import installed
from tests.runtime.wave_support import own_flow, quiet_vocoder

pytestmark = pytest.mark.unit

SETTINGS = LaneSettings(max_batch=4, max_batch_frames=1024)


def _settings(vocoder: str = "torch", flow: str = "torch", model_dir: str | None = None) -> LaneSettings:
    return replace(SETTINGS, backends=BackendSettings(vocoder, flow, model_dir))


def _packed() -> tuple[PackedFlow, PackedVocoder]:
    return PackedFlow(random_flow(), 4), PackedVocoder(quiet_vocoder(), 4)


def _sounds(vocoder: PackedVocoder) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    mels = [torch.randn(frames, 80, generator=generator) * 2 - 5 for frames in (40, 17)]
    _, answer, _ = vocoder.run([VocoderJob(mel, None, True, number) for number, mel in enumerate(mels)])
    return answer.clone()


def _jobs(lengths: Sequence[int] = (75, 70, 65, 66), device: torch.device | str = "cpu") -> list[FlowJob]:
    jobs = []
    for seed, tokens in enumerate(lengths):
        generator, prompt = torch.Generator().manual_seed(seed), 20 + seed
        ids = np.random.default_rng(seed).integers(0, 6561, tokens + prompt)
        mel = torch.randn(2 * prompt, 80, generator=generator) - 5
        causal = seed % 2 == 0
        speaker = torch.randn(80, generator=generator).to(device)
        jobs.append(FlowJob(ids, causal, not causal, mel.to(device), speaker, 2 * prompt))
    return jobs


def _same_mels(found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    return all(relative_error(a, b) <= 1e-5 for a, b in zip(found, expected))


# ------------------------------------------------------------------------------------------------- vocoder
class _Counted:
    """The graph itself as a backend; fails or refuses when told to."""

    def __init__(self) -> None:
        self.graph = SpectrumGraph(quiet_vocoder())
        self.calls = 0
        self.answer: Callable[[Tensor], Tensor | None] = lambda found: found

    def __call__(self, mel: Tensor, excitation: Tensor, mask: Tensor | None = None) -> Tensor | None:
        self.calls += 1
        assert mask is not None
        return self.answer(self.graph(mel, excitation, mask.to(mel.dtype)))


def test_generator_by_a_backend_sounds_the_same() -> None:
    _, vocoder = _packed()
    expected = _sounds(vocoder)
    backend = _Counted()
    vocoder.generator = BackendGenerator(vocoder.generator, "graph", backend)  # type: ignore[assignment]
    assert (_sounds(vocoder).int() - expected.int()).abs().max() <= 1
    assert backend.calls == 1
    backend.answer = lambda found: None  # not its shape
    assert torch.equal(_sounds(vocoder), expected)
    backend.answer = lambda found: found * 1.5
    assert not torch.equal(_sounds(vocoder), expected)  # it is asked again: nothing was broken


def test_generator_that_fails_is_dropped_within_the_call(caplog: pytest.LogCaptureFixture) -> None:
    _, vocoder = _packed()
    expected = _sounds(vocoder)
    backend, dropped = _Counted(), []

    def fail(found: Tensor) -> Tensor:
        raise ValueError("engine lost")

    backend.answer = fail
    generator = BackendGenerator(vocoder.generator, "tensorrt", backend, lambda: dropped.append(1))
    vocoder.generator = generator  # type: ignore[assignment]
    before = REPORT.failures
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert torch.equal(_sounds(vocoder), expected)
    assert (backend.calls, len(dropped), len(caplog.records)) == (1, 1, 1)
    assert REPORT.failures == before + 1


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("out of memory"), RuntimeError("CUDA error: bad")])
def test_memory_and_the_device_are_the_lanes_business(error: Exception) -> None:
    _, vocoder = _packed()
    backend = _Counted()

    def fail(found: Tensor) -> Tensor:
        raise error

    backend.answer = fail
    vocoder.generator = BackendGenerator(vocoder.generator, "tensorrt", backend)  # type: ignore[assignment]
    with pytest.raises(type(error)):
        _sounds(vocoder)


# ---------------------------------------------------------------------------------------------------- flow
def _padded(flow: PackedFlow, **changes: object) -> tuple[PaddedSolver, list[tuple[int, ...]]]:
    graph, shapes = velocity_graph(flow.flow.decoder.estimator), []

    def backend(*values: Tensor) -> Tensor:
        shapes.append(tuple(values[0].shape))
        found: Tensor = graph(*values)
        return found

    solver = PaddedSolver(
        flow.solver._velocity,
        flow.flow.cfg,
        torch.float32,
        flow.device,
        changes.pop("backend", backend),  # type: ignore[arg-type]
        graphs=bool(changes.pop("graphs", False)),
        **changes,  # type: ignore[arg-type]
    )
    return solver, shapes


def test_padded_solver_equals_the_packed_one() -> None:
    """Causal and whole items of different lengths in one batch."""
    flow, _ = _packed()
    expected, _ = flow.run(_jobs())
    flow.solver, shapes = _padded(flow)
    found, unsound = flow.run(_jobs())
    assert _same_mels(found, expected)
    assert shapes == [(8, 80, 192)] * flow.flow.cfg.n_timesteps
    assert not unsound.any()
    again, _ = flow.run(_jobs())  # buffers hold the last run's values
    assert all(torch.equal(a, b) for a, b in zip(again, found))


def test_much_padding_goes_packed() -> None:
    flow, _ = _packed()
    expected, _ = flow.run(_jobs((120, 8, 8, 8)))
    flow.solver, shapes = _padded(flow)
    found, _ = flow.run(_jobs((120, 8, 8, 8)))
    assert not shapes
    assert all(torch.equal(a, b) for a, b in zip(found, expected))


def test_shape_that_the_engine_does_not_take_goes_packed() -> None:
    flow, _ = _packed()
    expected, _ = flow.run(_jobs())
    flow.solver, _ = _padded(flow, backend=lambda *values: None)
    for _ in range(2):
        found, _ = flow.run(_jobs())
        assert all(torch.equal(a, b) for a, b in zip(found, expected))


def test_solve_whose_backend_fails_midway_is_done_packed() -> None:
    flow, _ = _packed()
    expected, _ = flow.run(_jobs())
    errors: list[Exception] = []
    calls: list[int] = []

    def backend(*values: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) == 4:
            raise ValueError("engine lost")
        return values[0] * 0.5

    flow.solver, _ = _padded(flow, backend=backend, failed=errors.append)
    for _ in range(2):
        found, _ = flow.run(_jobs())
        assert all(torch.equal(a, b) for a, b in zip(found, expected))
    assert len(calls) == 4 and len(errors) == 1  # not asked again


@pytest.mark.gpu
def test_padded_solver_in_captured_graphs(cuda: torch.device) -> None:
    """Two shapes by turns: seen, captured, replayed."""
    flow = PackedFlow(own_flow().to(cuda), 4, graphs=True)
    with torch.cuda.stream(torch.cuda.Stream(cuda)):
        batches = [_jobs(lengths, cuda) for lengths in ((75, 70, 65, 66), (40, 39, 38, 37))]
        expected = [[mel.clone() for mel in flow.run(jobs)[0]] for jobs in batches]
        flow.solver, shapes = _padded(flow, graphs=True)
        for _ in range(4):
            for jobs, mels in zip(batches, expected):
                found, _ = flow.run(jobs)
                assert all(relative_error(a, b) <= 1e-3 for a, b in zip(found, mels))
        assert shapes and flow.solver.programs.captured == 2


def test_table_of_a_padded_batch() -> None:
    from inference.runtime.frame_pack import FramePack, PackedMel

    pack = FramePack([PackedMel(5), PackedMel(3, causal=True)], 2, chunk=2)
    table = padded_table(pack, 3, 6)
    assert table[:, 0].tolist() == [[0, 1, 2, 3, 4, 0], [7, 8, 9, 0, 0, 0], [0] * 6]
    assert table[:, 1].tolist() == [[1, 1, 1, 1, 1, 0], [1, 1, 1, 0, 0, 0], [0] * 6]
    assert table[:, 2].tolist() == [[0] * 6, [0, 0, 1, 1, 2, 2], [0] * 6]


# -------------------------------------------------------------------------------------------------- choice
@pytest.fixture
def lane() -> Iterator[tuple[PackedFlow, PackedVocoder]]:
    yield _packed()
    for part in ("flow", "vocoder"):
        REPORT.use(part, "torch")


Lane = tuple[PackedFlow, PackedVocoder]


def _attach(lane: Lane, settings: LaneSettings, folder: Path) -> tuple[WaveBackends, AnyVocoder]:
    backends = WaveBackends(settings, folder)
    return backends, backends.attach(*lane, quiet_vocoder())


def _built(lane: Lane, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COSYVOICE_GRAPHS", str(folder))
    build_all(lane[0], quiet_vocoder(), torch.float32, SETTINGS)


def test_engines_below_the_lane(lane: Lane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnx")
    flow, vocoder = lane
    module = installed(monkeypatch)
    sound, (mels, _) = _sounds(vocoder), flow.run(_jobs())
    _built(lane, tmp_path, monkeypatch)
    _, vocoder = _attach(lane, _settings("tensorrt", "tensorrt"), tmp_path)
    assert isinstance(vocoder, PackedVocoder)
    assert REPORT.used() == {"flow": "tensorrt", "vocoder": "tensorrt"}
    assert isinstance(vocoder.generator, BackendGenerator) and isinstance(flow.solver, PaddedSolver)
    ran = [sum(len(context.ran) for context in engine.contexts) for engine in module.engines]
    assert (_sounds(vocoder).int() - sound.int()).abs().max() <= 1
    assert _same_mels(flow.run(_jobs())[0], mels)
    now = [sum(len(context.ran) for context in engine.contexts) for engine in module.engines]
    assert sum(now) - sum(ran) == 1 + flow.flow.cfg.n_timesteps
    module.broken = True  # while serving
    before = REPORT.failures
    assert torch.equal(_sounds(vocoder), sound)
    assert _same_mels(flow.run(_jobs())[0], mels)
    assert REPORT.failures == before + 2
    assert set(REPORT.used().values()) == {"torch"}


@pytest.mark.parametrize("gain", [1.02, float("nan"), 0.0])
def test_unsound_engine_is_not_used(
    gain: float, lane: Lane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("onnx")
    module = installed(monkeypatch)
    _built(lane, tmp_path, monkeypatch)
    module.gain = gain
    with caplog.at_level(logging.WARNING):
        _, vocoder = _attach(lane, _settings("tensorrt", "torch"), tmp_path)
    assert vocoder is lane[1]
    assert "unsound" in caplog.text


def test_engine_that_fails_in_its_self_test_is_not_used(
    lane: Lane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What takes over is sound, but it is not the engine."""
    pytest.importorskip("onnx")
    module = installed(monkeypatch)
    _built(lane, tmp_path, monkeypatch)
    module.broken = True
    plain, before = lane[0].solver, REPORT.failures
    with caplog.at_level(logging.WARNING):
        backends, vocoder = _attach(lane, _settings("tensorrt", "tensorrt"), tmp_path)
    assert vocoder is lane[1] and lane[0].solver is plain
    assert set(REPORT.used().values()) == {"torch"}
    assert REPORT.failures == before + 2 and len(caplog.records) == 2
    monkeypatch.setattr(
        backend_plan, "VOCODERS", {name: backend_plan.VOCODERS[name] for name in ("torch", "tensorrt")}
    )
    monkeypatch.setattr(backend_plan, "vocoder_seconds", lambda parts, vocoder: 1.0)
    found = backends.measure("vocoder")
    assert found.name == "torch" and "gave way" in found.verdicts[1].reason


def test_unbuilt_and_unknown_engines_leave_torch(
    lane: Lane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    installed(monkeypatch)
    plain = lane[0].solver
    with caplog.at_level(logging.WARNING):
        _, vocoder = _attach(lane, _settings("tensorrt", "onnxruntime"), tmp_path)
    assert vocoder is lane[1] and lane[0].solver is plain
    assert "no spectrum engine" in caplog.text and "not there for this device" in caplog.text


def test_measured_choice_is_used_next_time(
    lane: Lane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = PackedVocoder(quiet_vocoder(), 4)
    monkeypatch.setattr(
        backend_plan, "VOCODERS", {"torch": lambda parts: parts.packed, "fast": lambda parts: fast}
    )
    monkeypatch.setattr(backend_plan, "SOLVERS", {"torch": lambda parts: parts.chosen})
    monkeypatch.setattr(
        backend_plan, "vocoder_seconds", lambda parts, vocoder: 0.1 if vocoder is fast else 1.0
    )
    monkeypatch.setattr(backend_plan, "solver_seconds", lambda parts, solver: 1.0)
    backends, vocoder = _attach(lane, _settings("auto", "auto"), tmp_path)
    assert vocoder is lane[1]  # nothing is remembered yet
    for part, name in (("vocoder", "fast"), ("flow", "torch")):
        found = backends.measure(part)
        assert found.name == name
        backends.remember(part, found)
    _, vocoder = _attach(lane, _settings("auto", "auto"), tmp_path)
    assert vocoder is fast
    assert REPORT.used() == {"flow": "torch", "vocoder": "fast"}


def test_whole_build_and_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What `build-engines` does on a GPU, with the fake and without compiling."""
    pytest.importorskip("onnx")
    installed(monkeypatch)
    monkeypatch.setenv("COSYVOICE_GRAPHS", str(tmp_path))
    for table in ("VOCODERS", "SOLVERS"):
        kept = {name: make for name, make in getattr(backend_plan, table).items() if name != "compiled"}
        monkeypatch.setattr(backend_plan, table, kept)
    monkeypatch.setattr(
        backend_plan, "vocoder_seconds", lambda parts, vocoder: 1.0 if vocoder is parts.packed else 0.1
    )
    monkeypatch.setattr(
        backend_plan, "solver_seconds", lambda parts, solver: 1.0 if solver is parts.chosen else 0.1
    )
    build_engines._build_and_choose(own_flow(), quiet_vocoder(), SETTINGS)
    said = capsys.readouterr().out
    assert "vocoder: tensorrt is used from now on." in said and "flow: tensorrt is used" in said
    assert "vocoder triton: not used" in said
    assert said.index("vocoder: trying torch") < said.index("vocoder: trying tensorrt")
    assert {path.suffix for path in tmp_path.iterdir()} >= {".engine", ".json", ".cache"}
    lane = _packed()
    _, vocoder = _attach(lane, _settings("auto", "auto"), tmp_path)
    assert REPORT.used() == {"flow": "tensorrt", "vocoder": "tensorrt"}
    assert isinstance(lane[0].solver, PaddedSolver) and vocoder is not lane[1]
    for part in ("flow", "vocoder"):
        REPORT.use(part, "torch")


@torch.inference_mode()
def test_measuring_runs_what_the_lane_runs(
    lane: Lane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wave_probes, "_FIRST_CHUNK", 5)
    monkeypatch.setattr(wave_probes, "_FULL_ROW", 10)
    monkeypatch.setattr(wave_probes, "_SENTENCE", (30,))
    monkeypatch.setattr(wave_probes, "_SENTENCES", (40, 41))
    flow, vocoder = lane
    parts = wave_backends.VocoderParts(quiet_vocoder(), vocoder, SETTINGS, tmp_path, 4)
    assert wave_probes.vocoder_soundness(parts, vocoder).within(1e-5)
    assert wave_probes.spectrum_bound(parts) == wave_probes.SPECTRUM_BOUND
    assert wave_probes.vocoder_seconds(parts, vocoder) > 0
    flows = wave_backends.FlowParts(flow, flow.solver, SETTINGS, tmp_path)
    assert wave_probes.solver_soundness(flows, flow.solver).within(1e-5)
    assert wave_probes.solver_seconds(flows, flow.solver) > 0


def test_kernels_that_the_lane_does_not_use(
    lane: Lane, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """On the CPU it has none: asking for them is answered with what there is."""
    with caplog.at_level(logging.WARNING):
        _, vocoder = _attach(lane, _settings("triton", "triton"), tmp_path)
    assert vocoder is lane[1]
    assert len(caplog.records) == 2 and "triton cannot be used here" in caplog.text
    assert set(REPORT.used().values()) == {"torch"}


def test_buckets_are_those_of_the_lane() -> None:
    from inference.runtime.frame_pack import bucket

    found = buckets_up_to(4608)
    assert found[0] == 64 and found[-1] == 4608
    assert {bucket(size) for size in range(1, 4609)} == set(found)
    assert wave_backends._outside_in([1, 2, 3, 4, 5]) == [1, 5, 2, 4, 3]


# --------------------------------------------------------------------------------------- in the background
class _Build:
    def __init__(self) -> None:
        self.finished, self.good = False, True

    def done(self, *, busy: bool = False) -> bool:
        return self.finished

    def succeeded(self) -> bool:
        return self.good


@pytest.mark.parametrize("good", [True, False])
def test_what_was_built_beside_is_put_in(
    good: bool, lane: Lane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnx")
    installed(monkeypatch)
    build, started = _Build(), []

    def start(settings: LaneSettings, device: torch.device) -> _Build:
        started.append(settings)
        return build

    monkeypatch.setattr(backend_plan.BackgroundBuild, "start", staticmethod(start))
    backends, vocoder = _attach(lane, _settings("tensorrt", "torch", "folder"), tmp_path)
    assert len(started) == 1
    assert backends.poll() is None and vocoder is lane[1]
    _built(lane, tmp_path, monkeypatch)
    build.finished, build.good = True, good
    found = backends.poll()
    assert (found is not None and found is not lane[1]) == good
    assert backends.poll() is None
    _attach(lane, _settings("tensorrt", "torch", "folder"), tmp_path)
    assert len(started) == 1  # the engine is there


def test_nothing_is_built_without_need(lane: Lane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(settings: LaneSettings, device: torch.device) -> None:
        raise AssertionError

    monkeypatch.setattr(backend_plan.BackgroundBuild, "start", staticmethod(start))
    _attach(lane, _settings("torch", "torch", "folder"), tmp_path)
    _attach(lane, _settings("auto", "auto", None), tmp_path)


def test_no_build_on_the_cpu() -> None:
    assert BackgroundBuild.start(_settings("tensorrt", "tensorrt", "folder"), torch.device("cpu")) is None


def test_command_builds_this_lane(tmp_path: Path) -> None:
    from inference.cli import build_parser

    words = command(_settings("auto", "auto", str(tmp_path)), torch.device("cuda:1"))
    assert words[:3] == [sys.executable, "-m", "inference"]
    args = build_parser().parse_args(words[3:])
    assert (args.command, args.model_dir, args.device) == ("build-engines", tmp_path, "cuda:1")
    assert (args.max_batch, args.max_batch_frames, args.beside) == (4, 1024, os.getpid())


@pytest.mark.parametrize("status", [0, 3])
def test_process_beside_this_one(status: int, caplog: pytest.LogCaptureFixture) -> None:
    script = (
        "import os; from inference.runtime.background_build import *; "
        f"give_way(os.getppid()); assert os.nice(0) >= NICENESS; os._exit({status})"
    )
    build = BackgroundBuild(lambda: run_beside([sys.executable, "-c", script]))
    _wait_for(build)
    with caplog.at_level(logging.WARNING):
        assert build.succeeded() == (status == 0)
    assert ("could not be built" in caplog.text) == (status != 0)


def _wait_for(build: BackgroundBuild) -> None:
    deadline = time.monotonic() + 60
    while not build.done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_trying_out_waits_until_nobody_is_served() -> None:
    begun = threading.Event()

    def begin() -> None:
        begun.set()

    build = BackgroundBuild(begin, quiet=0.3)
    for _ in range(10):
        assert not build.done(busy=True)
        assert not begun.wait(0.05)
    assert begun.wait(30)
    _wait_for(build)
    assert not build.succeeded()  # it made no sense, which is no failure either


def test_stopped_before_it_began() -> None:
    begun: list[int] = []
    build = BackgroundBuild(lambda: begun.append(1), quiet=0.05)
    build.stop()
    assert build.done() and not build.succeeded()
    time.sleep(0.2)
    assert not begun


def test_stopped_and_overlong_ones_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    stopped = BackgroundBuild(lambda: run_beside(sleep))
    assert not stopped.done()
    stopped.stop()
    _wait_for(stopped)
    monkeypatch.setattr(background_build, "LONGEST_SECONDS", 0.0)
    overlong = BackgroundBuild(lambda: run_beside(sleep))
    assert overlong.done() and not overlong.succeeded()


def test_process_whose_parent_has_gone() -> None:
    """It was started by a process that is no more: it ends instead of building for nobody."""
    script = (
        "import time; from inference.runtime.background_build import give_way; give_way(1); time.sleep(60)"
    )
    process = run_beside([sys.executable, "-c", script])
    assert process.wait(50) == 1


def test_build_engines_on_the_cpu(tmp_path: Path) -> None:
    """The whole command: it has nothing to build there, and says what is used."""
    folder = Path(__file__).resolve().parents[2] / "assets" / "nano"
    done = subprocess.run(
        [sys.executable, "-m", "inference", "build-engines", "--model-dir", str(folder), "--device", "cpu"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "COSYVOICE_GRAPHS": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    assert "flow: fused" in done.stdout and "vocoder: " in done.stdout
    if importlib.util.find_spec("onnx"):
        choices = [json.loads(path.read_text()) for path in tmp_path.glob("choice-vocoder-*.json")]
        tried = [{verdict["name"] for verdict in choice["verdicts"]} for choice in choices]
        assert {"channels_last", "onnxruntime", "torch"} in tried

"""Engines with a fake TensorRT: built, kept, read, run on raw addresses, refused, given up; by all versions' calls."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from inference.runtime import tensorrt_engine
from inference.runtime.backends import probe
from inference.runtime.engine_store import EngineKey, EngineStore
from inference.runtime.network_graphs import SpectrumGraph, velocity_example
from inference.runtime.precision import relative_error
from inference.runtime.shape_ranges import ShapeRange, spectrum_ranges, velocity_ranges
from inference.runtime.tensorrt_api import TensorRt, TensorRtError, load_tensorrt
from inference.runtime.tensorrt_backends import (
    TensorRtSpectrum,
    ready_engine,
    spectrum_spec,
    tensorrt_spectrum,
    tensorrt_velocity,
)
from inference.runtime.tensorrt_engine import TooLargeError
from tests.runtime.fake_tensorrt import MemoryPoolType, fake_tensorrt
from tests.runtime.tensorrt_support import BATCHES, ROWS, installed, small_network, small_vocoder

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.unit

VERSIONS = ("8.6.0", "10.13.3.9", "10.16.1.11", "11.4.0.106")
NAMES = json.loads(Path(__file__).with_name("tensorrt_names.json").read_text(encoding="utf-8"))


def _row(rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Two items in a packed row."""
    generator = torch.Generator().manual_seed(rows)
    mask = torch.zeros(1, 1, rows, dtype=torch.bool)
    mask[:, :, 4:30] = mask[:, :, 36 : rows - 8] = True
    mel = torch.randn(1, 80, rows, generator=generator) * 2 - 5
    return mel, torch.randn(1, 18, 120 * rows + 1, generator=generator) * 0.3, mask


def _spectrum(tmp_path: Path, dtype: torch.dtype = torch.float32, **changes: Any) -> TensorRtSpectrum:
    return tensorrt_spectrum(small_vocoder(), dtype, tmp_path, ranges=ROWS, **changes)


def _engine_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.engine"))


# ------------------------------------------------------------------------------------------------- results
@pytest.mark.parametrize("version", VERSIONS)
@torch.inference_mode()
def test_spectrum_of_packed_rows(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, version)
    backend, graph = _spectrum(tmp_path), SpectrumGraph(small_vocoder())
    for rows in (64, 192):
        mel, excitation, mask = _row(rows)
        found = backend(mel, excitation, mask)
        assert found is not None and found.dtype == torch.float32
        inside = mask.repeat_interleave(120, dim=2)
        expected = graph(mel, excitation, mask.float())
        assert relative_error(found[..., :-1] * inside, expected[..., :-1] * inside) <= 1e-5


@pytest.mark.parametrize("version", ["8.6.0", "11.4.0.106"])
@torch.inference_mode()
def test_velocity_of_padded_batches(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, version)
    network = small_network()
    backend = tensorrt_velocity(network, torch.float32, tmp_path, ranges=BATCHES)
    values = list(velocity_example(network, 4, 130, torch.float32))
    generator = torch.Generator().manual_seed(3)
    values[0], values[2], values[5] = (torch.randn(4, 80, 130, generator=generator) for _ in range(3))
    values[1][2:, :, 100:] = 0.0
    found = backend(*values)
    expected = network(*values[:6], streaming=True)
    assert found is not None
    assert relative_error(found, expected) <= 1e-5


@torch.inference_mode()
def test_half_precision_by_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = installed(monkeypatch)
    backend = _spectrum(tmp_path, torch.float16)
    ((network, config),) = module.builds
    assert network.creation_flags == 1 << 1  # strongly typed
    assert not config.flags and config.cleared == [module.BuilderFlag.TF32]
    assert config.limits == {}  # not limited without a GPU
    mel, excitation, mask = _row(64)
    found = backend(mel, excitation, mask)  # converted to what the engine takes
    inside = mask.repeat_interleave(120, dim=2)
    expected = SpectrumGraph(small_vocoder())(mel, excitation, mask.float())
    assert found is not None
    error = relative_error(found[..., :-1] * inside, expected[..., :-1] * inside)
    assert 1e-6 < error < 5e-3


def test_half_precision_by_a_flag_in_8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = installed(monkeypatch, "8.6.0")
    backend = _spectrum(tmp_path, torch.float16)
    ((network, config),) = module.builds
    assert network.creation_flags == 1  # explicit batch
    assert config.flags == [module.BuilderFlag.FP16]
    assert {entry.name for entry in network.inputs} == {"mel", "excitation", "mask"}
    mel, excitation, mask = _row(64)
    found = backend(mel.half(), excitation.half(), mask)
    assert found is not None and found.dtype == torch.float32


# ---------------------------------------------------------------------------------------- shapes and contexts
@torch.inference_mode()
def test_outside_of_the_profiles_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = installed(monkeypatch)
    backend = _spectrum(tmp_path)
    for rows in (63, 257):
        assert backend(*_row(rows)) is None
    mel, excitation, mask = _row(64)
    assert backend(mel.repeat(2, 1, 1), excitation.repeat(2, 1, 1), mask.repeat(2, 1, 1)) is None
    assert backend(mel, excitation[:, :, :-400], mask) is None  # refused by set_input_shape
    (engine,) = module.engines
    assert not any(context.ran for context in engine.contexts)


@torch.inference_mode()
def test_every_shape_has_a_context_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A captured graph holds its context's shape; scratch memory is the same for all and never moves."""
    module = installed(monkeypatch)
    backend = _spectrum(tmp_path)
    for rows in (64, 128, 192, 64, 128):
        assert backend(*_row(rows)) is not None
    (engine,) = module.engines
    assert [len(context.ran) for context in engine.contexts] == [2, 2, 1]
    assert [context.profile for context in engine.contexts] == [0, 0, 1]
    assert all(len({tuple(run["mel"]) for run in context.ran}) == 1 for context in engine.contexts)
    assert len({context.scratch for context in engine.contexts}) == 1
    assert backend.engine.memory_bytes() == module.scratch * len(ROWS)


@torch.inference_mode()
def test_contexts_are_bounded_and_captured_ones_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = installed(monkeypatch)
    monkeypatch.setattr(tensorrt_engine, "MOST_CONTEXTS", 2)
    backend = _spectrum(tmp_path)
    assert backend(*_row(64)) is not None
    monkeypatch.setattr(backend.engine, "_stream", lambda: (0, True))
    assert backend(*_row(64)) is not None  # captured from now on
    with pytest.raises(TensorRtError):
        backend(*_row(65))  # must run once before
    monkeypatch.setattr(backend.engine, "_stream", lambda: (0, False))
    for rows in (65, 66, 67, 64):
        assert backend(*_row(rows)) is not None
    (engine,) = module.engines
    assert len(engine.contexts) == 4  # 64 was kept, though the oldest
    monkeypatch.setattr(backend.engine, "_stream", lambda: (0, True))
    backend(*_row(67))
    monkeypatch.setattr(backend.engine, "_stream", lambda: (0, False))
    assert backend(*_row(70)) is None  # both belong to graphs


@torch.inference_mode()
def test_streams_share_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = installed(monkeypatch)
    backend = _spectrum(tmp_path)
    for stream in (11, 22):
        monkeypatch.setattr(backend.engine, "_stream", lambda stream=stream: (stream, False))
        backend(*_row(64))
    first, second = module.engines[0].contexts
    assert first.scratch != second.scratch


@torch.inference_mode()
def test_failure_to_run_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = installed(monkeypatch)
    backend = _spectrum(tmp_path)
    module.broken = True
    with pytest.raises(TensorRtError):
        backend(*_row(64))


def test_scratch_memory_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Made again without the largest profile; refused when that does not help either."""
    module = fake_tensorrt()
    api, vocoder, store = TensorRt(module), small_vocoder(), EngineStore(tmp_path)
    spec = spectrum_spec(api, vocoder, torch.float32, ROWS)
    with caplog.at_level(logging.WARNING):
        engine = ready_engine(api, spec, store, torch.device("cpu"), scratch_limit=module.scratch)
    assert "largest profile" in caplog.text
    assert engine.takes(1, 100) and not engine.takes(1, 200)
    with pytest.raises(TooLargeError):
        ready_engine(api, spec, store, torch.device("cpu"), scratch_limit=module.scratch - 1)


# ------------------------------------------------------------------------------------------------ the store
def test_engine_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = installed(monkeypatch)
    with pytest.raises(TensorRtError, match="no spectrum engine"):
        _spectrum(tmp_path, build=False)
    told: list[str] = []
    _spectrum(tmp_path, tell=told.append)
    _spectrum(tmp_path, build=False)
    assert len(module.builds) == 1
    assert "256 frames" in told[0]
    assert not list(tmp_path.glob(".making*"))


def test_timings_of_earlier_builds_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = installed(monkeypatch)
    _spectrum(tmp_path)
    tensorrt_velocity(small_network(), torch.float32, tmp_path, ranges=BATCHES)
    assert [config.get_timing_cache().content for _, config in module.builds] == [b"", b"+"]
    (file,) = tmp_path.glob("timings-*.cache")
    assert file.read_bytes() == b"++"


@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "no plan at all"])
def test_damaged_engine_is_built_anew(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    module = installed(monkeypatch)
    _spectrum(tmp_path)
    (file,) = _engine_files(tmp_path)
    whole = file.read_bytes()
    file.write_bytes(
        {"cut": whole[:-10], "changed": whole[:-1] + b"?", "empty": b"", "no plan at all": b"x" * 99}[damage]
    )
    with caplog.at_level(logging.WARNING):
        _spectrum(tmp_path)
    assert "damaged" in caplog.text
    assert len(module.builds) == 2
    assert file.read_bytes() == whole


def test_engine_that_the_library_cannot_read_is_built_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is whole, of this key, and yet None to `deserialize_cuda_engine`."""
    module = installed(monkeypatch)
    key = spectrum_spec(TensorRt(module), small_vocoder(), torch.float32, ROWS).key
    import pickle

    EngineStore(tmp_path).write(key, pickle.dumps({"version": "10.0"}))
    with pytest.raises(TensorRtError, match="cannot read"):
        _spectrum(tmp_path, build=False)
    EngineStore(tmp_path).write(key, pickle.dumps({"version": "10.0"}))
    _spectrum(tmp_path)
    assert len(module.builds) == 1


def test_other_version_has_an_engine_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("10.16.1.11", "11.4.0.106"):
        module = installed(monkeypatch, version)
        _spectrum(tmp_path)
        assert len(module.builds) == 1
    assert len(_engine_files(tmp_path)) == 2


def test_copied_engine_is_not_believed(tmp_path: Path) -> None:
    """A file of another GPU under this one's name, as when a folder is copied and renamed by hand."""
    store = EngineStore(tmp_path)
    here = EngineKey("spectrum", "abc", "H200 9.0", "tensorrt 11.4", "fp16", ROWS)
    there = EngineKey("spectrum", "abc", "RTX 4090 8.9", "tensorrt 11.4", "fp16", ROWS)
    store.write(there, b"plan")
    store.path(there).rename(store.path(here))
    assert store.read(here) is None
    assert not store.path(here).exists()


def test_key_names_all_that_decides() -> None:
    key = EngineKey("spectrum", "abc", "H200 9.0", "tensorrt 11.4", "fp16", ROWS)
    from dataclasses import replace

    others = [
        replace(key, kind="velocity"),
        replace(key, graph="abd"),
        replace(key, gpu="H100 9.0"),
        replace(key, runtime="tensorrt 11.3"),
        replace(key, precision="fp32"),
        replace(key, ranges=ROWS[:1]),
    ]
    names = {entry.file_name for entry in (key, *others)}
    assert len(names) == 7
    assert key.file_name == replace(key).file_name
    timings = {entry.timings_name for entry in others}
    assert len(timings) == 3  # this GPU and version, another GPU, another version


def test_key_follows_weights_and_precision() -> None:
    api, vocoder = TensorRt(fake_tensorrt()), small_vocoder()
    key = spectrum_spec(api, vocoder, torch.float16, ROWS).key
    assert spectrum_spec(api, small_vocoder(), torch.float16, ROWS).key == key
    assert spectrum_spec(api, vocoder, torch.float32, ROWS).key != key
    with torch.no_grad():
        vocoder.conv_pre.weight[0, 0, 0] += 1e-3
    assert spectrum_spec(api, vocoder, torch.float16, ROWS).key != key


def test_failed_build_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = installed(monkeypatch)
    module.refuses = True
    with pytest.raises(TensorRtError, match="cannot build"):
        _spectrum(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_file_that_is_no_graph(tmp_path: Path) -> None:
    path = tmp_path / "graph.onnx"
    path.write_bytes(b"\xff" * 40)
    with pytest.raises(TensorRtError, match="cannot be parsed"):
        TensorRt(fake_tensorrt()).build(path, [], ROWS, half=False)


def test_workspace_is_limited(tmp_path: Path) -> None:
    from inference.runtime.onnx_export import export_spectrum

    module, path = fake_tensorrt(), tmp_path / "graph.onnx"
    export_spectrum(small_vocoder(), path)
    spec = spectrum_spec(TensorRt(module), small_vocoder(), torch.float32, ROWS)
    axes = [(entry.name, entry.axes) for entry in spec.inputs]
    TensorRt(module).build(path, axes, ROWS, half=False, workspace=1 << 20)
    ((_, config),) = module.builds
    assert config.limits == {MemoryPoolType.WORKSPACE: 1 << 20}
    first, second = config.profiles
    assert first.shapes["excitation"] == ((1, 18, 7681), (1, 18, 7681), (1, 18, 15361))
    assert second.shapes["mask"] == ((1, 1, 129), (1, 1, 192), (1, 1, 256))


# -------------------------------------------------------------------------------------------------- ranges
def test_profiles_hold_what_the_pool_makes() -> None:
    from inference.runtime.frame_pack import bucket
    from inference.runtime.vocoder_pack import rows_used

    short, long = spectrum_ranges(32, 32768)
    for lengths in ([50], [500] * 8, [128] * 32, [4096]):
        rows = bucket(rows_used(lengths))
        assert short.takes(1, rows) or long.takes(1, rows), rows
    assert short.frames[2] + 1 == long.frames[0]
    few, many = velocity_ranges(32, 32768)
    assert few.takes(2, 64) and few.takes(8, 2048) and many.takes(32, 1024) and many.takes(16, 700)
    assert velocity_ranges(1, 4096)[0].batch == (2, 2, 2)


def test_attention_scores_are_bounded() -> None:
    for shapes in velocity_ranges(32, 32768, heads=8):
        assert shapes.batch[2] * 8 * shapes.frames[2] ** 2 * 2 <= 1 << 30


# --------------------------------------------------------------------------------------------------- names
@pytest.mark.parametrize("version", VERSIONS[1:])
def test_fake_speaks_the_real_calls(version: str) -> None:
    """All that the code calls is there in the fake, or its tests would fail; all of the fake is in the bindings."""
    module, real = fake_tensorrt(version), NAMES[version]
    from tests.runtime import fake_tensorrt as fake

    pairs = {
        "Builder": fake.Builder,
        "IBuilderConfig": fake.Config,
        "INetworkDefinition": fake.Network,
        "OnnxParser": fake.Parser,
        "IOptimizationProfile": fake.Profile,
        "ITimingCache": fake.TimingCache,
        "Runtime": fake.Runtime,
        "ICudaEngine": fake.NewEngine,
        "IExecutionContext": fake.NewContext,
    }
    for name, kind in pairs.items():
        methods = {key for base in kind.__mro__[:-1] for key in vars(base) if not key.startswith("_")}
        assert methods - {"module", "engine_type"} <= set(real[name]), name
    for name in ("DataType", "TensorIOMode", "MemoryPoolType", "ExecutionContextAllocationStrategy"):
        assert {entry.name for entry in getattr(module, name)} <= set(real[name])
    for flags in (module.NetworkDefinitionCreationFlag, module.BuilderFlag):
        assert {entry.name for entry in flags} <= set(real[flags.__name__])
    assert {"phase_start", "step_complete", "phase_finish"} <= set(real["IProgressMonitor"])


def test_none_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "tensorrt", None)
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", None)
    with pytest.raises(TensorRtError, match="tensorrt"):
        load_tensorrt()


@torch.inference_mode()
def test_row_without_a_mask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    vocoder = small_vocoder()
    backend = tensorrt_spectrum(
        vocoder, torch.float32, tmp_path, ranges=(ShapeRange((1, 2, 2), (8, 12, 64)),)
    )
    mel, excitation = probe(vocoder, 12)
    found = backend(mel, excitation)
    assert found is not None
    assert relative_error(found, SpectrumGraph(vocoder)(mel, excitation)) <= 1e-5

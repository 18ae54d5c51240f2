"""Real parse and engine build without a GPU, by TensorRT-RTX: graphs, profiles and types are what it takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from inference.runtime.engine_store import EngineStore
from inference.runtime.shape_ranges import ShapeRange
from inference.runtime.tensorrt_api import TensorRt, TensorRtError
from inference.runtime.tensorrt_backends import EngineSpec, _plan, spectrum_spec, velocity_spec
from tests.runtime.rtx_support import rtx
from tests.runtime.tensorrt_support import BATCHES, ROWS, small_network, small_vocoder

pytest.importorskip("onnx")
pytestmark = pytest.mark.unit

HALF, SINGLE = torch.float16, torch.float32
Make = Callable[[TensorRt, torch.dtype], EngineSpec]
SPECS: dict[str, Make] = {
    "spectrum": lambda api, dtype: spectrum_spec(api, small_vocoder(), dtype, ROWS),
    "velocity": lambda api, dtype: velocity_spec(api, small_network(), dtype, BATCHES),
}


@pytest.mark.parametrize("dtype", [SINGLE, HALF])
@pytest.mark.parametrize("kind", SPECS)
def test_engine_is_built(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    api, store = TensorRt(rtx()), EngineStore(tmp_path)
    spec = SPECS[kind](api, dtype)
    told: list[str] = []
    plan = _plan(api, spec, store, True, told.append, anew=False)
    assert len(plan) > 10_000
    assert store.read(spec.key) == plan
    assert any("%" in line for line in told)  # the progress monitor's


@pytest.mark.parametrize("dtype", [SINGLE, HALF])
@pytest.mark.parametrize("kind", SPECS)
def test_types_and_shapes_of_the_network(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    trt = rtx()
    api = TensorRt(trt)
    spec, path = SPECS[kind](api, dtype), tmp_path / "graph.onnx"
    spec.export(path, dtype)
    network = trt.Builder(api.logger).create_network(api._network_flags())
    parser = trt.OnnxParser(network, api.logger)
    assert parser.parse(path.read_bytes())
    wanted = trt.DataType.HALF if dtype == HALF else trt.DataType.FLOAT
    tensors = [network.get_input(number) for number in range(network.num_inputs)]
    assert [tensor.name for tensor in tensors] == [entry.name for entry in spec.inputs]
    for tensor, entry in zip(tensors, spec.inputs):
        dynamic = {axis for axis, size in enumerate(tuple(tensor.shape)) if size == -1}
        assert dynamic == set(entry.axes)
        exact = tensor.name in ("t", "chunks")
        assert tensor.dtype == (trt.DataType.FLOAT if exact else wanted), tensor.name
    assert network.num_outputs == 1
    output = network.get_output(0)
    assert output.dtype == (
        trt.DataType.FLOAT if kind == "spectrum" else wanted
    )  # log magnitudes stay float32


def test_profile_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    """A velocity profile of no frames at all."""
    api = TensorRt(rtx())
    spec, path = SPECS["velocity"](api, SINGLE), tmp_path / "graph.onnx"
    spec.export(path, SINGLE)
    axes = [(entry.name, entry.axes) for entry in spec.inputs]
    with pytest.raises((TensorRtError, ValueError)):
        api.build(path, axes, [ShapeRange((4, 2, 1), (64, 32, 16))], half=False, workspace=0)


def test_damaged_plan_is_none() -> None:
    """What the fake claims of `deserialize_cuda_engine`."""
    api = TensorRt(rtx())
    assert api.runtime().deserialize_cuda_engine(b"\x00" * 4096) is None


def test_calls_are_there() -> None:
    """All that `tensorrt_engine` calls, which cannot run here."""
    trt = rtx()
    names = {
        trt.ICudaEngine: (
            "create_execution_context get_device_memory_size_for_profile_v2 num_optimization_profiles num_io_tensors "
            "get_tensor_name get_tensor_mode get_tensor_dtype"
        ),
        trt.IExecutionContext: (
            "set_device_memory set_optimization_profile_async set_input_shape get_tensor_shape set_tensor_address "
            "execute_async_v3"
        ),
    }
    for kind, words in names.items():
        assert [name for name in words.split() if not hasattr(kind, name)] == []
    assert hasattr(trt.ExecutionContextAllocationStrategy, "USER_MANAGED")

"""A TensorRT without a GPU: the calls of the real bindings, a plan that holds its ONNX file, sums by ONNX Runtime.

It reads and writes the raw addresses that it is given, as the real one does, and is as strict: a shape outside of the
profile is refused with False, a plan of another version is None, an address that was not set is an error.
"""

from __future__ import annotations

import ctypes
import enum
import math
import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

Shape = tuple[int, ...]


class DataType(enum.Enum):
    FLOAT = 0
    HALF = 1


class TensorIOMode(enum.Enum):
    NONE = 0
    INPUT = 1
    OUTPUT = 2


class MemoryPoolType(enum.Enum):
    WORKSPACE = 0


class Strategy(enum.Enum):
    STATIC = 0
    ON_PROFILE_CHANGE = 1
    USER_MANAGED = 2


_NUMPY = {DataType.FLOAT: np.dtype(np.float32), DataType.HALF: np.dtype(np.float16)}


class Logger:
    WARNING = 2

    def __init__(self, severity: int) -> None:
        self.severity = severity


class Profile:
    def __init__(self) -> None:
        self.shapes: dict[str, tuple[Shape, Shape, Shape]] = {}

    def set_shape(self, input: str, min: Shape, opt: Shape, max: Shape) -> None:  # noqa: A002 (the real names)
        assert all(a <= b <= c for a, b, c in zip(min, opt, max)), (input, min, opt, max)
        self.shapes[input] = (min, opt, max)


class TimingCache:
    def __init__(self, content: bytes) -> None:
        self.content = content

    def serialize(self) -> bytes:
        return self.content + b"+"


class Config:
    def __init__(self) -> None:
        self.profiles: list[Profile] = []
        self.flags: list[object] = []
        self.cleared: list[object] = []
        self.limits: dict[MemoryPoolType, int] = {}
        self._cache: TimingCache | None = None

    def set_memory_pool_limit(self, pool: MemoryPoolType, pool_size: int) -> None:
        self.limits[pool] = pool_size

    def set_flag(self, flag: object) -> None:
        self.flags.append(flag)

    def clear_flag(self, flag: object) -> None:
        self.cleared.append(flag)

    def add_optimization_profile(self, profile: Profile) -> int:
        self.profiles.append(profile)
        return len(self.profiles) - 1

    def create_timing_cache(self, serialized_timing_cache: bytes) -> TimingCache:
        return TimingCache(serialized_timing_cache)

    def set_timing_cache(self, cache: TimingCache, ignore_mismatch: bool) -> bool:
        self._cache = cache
        return True

    def get_timing_cache(self) -> TimingCache | None:
        return self._cache


class Network:
    def __init__(self, flags: int) -> None:
        self.creation_flags = flags
        self.inputs: list[Any] = []
        self.content = b""

    @property
    def num_inputs(self) -> int:
        return len(self.inputs)

    def get_input(self, index: int) -> Any:
        return self.inputs[index]


class Parser:
    def __init__(self, network: Network, logger: Logger) -> None:
        self._network = network
        self._errors: list[str] = []

    def parse(self, model: bytes) -> bool:
        import onnx

        try:
            graph = onnx.load_model_from_string(model).graph
        except Exception as error:
            self._errors.append(str(error))
            return False
        self._network.content = model
        self._network.inputs = [SimpleNamespace(name=v.name, shape=_shape(v)) for v in graph.input]
        return True

    @property
    def num_errors(self) -> int:
        return len(self._errors)

    def get_error(self, index: int) -> str:
        return self._errors[index]


def _shape(value: Any) -> list[int]:
    return [-1 if dim.dim_param else dim.dim_value for dim in value.type.tensor_type.shape.dim]


class Session:
    """An ONNX file, its tensors by name, and their symbolic shapes."""

    def __init__(self, content: bytes) -> None:
        import onnx
        import onnxruntime

        graph = onnx.load_model_from_string(content).graph
        self.run = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"]).run
        self.inputs, self.outputs = [v.name for v in graph.input], [v.name for v in graph.output]
        self.types, self.axes = {}, {}
        for value in (*graph.input, *graph.output):
            kind = value.type.tensor_type
            half = kind.elem_type == onnx.TensorProto.FLOAT16
            self.types[value.name] = DataType.HALF if half else DataType.FLOAT
            self.axes[value.name] = [dim.dim_param or dim.dim_value for dim in kind.shape.dim]


class Context:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.profile: int | None = None
        self.scratch = 0
        self.shapes: dict[str, Shape] = {}
        self.addresses: dict[str, int] = {}
        self.ran: list[dict[str, Shape]] = []

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        self.profile = profile_index
        return 0 <= profile_index < self._engine.num_optimization_profiles

    def set_input_shape(self, name: str, shape: Shape) -> bool:
        assert self.profile is not None
        least, _, most = self._engine.profiles[self.profile][name]
        if len(shape) != len(least) or not all(a <= b <= c for a, b, c in zip(least, shape, most)):
            return False
        self.shapes[name] = shape
        return True

    def get_tensor_shape(self, name: str) -> Shape:
        session = self._engine.session
        if set(self.shapes) != set(session.inputs):
            return tuple(-1 if isinstance(size, str) else size for size in session.axes[name])
        sizes: dict[str, int] = {}
        for given, shape in self.shapes.items():
            for axis, size in zip(session.axes[given], shape):
                if isinstance(axis, str):
                    assert sizes.setdefault(axis, size) == size, (given, axis)
        return tuple(sizes[size] if isinstance(size, str) else size for size in session.axes[name])

    def set_tensor_address(self, name: str, memory: int) -> bool:
        self.addresses[name] = memory
        return True

    def execute_async_v3(self, stream_handle: int) -> bool:
        engine, session = self._engine, self._engine.session
        assert self.scratch and self.scratch % 16 == 0
        if engine.module.broken:
            return False
        given = {name: self._view(name, self.shapes[name]).copy() for name in session.inputs}
        (result,) = session.run(None, given)
        (output,) = session.outputs
        self._view(output, self.get_tensor_shape(output))[...] = result * engine.module.gain
        self.ran.append(dict(self.shapes))
        return True

    def _view(self, name: str, shape: Shape) -> npt.NDArray[Any]:
        kind = _NUMPY[self._engine.session.types[name]]
        size = math.prod(shape) * kind.itemsize
        memory = (ctypes.c_char * size).from_address(self.addresses[name])
        return np.frombuffer(memory, dtype=kind).reshape(shape)


class NewContext(Context):
    """From 10.1 on."""

    def set_device_memory(self, memory: int, size: int) -> None:
        assert size >= self._engine.scratch
        self.scratch = memory


class OldContext(Context):
    """8.6."""

    @property
    def device_memory(self) -> int:
        return self.scratch

    @device_memory.setter
    def device_memory(self, memory: int) -> None:
        self.scratch = memory


class Engine:
    def __init__(self, module: Any, plan: dict[str, Any]) -> None:
        self.module = module
        self.session = Session(plan["graph"])
        self.profiles = plan["profiles"]
        self.scratch: int = module.scratch * len(self.profiles)
        self.contexts: list[Context] = []
        module.engines.append(self)

    @property
    def num_optimization_profiles(self) -> int:
        return len(self.profiles)

    @property
    def num_io_tensors(self) -> int:
        return len(self.session.types)

    def get_tensor_name(self, index: int) -> str:
        return list(self.session.types)[index]

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        return TensorIOMode.INPUT if name in self.session.inputs else TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name: str) -> DataType:
        return self.session.types[name]

    def _made(self, context: Context) -> Context:
        self.contexts.append(context)
        return context


class NewEngine(Engine):
    def create_execution_context(self, strategy: Strategy = Strategy.STATIC) -> Context:
        assert strategy is Strategy.USER_MANAGED
        return self._made(NewContext(self))

    @property
    def device_memory_size_v2(self) -> int:
        return self.scratch

    def get_device_memory_size_for_profile_v2(self, profile_index: int) -> int:
        return self.scratch // len(self.profiles) * (profile_index + 1)


class OldEngine(Engine):
    def create_execution_context_without_device_memory(self) -> Context:
        return self._made(OldContext(self))

    @property
    def device_memory_size(self) -> int:
        return self.scratch


class Runtime:
    module: Any
    engine_type: type[Engine] = NewEngine

    def __init__(self, logger: Logger) -> None:
        assert isinstance(logger, Logger)

    def deserialize_cuda_engine(self, serialized_engine: bytes) -> Engine | None:
        plan = pickle.loads(serialized_engine)
        if plan["version"] != self.module.__version__:
            return None
        return self.engine_type(self.module, plan)


class Builder:
    module: Any

    def __init__(self, logger: Logger) -> None:
        assert isinstance(logger, Logger)

    def create_network(self, flags: int = 0) -> Network:
        return Network(flags)

    def create_builder_config(self) -> Config:
        self.config = Config()
        return self.config

    def create_optimization_profile(self) -> Profile:
        return Profile()

    def build_serialized_network(self, network: Network, config: Config) -> bytes | None:
        self.module.builds.append((network, config))
        if self.module.refuses:
            return None
        for profile in config.profiles:
            assert set(profile.shapes) == {entry.name for entry in network.inputs}
        profiles = [profile.shapes for profile in config.profiles]
        plan = {"version": self.module.__version__, "graph": network.content, "profiles": profiles}
        return pickle.dumps(plan)


def fake_tensorrt(version: str = "11.4.0.106") -> Any:
    """The module. What tests may set or read: `broken`, `gain`, `refuses`, `scratch`, `builds`, `engines`."""
    old = version.startswith("8.")
    module = SimpleNamespace(
        __name__="tensorrt",
        __version__=version,
        broken=False,
        gain=1.0,
        refuses=False,
        scratch=4096,
        builds=[],
        engines=[],
        DataType=DataType,
        Logger=Logger,
        MemoryPoolType=MemoryPoolType,
        OnnxParser=Parser,
        TensorIOMode=TensorIOMode,
    )
    flags = {"EXPLICIT_BATCH": 0} if old else {"STRONGLY_TYPED": 1}
    module.NetworkDefinitionCreationFlag = enum.IntEnum("NetworkDefinitionCreationFlag", flags)
    module.BuilderFlag = enum.IntEnum("BuilderFlag", {"TF32": 0, "FP16": 1} if old else {"TF32": 0})
    if not old:
        module.ExecutionContextAllocationStrategy = Strategy
    engine = OldEngine if old else NewEngine
    module.Builder = type("Builder", (Builder,), {"module": module})
    module.Runtime = type("Runtime", (Runtime,), {"module": module, "engine_type": engine})
    return module

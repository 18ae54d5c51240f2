"""The flow's backend on the CPU, set on the model itself (`FlowModel.backend`); on CUDA see `wave_backends`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from inference.models.flow import FlowModel
from inference.models.velocity import VelocityNetwork
from inference.runtime.backend_choice import Soundness, sound_backend
from inference.runtime.backend_report import REPORT
from inference.runtime.backend_spare import gives_way
from inference.runtime.backends import ERROR_BOUND, VELOCITY_BACKENDS, check_backend
from inference.runtime.flow_solver import VelocityBackend, VelocityStep
from inference.runtime.fused_velocity import FusedVelocity
from inference.runtime.graph_files import default_cache_dir
from inference.runtime.padded_velocity import BoundVelocity

_PROBE_FRAMES = 60  # more than a chunk
_Given = tuple[Tensor | None, Tensor, Tensor, Tensor, Tensor]  # mask, mu, spks, cond, times


def install_velocity_backend(
    flow: FlowModel, name: str = "auto", *, threads: int = 1, cache_dir: Path | None = None
) -> str:
    """Give a loaded flow model its backend for whole segments; returns the name of what is used.

    `auto` is `fused`. Streams have caches that only torch computes with. What cannot be made or fails its self-test is
    replaced by torch with a warning. Raises `RequestError("unknown_backend")`.
    """
    check_backend(name, VELOCITY_BACKENDS, "flow")
    flow.backend = None
    REPORT.use("flow", "torch")
    name = "fused" if name == "auto" else name
    if name == "torch" or flow.encoder_proj.weight.device.type != "cpu":
        return "torch"
    network = flow.decoder.estimator
    backend = sound_backend(
        "flow",
        name,
        lambda: _make(network, name, threads, cache_dir),
        lambda made: velocity_soundness(network, made),
        ERROR_BOUND,
    )
    if backend is None:
        return "torch"
    flow.backend = GuardedVelocity(network, name, backend)
    return name


def _make(network: VelocityNetwork, name: str, threads: int, cache_dir: Path | None) -> VelocityBackend:
    if name == "fused":
        return FusedVelocity(network)
    if name != "onnxruntime":
        raise ValueError(f"{name} is for CUDA")
    from inference.runtime.onnx_backends import OnnxVelocity

    return BoundVelocity(network, OnnxVelocity.make(network, threads, cache_dir or default_cache_dir()))


class GuardedVelocity:
    """A `VelocityBackend`; once it has failed the network goes on, from the very step on that failed.

    What fails with the network too is the request's own fault and drops nothing, nor does too little memory.

    May be used from several threads.
    """

    def __init__(self, network: VelocityNetwork, name: str, backend: VelocityBackend) -> None:
        self.name = name
        self._network = network
        self._backend: VelocityBackend | None = backend
        self._dropping = threading.Lock()

    def bind(
        self, mask: Tensor | None, mu: Tensor, spks: Tensor, cond: Tensor, times: Tensor, *, streaming: bool
    ) -> VelocityStep:
        """See `VelocityNetwork.bind`."""
        given = (mask, mu, spks, cond, times)
        plain: list[VelocityStep] = []

        def own() -> VelocityStep:
            if not plain:
                plain.append(self._network.bind(*given, streaming=streaming))
            return plain[0]

        fast = self._bound(given, streaming, own)

        def step(x: Tensor, k: int) -> Tensor:
            if fast is not None and not plain:
                try:
                    return fast(x, k)
                except Exception as error:  # the libraries' errors share no base class
                    if not gives_way(error):
                        raise
                    found = own()(x, k)
                    self._drop(error)
                    return found
            return own()(x, k)

        return step

    def _bound(self, given: _Given, streaming: bool, own: Callable[[], VelocityStep]) -> VelocityStep | None:
        """None where the network can be bound (`own`) and the backend cannot."""
        backend = self._backend  # another thread may drop it meanwhile
        if backend is None:
            return None
        try:
            return backend.bind(*given, streaming=streaming)
        except Exception as error:
            if not gives_way(error):
                raise
            own()
            self._drop(error)
            return None

    def _drop(self, error: Exception) -> None:
        with self._dropping:
            dropped, self._backend = self._backend, None
        if dropped is not None:
            REPORT.drop("flow", self.name, "failed while serving", error)


@torch.inference_mode()
def velocity_soundness(network: VelocityNetwork, backend: VelocityBackend) -> Soundness:
    """One evaluation without and one with chunks beside the network's own, on fixed inputs."""
    bins = network.cfg.out_channels
    generator = torch.Generator().manual_seed(13)
    device = network.final_proj.weight.device
    x, mu, cond = (torch.randn(2, bins, _PROBE_FRAMES, generator=generator).to(device) for _ in range(3))
    speaker = torch.randn(2, bins, generator=generator).to(device)
    times = torch.tensor([0.3], device=device)
    found, expected = (
        torch.cat(
            [
                way.bind(None, mu, speaker, cond, times, streaming=streaming)(x, 0)
                for streaming in (False, True)
            ]
        )
        for way in (backend, network)
    )
    return Soundness.of(found, expected)

"""The flow's backend on the CPU, set on the model itself (`FlowModel.backend`); on CUDA see `wave_backends`."""

from __future__ import annotations

from pathlib import Path

import torch

from inference.models.flow import FlowModel
from inference.models.velocity import VelocityNetwork
from inference.runtime.backend_choice import Soundness
from inference.runtime.backend_report import REPORT
from inference.runtime.backends import ERROR_BOUND, VELOCITY_BACKENDS, check_backend
from inference.runtime.flow_solver import VelocityBackend
from inference.runtime.graph_files import default_cache_dir
from inference.runtime.padded_velocity import BoundVelocity

_PROBE_FRAMES = 60  # more than a chunk


def install_velocity_backend(
    flow: FlowModel, name: str = "auto", *, threads: int = 1, cache_dir: Path | None = None
) -> str:
    """Give a loaded flow model its backend for whole segments; returns the name of what is used.

    `auto` is torch: on one core ONNX Runtime took 0.8 (3 s, prompt included) to 1.07 times (18 s) torch's time with the
    bundled model, and streams have caches that only torch computes with. What cannot be made or fails its self-test is
    replaced by torch with a warning. Raises `RequestError("unknown_backend")`.
    """
    check_backend(name, VELOCITY_BACKENDS, "flow")
    flow.backend = None
    REPORT.use("flow", "torch")
    if name in ("auto", "torch") or flow.encoder_proj.weight.device.type != "cpu":
        return "torch"
    network = flow.decoder.estimator
    try:
        backend = _make(network, name, threads, cache_dir)
        sound = velocity_soundness(network, backend)
    except Exception as error:  # the libraries' errors share no base class
        REPORT.drop("flow", name, "cannot be used here", error)
        return "torch"
    if not sound.within(ERROR_BOUND):
        REPORT.drop("flow", name, f"is unsound here (error {sound.error:.3g})")
        return "torch"
    flow.backend = backend
    REPORT.use("flow", name)
    return name


def _make(network: VelocityNetwork, name: str, threads: int, cache_dir: Path | None) -> BoundVelocity:
    if name != "onnxruntime":
        raise ValueError(f"{name} is for CUDA")
    from inference.runtime.onnx_backends import OnnxVelocity

    backend = OnnxVelocity.make(network, threads, cache_dir or default_cache_dir())
    return BoundVelocity(
        network, backend, lambda error: REPORT.drop("flow", name, "failed while serving", error)
    )


@torch.inference_mode()
def velocity_soundness(network: VelocityNetwork, backend: VelocityBackend) -> Soundness:
    """One evaluation with chunks beside the network's own, on fixed inputs."""
    bins = network.cfg.out_channels
    generator = torch.Generator().manual_seed(13)
    device = network.final_proj.weight.device
    x, mu, cond = (torch.randn(2, bins, _PROBE_FRAMES, generator=generator).to(device) for _ in range(3))
    speaker = torch.randn(2, bins, generator=generator).to(device)
    times = torch.tensor([0.3], device=device)
    found, expected = (
        way.bind(None, mu, speaker, cond, times, streaming=True)(x, 0) for way in (backend, network)
    )
    return Soundness.of(found, expected)

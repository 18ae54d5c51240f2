"""`python -m inference build-engines`: TensorRT engines ahead of time, and the choice of the fastest backends.

On a GPU: builds what is missing for the vocoder and the flow, then tries every backend that is installed (self-test,
short measurement) and remembers the fastest. Without a GPU it only makes the CPU's choice.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from inference.types import RequestError

if TYPE_CHECKING:
    import torch

    from inference.models.config import ModelConfig
    from inference.models.flow import FlowModel
    from inference.models.vocoder import Vocoder
    from inference.runtime.backend_choice import Verdict
    from inference.runtime.packed_flow import PackedFlow
    from inference.settings import LaneSettings

_PARTS = ("vocoder", "flow")
_MEASURING_SECONDS = 180.0  # of a part, after which no further backend is tried


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Of the subcommand."""
    parser.add_argument(
        "--model-dir", type=Path, default=None, help="model folder (default: as the studio's)"
    )
    parser.add_argument("--device", default="auto", help="auto, cuda, cuda:N or cpu")
    parser.add_argument("--precision", default="auto", help="auto, fp32, fp16 or bf16")
    parser.add_argument("--max-batch", type=int, default=0, help="0: as the studio chooses for this device")
    parser.add_argument("--max-batch-frames", type=int, default=0, help="0: as the studio chooses")
    parser.add_argument("--beside", type=int, default=0, help=argparse.SUPPRESS)  # a worker's process
    parser.add_argument("--low-memory", action="store_true", help="for a studio with --low-memory")


def build_engines(args: argparse.Namespace) -> int:
    """Exit status 0: the fastest backends are known, with engines where they could be built."""
    import torch
    from filelock import FileLock

    from inference.loading import load_models
    from inference.model_choice import choose_model_dir
    from inference.runtime.graph_files import default_cache_dir
    from inference.runtime.kernel_plan import build_kernels

    for name in ("max_batch", "max_batch_frames"):
        value = getattr(args, name)
        if value < 0:
            raise RequestError(
                "bad_setting", f"{name} is {value}; the least is 0.", name=name, value=value, least=0
            )
    if args.beside:
        from inference.runtime.background_build import give_way

        give_way(args.beside)
    folder, sentence = choose_model_dir(args.model_dir)
    print(sentence, flush=True)
    models = load_models(folder, args.device, args.precision)
    if models.device.type != "cuda":
        _choose_on_cpu(models.vocoder)
        return 0
    settings = _settings(args, models.device, models.config, models.language_model.dtype != torch.float32)
    build_kernels(models.language_model, models.flow, models.vocoder, settings, print)
    models.language_model.to("cpu")  # not needed here, and the builder needs memory
    torch.cuda.empty_cache()
    cache = default_cache_dir()
    cache.mkdir(parents=True, exist_ok=True)
    # One after the other: the second process finds what the first one built.
    with FileLock(str(cache / "build.lock")), torch.cuda.stream(torch.cuda.Stream(models.device)):
        _build_and_choose(models.flow, models.vocoder, settings)
    return 0


def _choose_on_cpu(vocoder: Vocoder) -> None:
    """ONNX Runtime takes part once its graph is exported, which would hold up a worker's start."""
    from importlib.util import find_spec

    import torch

    from inference.runtime.backend_report import REPORT
    from inference.runtime.backends import install_spectrum_backend
    from inference.runtime.onnx_backends import OnnxSpectrum

    torch.set_num_threads(1)  # as a worker computes
    if find_spec("onnx") and find_spec("onnxruntime"):
        OnnxSpectrum.make(vocoder)
        install_spectrum_backend(vocoder)
    for part, name in sorted(REPORT.used().items()):
        print(f"{part}: {name} is used on the CPU.")


def _settings(
    args: argparse.Namespace, device: torch.device, config: ModelConfig, half: bool
) -> LaneSettings:
    from dataclasses import replace

    from inference.devices import free_memory
    from inference.settings import settings_for

    chosen = settings_for("cuda", config, free_memory(device, 0), half=half, low_memory=args.low_memory)
    return replace(
        chosen,
        max_batch=args.max_batch or chosen.max_batch,
        max_batch_frames=args.max_batch_frames or chosen.max_batch_frames,
        flow_cache_bytes=0,
    )


def _build_and_choose(flow: FlowModel, vocoder: Vocoder, settings: LaneSettings) -> None:
    import torch

    from inference.runtime.backend_plan import WaveBackends
    from inference.runtime.packed_flow import PackedFlow
    from inference.runtime.vocoder_choice import choose_packed_vocoder

    half = flow.encoder_proj.weight.dtype != torch.float32
    # As the lane makes them, with nothing but its own backends, which are candidates too.
    packed = PackedFlow(flow, settings.max_batch, graphs=settings.graphs)
    sounds = choose_packed_vocoder(
        vocoder, settings.max_batch, torch.float16 if half else torch.float32, graphs=settings.graphs
    )
    build_all(packed, vocoder, sounds.dtype, settings)
    backends = WaveBackends(settings)
    backends.hold(packed, sounds, vocoder)
    for part in _PARTS:
        found = backends.measure(part, _MEASURING_SECONDS, partial(_trying, part))
        backends.remember(part, found)
        for verdict in found.verdicts:
            print(f"  {_line(part, verdict)}", flush=True)
        print(f"{part}: {found.name} is used from now on.", flush=True)


def build_all(flow: PackedFlow, vocoder: Vocoder, precision: torch.dtype, settings: LaneSettings) -> None:
    """Engines that are missing; what TensorRT cannot build is said and left out. `precision`: the vocoder's."""
    from inference.runtime.shape_ranges import spectrum_ranges, velocity_ranges
    from inference.runtime.tensorrt_api import TensorRtError, load_tensorrt
    from inference.runtime.tensorrt_backends import tensorrt_spectrum, tensorrt_velocity

    try:
        api = load_tensorrt()
    except TensorRtError as error:
        print(f"No engines: {error}.", flush=True)
        return
    print(f"{api.name} {api.version}", flush=True)
    sizes = settings.max_batch, settings.max_batch_frames
    network = flow.flow.decoder.estimator
    dtype = network.final_proj.weight.dtype
    works: dict[str, Callable[[Progress], object]] = {
        "vocoder": lambda tell: tensorrt_spectrum(
            vocoder, precision, ranges=spectrum_ranges(*sizes), tell=tell
        ),
        "flow": lambda tell: tensorrt_velocity(
            network, dtype, ranges=velocity_ranges(*sizes, network.cfg.num_heads), tell=tell
        ),
    }
    for part, work in works.items():
        progress = Progress(part)
        try:
            work(progress)
            progress.end("ready")
        except Exception as error:  # the other one may succeed
            progress.end(f"not built ({type(error).__name__}: {error})")


class Progress:
    """One line on the terminal that is written over, plain lines elsewhere; at most two a second."""

    def __init__(self, part: str) -> None:
        self._part = part
        self._begun = time.monotonic()
        self._last = 0.0
        self._written_over = sys.stdout.isatty()

    def __call__(self, text: str) -> None:
        now = time.monotonic()
        if now - self._last < (0.5 if self._written_over else 10.0):
            return
        self._last = now
        line = f"{self._part}: {text}, {now - self._begun:.0f} s"
        print(
            f"\r\x1b[K{line}" if self._written_over else line,
            end="" if self._written_over else "\n",
            flush=True,
        )

    def end(self, text: str) -> None:
        start = "\r\x1b[K" if self._written_over else ""
        print(f"{start}{self._part}: {text}, {time.monotonic() - self._begun:.0f} s", flush=True)


def _trying(part: str, name: str) -> None:
    print(f"{part}: trying {name}", flush=True)


def _line(part: str, verdict: Verdict) -> str:
    if verdict.seconds is None:
        return f"{part} {verdict.name}: not used: {verdict.reason}"
    return f"{part} {verdict.name}: {1000 * verdict.seconds:.2f} ms, error {verdict.error:.2g}"

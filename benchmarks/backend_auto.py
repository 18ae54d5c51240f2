"""What the product's `auto` takes here, in the names of `benchmarks.backends`."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from inference.models.flow import FlowModel
from inference.models.vocoder import Vocoder
from inference.settings import LaneSettings

# The product's names that this benchmark has others for: its "torch" is what one would write without the lanes.
_NAMES = {
    ("cpu", "vocoder", "torch"): "torch-fp32",
    ("cpu", "flow", "torch"): "torch-fp32",
    ("cuda", "flow", "torch"): "packed",
    ("cuda", "flow", "compiled"): "packed-compiled",
}
_COMPILING = 20.0  # seconds that a last candidate may go beyond the limit by


def chosen_names(
    flow: FlowModel, vocoder: Vocoder, parts: Sequence[str], cache: Path | None, limit: float
) -> dict[str, str]:
    """Part → name. `limit`: seconds after which no further backend is tried."""
    device = flow.encoder_proj.weight.device.type
    own = _on_cuda if device == "cuda" else _on_cpu
    return {
        part: _NAMES.get((device, part, name), name) for part, name in own(flow, vocoder, parts, cache, limit)
    }


def _on_cpu(
    flow: FlowModel, vocoder: Vocoder, parts: Sequence[str], cache: Path | None, limit: float
) -> list[tuple[str, str]]:
    from inference.runtime.backends import install_spectrum_backend
    from inference.runtime.velocity_backends import install_velocity_backend

    names = {
        "vocoder": lambda: install_spectrum_backend(
            vocoder, threads=torch.get_num_threads(), cache_dir=cache
        ),
        "flow": lambda: install_velocity_backend(flow, cache_dir=cache),
    }
    return [(part, names[part]()) for part in parts]


def _on_cuda(
    flow: FlowModel, vocoder: Vocoder, parts: Sequence[str], cache: Path | None, limit: float
) -> list[tuple[str, str]]:
    """As `build-engines` chooses, engines apart, and not remembered."""
    from inference.runtime.backend_plan import WaveBackends
    from inference.runtime.packed_flow import PackedFlow
    from inference.runtime.vocoder_choice import choose_packed_vocoder

    settings = LaneSettings(max_batch=16, max_batch_frames=12288, graphs=True)
    half = copy.deepcopy(flow).half()
    found: list[tuple[str, str]] = []
    with torch.cuda.stream(torch.cuda.Stream(half.encoder_proj.weight.device)):
        packed = PackedFlow(half, settings.max_batch, graphs=True)
        sounds = choose_packed_vocoder(vocoder, settings.max_batch, torch.float16, graphs=True)
        backends = WaveBackends(settings, cache)
        backends.hold(packed, sounds, vocoder)
        for left, part in zip(range(len(parts), 0, -1), parts):
            begun = time.monotonic()
            choice = backends.measure(part, limit / left - _COMPILING)
            limit -= time.monotonic() - begun
            for verdict in choice.verdicts:
                print(f"  {part} {verdict}", flush=True)
            found.append((part, choice.name))
    return found

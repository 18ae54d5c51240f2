"""A model folder on a device in the precision that suits it; shared by the plain engine and the pool's workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from inference.checkpoint import Presets, load_folder
from inference.device_memory import release
from inference.frontend.lexicon import Lexicon
from inference.frontend.requests import RequestFrontEnd
from inference.frontend.tokenizer import TextTokenizer
from inference.frontend.voice import VoicePreparer
from inference.models.config import ModelConfig
from inference.models.flow import FlowModel
from inference.models.language_model import LanguageModel
from inference.models.vocoder import Vocoder
from inference.runtime.backends import VELOCITY_BACKENDS, check_backend, install_spectrum_backend
from inference.runtime.precision import choose_device, choose_dtype, with_precision
from inference.runtime.self_test import probe_flow, probe_language_model
from inference.runtime.velocity_backends import install_velocity_backend

ModuleT = TypeVar("ModuleT", bound=nn.Module)


@dataclass(frozen=True)
class LoadedModels:
    """All that speaks: the front end, and the networks on `device`."""

    device: torch.device
    config: ModelConfig
    front_end: RequestFrontEnd
    presets: Presets
    language_model: LanguageModel
    flow: FlowModel
    vocoder: Vocoder
    vocoder_backend: str = "torch"

    def backends(self) -> dict[str, str]:
        """Part of the model → what runs it, for people and metrics."""
        return {
            "device": str(self.device),
            "language_model": str(self.language_model.dtype).removeprefix("torch."),
            "flow": str(next(self.flow.parameters()).dtype).removeprefix("torch."),
            "vocoder": self.vocoder_backend,
        }


def load_models(
    model_dir: str | Path,
    device: str = "auto",
    precision: str = "auto",
    threads: int = 1,
    lexicon: Lexicon | None = None,
    vocoder_backend: str = "auto",
    flow_backend: str = "auto",
) -> LoadedModels:
    """Load a folder; half precision is given up for a module that fails its self-test.

    `threads`: CPU threads of the ONNX networks; `lexicon`: the user's readings of words; `vocoder_backend` and
    `flow_backend`: see `backends`.
    Raises `CheckpointError` for an unusable folder and `RequestError` for an unknown device, precision or
    backend.
    """
    check_backend(vocoder_backend)
    check_backend(flow_backend, VELOCITY_BACKENDS, "flow")
    chosen = choose_device(device)
    dtype = choose_dtype(precision, chosen)
    if chosen.type == "cuda":
        # The same request is the same sound: some of cuDNN's transposed convolutions add up in any order.
        torch.backends.cudnn.deterministic = True
    folder = load_folder(Path(model_dir))
    folder.vocoder.to(chosen)
    language_model = _placed(folder.language_model, chosen, dtype, probe_language_model, "language model")
    flow = _placed(folder.flow, chosen, dtype, probe_flow, "flow model")
    installed = install_spectrum_backend(folder.vocoder, vocoder_backend, threads=threads)
    install_velocity_backend(flow, flow_backend, threads=threads)
    voices = VoicePreparer(
        folder.speaker_encoder, folder.speech_tokenizer, threads=threads, device=str(chosen)
    )
    return LoadedModels(
        device=chosen,
        config=folder.config,
        front_end=RequestFrontEnd(TextTokenizer(folder.text_tokenizer), voices, folder.presets, lexicon),
        presets=folder.presets,
        language_model=language_model,
        flow=flow,
        vocoder=folder.vocoder,
        vocoder_backend=installed,
    )


def _placed(
    module: ModuleT,
    device: torch.device,
    dtype: torch.dtype,
    probe: Callable[[ModuleT], torch.Tensor],
    name: str,
) -> ModuleT:
    """The module on the device and in `dtype`, if that is sound; in float32 there is only one there at a time."""
    found = with_precision(module.to(device), dtype, probe, name)
    if found is not module:
        module.to("meta")
        release(device)  # else the next module's tensors come to lie all over what is free now, and hold it
    return found

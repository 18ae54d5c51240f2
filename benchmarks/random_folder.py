"""A model folder of any size with random weights, written in seconds: what is measured is speed, not sound."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import torch
from torch import Tensor, nn

from inference.checkpoint import SPEAKER_ENCODER, SPEECH_TOKENIZER
from inference.model_yaml import CONFIG_NAME, TOKENIZER_FOLDER, dump, dump_config_json
from inference.models.config import ModelConfig
from inference.models.flow import FlowModel
from inference.models.language_model import LanguageModel
from inference.models.vocoder import Vocoder

NANO = Path(__file__).resolve().parents[1] / "assets" / "nano"
_TOKENIZER_FILES = ("vocab.json", "merges.txt", "tokenizer_config.json")
# The nets that read the clip are borrowed: they are small beside the original's, which the reports must say.
BORROWED = "speech tokenizer, speaker encoder and text tokenizer are those of assets/nano"


def write_random_folder(
    path: Path, config: ModelConfig | None = None, *, device: str = "cpu", seed: int = 7
) -> Path:
    """Fill `path` with a folder that `load_folder` takes, by default of the public CosyVoice2-0.5B's sizes (1.3 GB).

    Weights are float16 files, drawn on `device`, in scales that keep activations in a natural range. Returns `path`.
    """
    config = config or ModelConfig()
    text_folder = path / TOKENIZER_FOLDER
    text_folder.mkdir(parents=True, exist_ok=True)
    for name in _TOKENIZER_FILES:
        shutil.copyfile(NANO / TOKENIZER_FOLDER / name, text_folder / name)
    (text_folder / "config.json").write_text(dump_config_json(config), encoding="utf-8")
    (path / CONFIG_NAME).write_text(dump(config), encoding="utf-8")
    for name in (SPEAKER_ENCODER, SPEECH_TOKENIZER):
        shutil.copyfile(NANO / name, path / name)
    with torch.device("meta"):
        modules = {
            "llm": LanguageModel(config.language_model),
            "flow": FlowModel(config.flow),
            "hift": Vocoder(config.vocoder),
        }
    generator = torch.Generator(device).manual_seed(seed)
    for stem, module in modules.items():
        torch.save(random_state(module, generator), path / f"{stem}.pt")
    return path


def random_state(module: nn.Module, generator: torch.Generator) -> dict[str, Tensor]:
    """Float16 values on the CPU for every tensor of a module on the meta device."""
    return {
        key: _values(key, tuple(value.shape), generator).half().cpu()
        for key, value in module.state_dict().items()
    }


def _values(key: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    noise = torch.randn(shape, generator=generator, device=generator.device)
    leaf = key.rpartition(".")[2]
    if leaf == "alpha":  # a slope, positive
        return torch.exp(0.3 * noise)
    if key == "f0_predictor.classifier.bias":  # pitches of speech
        return 150.0 + 10.0 * noise
    if leaf == "bias":
        return 0.1 * noise
    if len(shape) == 1:  # a norm's weight
        return 1.0 + 0.1 * noise
    if "embed" in key:
        return 0.5 * noise
    return noise / math.sqrt(math.prod(shape[1:]))

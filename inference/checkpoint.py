"""Recognises, checks and loads a CosyVoice2 model folder (SPEC 1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from inference.frontend.tokenizer import vocabulary_size
from inference.model_yaml import CONFIG_NAME, TOKENIZER_FOLDER, read_model_config
from inference.models.config import ModelConfig
from inference.models.flow import FlowModel
from inference.models.language_model import LanguageModel
from inference.models.vocoder import Vocoder, fold_weight_norm
from inference.tensor_files import (
    CURE,
    compare,
    expected_shapes,
    fill,
    find_tensors,
    missing_file,
    read_any,
    read_tensors,
)
from inference.types import CheckpointError

SPEAKER_ENCODER = "campplus.onnx"
SPEECH_TOKENIZER = "speech_tokenizer_v2.onnx"
PRESETS = "spk2info.pt"
_OTHER_MODELS = {"cosyvoice.yaml": "CosyVoice 1", "cosyvoice3.yaml": "CosyVoice 3"}
_TOKENIZER_FILES = ("vocab.json", "merges.txt")
_UNUSED_HEAD = "llm.model.lm_head.weight"  # the text head: tied to the embedding, never used for speech

ModuleT = TypeVar("ModuleT", bound=nn.Module)
Presets = dict[str, dict[str, Tensor]]


@dataclass(frozen=True)
class ModelFolder:
    """A loaded folder: modules in eval mode and float32, and the places of what others load."""

    path: Path
    config: ModelConfig
    language_model: LanguageModel
    flow: FlowModel
    vocoder: Vocoder
    speaker_encoder: Path  # ONNX
    speech_tokenizer: Path  # ONNX
    text_tokenizer: Path  # folder with vocab.json and merges.txt
    presets: Presets  # name → entries of spk2info.pt


def load_folder(path: str | Path, device: str = "cpu") -> ModelFolder:
    """Load a model folder onto `device`.

    Raises one `CheckpointError` that names the file and the cure: checkpoint_no_folder, checkpoint_not_cosyvoice2,
    checkpoint_missing_file, checkpoint_truncated, checkpoint_unreadable, checkpoint_lfs_pointer, checkpoint_bad_yaml,
    checkpoint_missing_value, checkpoint_bad_value, checkpoint_unsupported_value, checkpoint_missing_key,
    checkpoint_extra_key, checkpoint_wrong_shape, checkpoint_wrong_dtype, checkpoint_bad_presets,
    checkpoint_vocabulary, and as `vocabulary_size`.
    """
    folder = recognise(Path(path))
    config = read_model_config(folder)
    for name in _other_files():
        if not (folder / name).is_file():
            raise missing_file(folder, name)
    language_model = _on_meta(lambda: LanguageModel(config.language_model))
    flow = _on_meta(lambda: FlowModel(config.flow))
    vocoder = _on_meta(lambda: Vocoder(config.vocoder))
    check_vocabulary(folder, config)
    for stem, module in (("llm", language_model), ("flow", flow), ("hift", vocoder)):
        file = find_tensors(folder, stem)
        fill(module, file.name, module_state(stem, file))
        module.to(device)
    return ModelFolder(
        path=folder,
        config=config,
        language_model=language_model,
        flow=flow,
        vocoder=vocoder,
        speaker_encoder=folder / SPEAKER_ENCODER,
        speech_tokenizer=folder / SPEECH_TOKENIZER,
        text_tokenizer=folder / TOKENIZER_FOLDER,
        presets=read_presets(folder),
    )


def recognise(folder: Path) -> Path:
    """`folder` itself if it looks like a CosyVoice2 model.

    Raises `CheckpointError("checkpoint_no_folder")` or `CheckpointError("checkpoint_not_cosyvoice2")`.
    """
    if not folder.is_dir():
        raise CheckpointError(
            "checkpoint_no_folder",
            f"There is no model folder {folder}; name an existing one, or fetch one with "
            "python -m inference download.",
            folder=str(folder),
        )
    if (folder / CONFIG_NAME).is_file():
        return folder
    for name, model in _OTHER_MODELS.items():
        if (folder / name).is_file():
            raise CheckpointError(
                "checkpoint_not_cosyvoice2",
                f"{folder} holds a {model} model; this program runs CosyVoice 2 models ({CONFIG_NAME}).",
                folder=str(folder),
                model=model,
            )
    raise CheckpointError(
        "checkpoint_not_cosyvoice2",
        f"{folder} is not a CosyVoice 2 model folder: it has no {CONFIG_NAME}. Choose the folder that holds "
        "that file, or fetch the model with python -m inference download.",
        folder=str(folder),
        model="",
    )


def module_state(stem: str, file: Path) -> dict[str, Tensor]:
    """Tensors of "llm", "flow" or "hift" under the names of our modules. Raises as `load_folder`."""
    state = read_tensors(file)
    if stem == "llm":
        state.pop(_UNUSED_HEAD, None)
    if stem != "hift":
        return state
    try:
        return fold_weight_norm(state)
    except RuntimeError as error:  # a gain whose shape does not fit its direction
        raise CheckpointError(
            "checkpoint_wrong_shape",
            f"{file.name} holds a weight-norm gain that does not fit its direction; {CURE}.",
            file=file.name,
        ) from error


def check_vocabulary(folder: Path, config: ModelConfig) -> None:
    """Raise `CheckpointError("checkpoint_vocabulary")` when a text token would have no embedding."""
    tokens, rows = vocabulary_size(folder / TOKENIZER_FOLDER), config.language_model.vocab_size
    if tokens > rows:
        raise CheckpointError(
            "checkpoint_vocabulary",
            f"{TOKENIZER_FOLDER}/vocab.json has {tokens} text tokens with the special ones, but the language model "
            f"has embeddings for {rows}: they belong to different models; {CURE}.",
            file=f"{TOKENIZER_FOLDER}/vocab.json",
            tokens=tokens,
            rows=rows,
        )


def read_presets(folder: Path) -> Presets:
    """Speakers of `spk2info.pt` (SPEC 1.4); none without that file. Raises `CheckpointError`."""
    path = folder / PRESETS
    if not path.is_file():
        return {}
    content = read_any(path)
    if not isinstance(content, dict):
        raise _bad_presets("it is no table of speakers")
    presets: Presets = {}
    for name, entry in content.items():
        if not isinstance(entry, dict):
            raise _bad_presets(f"the entry of {name!r} is no table")
        tensors = {str(key): value for key, value in entry.items() if isinstance(value, Tensor)}
        for key, value in tensors.items():
            if value.is_floating_point() and not bool(torch.isfinite(value).all()):
                raise _bad_presets(f"{key} of {name!r} is not finite")
        for key in ("embedding", "llm_embedding", "flow_embedding"):
            if key in tensors and tensors[key].numel() != 192:
                raise _bad_presets(f"{key} of {name!r} does not have 192 numbers")
        presets[str(name)] = tensors
    return presets


def _bad_presets(why: str) -> CheckpointError:
    return CheckpointError(
        "checkpoint_bad_presets",
        f"{PRESETS} cannot be used: {why}; remove or replace the file.",
        file=PRESETS,
    )


def check_folder(path: str | Path) -> list[CheckpointError]:
    """Everything wrong with a folder, in the order of its files; empty when it can be loaded.

    Reads every tensor, so that values that are not finite are found too ("checkpoint_not_finite").
    """
    try:
        folder = recognise(Path(path))
        config = read_model_config(folder)
    except CheckpointError as error:
        return [error]
    return list(_findings(folder, config))


def _findings(folder: Path, config: ModelConfig) -> Iterator[CheckpointError]:
    for name in _other_files():
        if not (folder / name).is_file():
            yield missing_file(folder, name)
    if all((folder / TOKENIZER_FOLDER / name).is_file() for name in _TOKENIZER_FILES):
        try:
            check_vocabulary(folder, config)
        except CheckpointError as error:
            yield error
    modules: dict[str, Callable[[], nn.Module]] = {
        "llm": lambda: LanguageModel(config.language_model),
        "flow": lambda: FlowModel(config.flow),
        "hift": lambda: Vocoder(config.vocoder),
    }
    for stem, build in modules.items():
        try:
            file = find_tensors(folder, stem)
            state = module_state(stem, file)
        except CheckpointError as error:
            yield error
            continue
        yield from compare(file.name, expected_shapes(_on_meta(build)), state)
        yield from _not_finite(file, state)
    try:
        read_presets(folder)
    except CheckpointError as error:
        yield error


def _not_finite(file: Path, state: dict[str, Tensor]) -> Iterator[CheckpointError]:
    for key, value in state.items():
        if not bool(torch.isfinite(value).all()):
            yield CheckpointError(
                "checkpoint_not_finite",
                f"{file.name} holds values in {key} that are not numbers; {CURE}.",
                file=file.name,
                key=key,
            )
            return


def describe_folder(path: str | Path) -> list[str]:
    """What a usable folder holds, one line a fact. Raises as `load_folder`."""
    folder = recognise(Path(path))
    config = read_model_config(folder)
    lm, flow = config.language_model, config.flow
    lines = [
        f"folder: {folder}",
        f"language model: {lm.num_layers} layers of width {lm.hidden_size}, {lm.vocab_size} text tokens",
        f"flow: encoder of width {flow.encoder.output_size}, velocity network of {flow.estimator.channels} channels",
        f"vocoder: {config.vocoder.base_channels} channels, {config.sample_rate} Hz",
    ]
    for stem in ("llm", "flow", "hift"):
        file = find_tensors(folder, stem)
        count = sum(value.numel() for value in module_state(stem, file).values())
        lines.append(f"{file.name}: {count / 1e6:.1f} M parameters, {file.stat().st_size / 1e6:.1f} MB")
    names = ", ".join(sorted(read_presets(folder))) or "none"
    return [*lines, f"preset speakers: {names}"]


def _other_files() -> tuple[str, ...]:
    return (SPEAKER_ENCODER, SPEECH_TOKENIZER, *(f"{TOKENIZER_FOLDER}/{name}" for name in _TOKENIZER_FILES))


def _on_meta(build: Callable[[], ModuleT]) -> ModuleT:
    """A module without memory: its tensors come from the file, so initialising them would be lost work."""
    with torch.device("meta"), _NothingDrawn():
        return build()


class _NothingDrawn(TorchFunctionMode):
    """Random values are left out: to draw them for "meta", torch imports its compiler, which takes a second."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if getattr(func, "__module__", "") == nn.init.__name__:
            return given["tensor"] if "tensor" in given else args[0]
        return args[0] if func in (Tensor.normal_, Tensor.uniform_) else func(*args, **given)

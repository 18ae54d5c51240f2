"""Writes complete model folders of the real layout with random weights: small, quick, and the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from inference.model_yaml import dump, dump_config_json
from inference.models.config import (
    EstimatorConfig,
    FlowConfig,
    FlowEncoderConfig,
    LanguageModelConfig,
    ModelConfig,
    VocoderConfig,
)
from inference.models.flow import FlowModel
from inference.models.language_model import LanguageModel
from inference.models.vocoder import Vocoder
from tests.random_weights import random_tensor, with_weight_norm
from training.text_tokenizer import byte_symbols, english_merges, write_files

if TYPE_CHECKING:
    from onnx import NodeProto, TensorProto

# The sizes of golden/tiny.
TINY_CONFIG = ModelConfig(
    language_model=LanguageModelConfig(
        vocab_size=1024, hidden_size=64, intermediate_size=128, num_layers=2, num_heads=4, num_kv_heads=2
    ),
    flow=FlowConfig(
        input_size=64,
        encoder=FlowEncoderConfig(
            input_size=64, output_size=64, attention_heads=4, linear_units=128, num_blocks=2, num_up_blocks=4
        ),
        estimator=EstimatorConfig(
            channels=32, attention_head_dim=16, num_heads=2, n_blocks=1, num_mid_blocks=2
        ),
    ),
    vocoder=VocoderConfig(base_channels=64, f0_channels=32),
)
SENTENCES = ["the quick brown fox jumps over the lazy dog", "hello world, this is a test of the voice"] * 4
MERGES = 64
# With it a random language model ends its speech after some dozen tokens, not at the length limit.
END_OF_SPEECH_BIAS = 5.0


def write_random_folder(path: Path, config: ModelConfig = TINY_CONFIG, seed: int = 7) -> Path:
    """Fill `path` with a folder that `load_folder` takes; returns it."""
    text_folder = path / "CosyVoice-BlankEN"
    write_files(text_folder, english_merges(SENTENCES, MERGES), byte_symbols())
    (text_folder / "config.json").write_text(dump_config_json(config), encoding="utf-8")
    (path / "cosyvoice2.yaml").write_text(dump(config), encoding="utf-8")
    write_weights(path, config, seed)
    write_speaker_encoder(path / "campplus.onnx", seed)
    write_speech_tokenizer(path / "speech_tokenizer_v2.onnx", config.flow.vocab_size)
    torch.save({"someone": {"embedding": random_tensor("someone", (1, 192), seed)}}, path / "spk2info.pt")
    return path


def write_weights(path: Path, config: ModelConfig, seed: int) -> None:
    """llm.pt, flow.pt and hift.pt with the keys, ties and weight norms of the public files."""
    with torch.device("meta"):
        modules = {
            "llm": LanguageModel(config.language_model),
            "flow": FlowModel(config.flow),
            "hift": Vocoder(config.vocoder),
        }
    states = {stem: random_state(module, seed) for stem, module in modules.items()}
    states["llm"]["llm.model.lm_head.weight"] = states["llm"]["llm.model.model.embed_tokens.weight"]
    states["llm"]["llm_decoder.bias"][config.language_model.end_of_speech] += END_OF_SPEECH_BIAS
    states["hift"] = with_weight_norm(states["hift"], normalised_layers(modules["hift"]))
    for stem, state in states.items():
        torch.save(state, path / f"{stem}.pt")


def random_state(module: nn.Module, seed: int) -> dict[str, Tensor]:
    """Values for every tensor of a module that may lie on the meta device."""
    return {key: random_tensor(key, tuple(value.shape), seed) for key, value in module.state_dict().items()}


def normalised_layers(vocoder: nn.Module) -> list[str]:
    """Layers that public vocoder checkpoints hold with weight norm: all convolutions but those of the source."""
    convolutions = (nn.Conv1d, nn.ConvTranspose1d)
    names = [name for name, layer in vocoder.named_modules() if isinstance(layer, convolutions)]
    return [name for name in names if not name.startswith("source_downs")]


def write_speaker_encoder(path: Path, seed: int) -> None:
    """(1, N, 80) → (1, 192): the mean frame through a random matrix."""
    from onnx import helper, numpy_helper

    weight = random_tensor("speaker", (80, 192), seed).numpy()
    nodes = [
        helper.make_node("ReduceMean", ["input"], ["mean"], axes=[1], keepdims=0),
        helper.make_node(
            "Abs", ["input"], ["size"]
        ),  # the mean alone is near 0 after the front end took it off
        helper.make_node("ReduceMean", ["size"], ["spread"], axes=[1], keepdims=0),
        helper.make_node("Add", ["mean", "spread"], ["both"]),
        helper.make_node("MatMul", ["both", "weight"], ["output"]),
    ]
    _write_onnx(
        path, nodes, {"input": ("FLOAT", [1, "frames", 80])}, ("output", "FLOAT", [1, 192]),
        [numpy_helper.from_array(weight, "weight")],
    )  # fmt: skip


def write_speech_tokenizer(path: Path, codes: int) -> None:
    """(1, 128, N) and (1,) → (1, ceil(N / 4)): every fourth frame's mean, scaled and wrapped into the codebook."""
    from onnx import helper, numpy_helper

    constants = {
        "start": np.array([0]), "end": np.array([2**31 - 1]), "axis": np.array([2]), "step": np.array([4]),
        "scale": np.array(50_000, dtype=np.float32), "codes": np.array(codes, dtype=np.int32),
    }  # fmt: skip
    nodes = [
        helper.make_node("Slice", ["feats", "start", "end", "axis", "step"], ["kept"]),
        helper.make_node("ReduceMean", ["kept"], ["mean"], axes=[1], keepdims=0),
        helper.make_node("Mul", ["mean", "scale"], ["large"]),
        helper.make_node("Cast", ["large"], ["whole"], to=6),
        helper.make_node("Mod", ["whole", "codes"], ["indices"]),
    ]
    inputs = {"feats": ("FLOAT", [1, 128, "frames"]), "feats_length": ("INT32", [1])}
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    _write_onnx(path, nodes, inputs, ("indices", "INT32", [1, "tokens"]), tensors)


def _write_onnx(
    path: Path,
    nodes: list[NodeProto],
    inputs: dict[str, tuple[str, list[int | str]]],
    output: tuple[str, str, list[int | str]],
    tensors: list[TensorProto],
) -> None:
    import onnx
    from onnx import TensorProto, helper

    def describe(name: str, kind: str, shape: list[int | str]) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, getattr(TensorProto, kind), shape)

    graph = helper.make_graph(
        nodes,
        path.stem,
        [describe(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [describe(*output)],
        tensors,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    model.ir_version = 8  # old enough for every onnxruntime in use
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())

"""`cosyvoice2.yaml` and the language model's `config.json` → `ModelConfig`, and back (SPEC 1.5)."""

from __future__ import annotations

import json
import reprlib
from pathlib import Path
from typing import Any

from inference.models.config import (
    EstimatorConfig,
    FlowConfig,
    FlowEncoderConfig,
    LanguageModelConfig,
    ModelConfig,
    SamplingConfig,
    VocoderConfig,
)
from inference.restricted_yaml import Document, read_text, read_yaml
from inference.types import CheckpointError
from inference.yaml_template import render

CONFIG_NAME = "cosyvoice2.yaml"
TOKENIZER_FOLDER = "CosyVoice-BlankEN"

# What this code computes in one way only. A folder that asks for another way must not run and sound wrong.
_ONLY_WAY: dict[str, Any] = {
    "sample_rate": 24000,
    "spk_embed_dim": 192,
    "flow.output_size": 80,
    "flow.encoder.normalize_before": True,
    "flow.encoder.input_layer": "linear",
    "flow.encoder.pos_enc_layer_type": "rel_pos_espnet",
    "flow.encoder.selfattention_layer_type": "rel_selfattn",
    "flow.encoder.use_cnn_module": False,
    "flow.encoder.macaron_style": False,
    "flow.decoder.n_spks": 1,
    "flow.decoder.spk_emb_dim": 80,
    "flow.decoder.in_channels": 240,
    "flow.decoder.estimator.in_channels": 320,
    "flow.decoder.estimator.out_channels": 80,
    "flow.decoder.estimator.act_fn": "gelu",
    "hift.in_channels": 80,
    "hift.sampling_rate": 24000,
    "hift.f0_predictor.in_channels": 80,
    "hift.f0_predictor.num_class": 1,
    "feat_extractor.n_fft": 1920,
    "feat_extractor.num_mels": 80,
    "feat_extractor.sampling_rate": 24000,
    "feat_extractor.hop_size": 480,
    "feat_extractor.win_size": 1920,
    "feat_extractor.fmin": 0,
    "feat_extractor.fmax": 8000,
    "feat_extractor.center": False,
}
_ONLY_QWEN: dict[str, Any] = {"hidden_act": "silu", "use_sliding_window": False}


def read_model_config(folder: Path) -> ModelConfig:
    """Sizes of the model in `folder`.

    Raises `CheckpointError`: "checkpoint_missing_file", "checkpoint_bad_yaml", "checkpoint_missing_value",
    "checkpoint_bad_value", "checkpoint_unsupported_value".
    """
    return model_config(read_yaml(folder / CONFIG_NAME), read_json(folder / TOKENIZER_FOLDER / "config.json"))


def read_json(path: Path) -> Document:
    """A JSON file as a document. Raises as `read_model_config`."""
    file = f"{path.parent.name}/{path.name}"
    try:
        tree = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            "checkpoint_bad_yaml", f"{file} is not valid JSON; fetch the file again.", file=file, line=0
        ) from error
    if not isinstance(tree, dict):
        raise CheckpointError(
            "checkpoint_bad_yaml", f"{file} holds no settings; fetch the file again.", file=file, line=0
        )
    return Document(file, tree)


def model_config(document: Document, qwen: Document) -> ModelConfig:
    """Build the sizes from both files and hold them against each other. Raises as `read_model_config`."""
    _refuse_other_ways(document, _ONLY_WAY)
    _refuse_other_ways(qwen, _ONLY_QWEN)
    config = ModelConfig(
        sample_rate=document.integer("sample_rate"),
        token_rate=document.integer("token_frame_rate"),
        language_model=_language_model(document, qwen),
        flow=_flow(document),
        vocoder=_vocoder(document),
    )
    _check_agreement(config, document, qwen)
    return config


def dump(config: ModelConfig) -> str:
    """`cosyvoice2.yaml` for a model of these sizes; `read_model_config` gives the same sizes back."""
    return render(config)


def dump_config_json(config: ModelConfig) -> str:
    """`CosyVoice-BlankEN/config.json` for a model of these sizes."""
    lm = config.language_model
    values = {
        "architectures": ["Qwen2ForCausalLM"],
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "hidden_size": lm.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": lm.intermediate_size,
        "max_position_embeddings": 32768,
        "max_window_layers": lm.num_layers,
        "model_type": "qwen2",
        "num_attention_heads": lm.num_heads,
        "num_hidden_layers": lm.num_layers,
        "num_key_value_heads": lm.num_kv_heads,
        "rms_norm_eps": lm.rms_norm_eps,
        "rope_theta": lm.rope_theta,
        "sliding_window": 32768,
        "tie_word_embeddings": True,
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": lm.vocab_size,
    }
    return json.dumps(values, indent=2) + "\n"


def _refuse_other_ways(document: Document, only: dict[str, Any]) -> None:
    for path, expected in only.items():
        found = document.get(path, expected)
        if found != expected:
            raise CheckpointError(
                "checkpoint_unsupported_value",
                f"{document.file} says {path} = {reprlib.repr(found)}; only {expected!r} is supported.",
                file=document.file,
                key=path,
                value=reprlib.repr(found),
                expected=str(expected),
            )


def _language_model(document: Document, qwen: Document) -> LanguageModelConfig:
    mix = document.integers("llm.mix_ratio", (5, 15))
    if len(mix) != 2:
        raise document.bad_value("llm.mix_ratio", list(mix), "two numbers")
    theta = "rope_theta" if qwen.has("rope_theta") else "rope_parameters.rope_theta"
    return LanguageModelConfig(
        vocab_size=qwen.integer("vocab_size"),
        hidden_size=qwen.integer("hidden_size"),
        intermediate_size=qwen.integer("intermediate_size"),
        num_layers=qwen.integer("num_hidden_layers", high=1000),
        num_heads=qwen.integer("num_attention_heads"),
        num_kv_heads=qwen.integer("num_key_value_heads"),
        rms_norm_eps=qwen.number("rms_norm_eps"),
        rope_theta=qwen.number(theta, low=1.0),
        speech_token_size=document.integer("llm.speech_token_size"),
        mix_ratio=(mix[0], mix[1]),
        sampling=SamplingConfig(
            top_p=document.number("llm.sampling.top_p", high=1.0),
            top_k=document.integer("llm.sampling.top_k"),
            win_size=document.integer("llm.sampling.win_size", high=10_000),
            tau_r=document.number("llm.sampling.tau_r", high=1.0),
        ),
    )


def _flow(document: Document) -> FlowConfig:
    solver = "flow.decoder.cfm_params"
    if document.has(solver + ".content"):
        solver += ".content"
    _refuse_other_ways(document, {solver + ".solver": "euler", solver + ".t_scheduler": "cosine"})
    return FlowConfig(
        vocab_size=document.integer("flow.vocab_size"),
        input_size=document.integer("flow.input_size"),
        mel_bins=document.integer("flow.output_size"),
        speaker_dim=document.integer("flow.spk_embed_dim"),
        pre_lookahead=document.integer("flow.pre_lookahead_len", high=100),
        token_mel_ratio=document.integer("flow.token_mel_ratio", high=100),
        cfg_rate=document.number(solver + ".inference_cfg_rate", high=100.0),
        n_timesteps=document.integer(solver + ".n_timesteps", 10, high=1000),  # ours: not in the public file
        encoder=_encoder(document),
        estimator=_estimator(document),
    )


def _encoder(document: Document) -> FlowEncoderConfig:
    at = "flow.encoder."
    return FlowEncoderConfig(
        input_size=document.integer(at + "input_size"),
        output_size=document.integer(at + "output_size"),
        attention_heads=document.integer(at + "attention_heads"),
        linear_units=document.integer(at + "linear_units"),
        num_blocks=document.integer(at + "num_blocks", high=1000),
        num_up_blocks=document.integer(at + "num_up_blocks", 4, high=1000),  # ours: not in the public file
        chunk_tokens=document.integer(at + "static_chunk_size"),
    )


def _estimator(document: Document) -> EstimatorConfig:
    at = "flow.decoder.estimator."
    channels = document.integers(at + "channels")
    if len(channels) != 1:
        raise document.bad_value(at + "channels", list(channels), "a list of one number")
    return EstimatorConfig(
        in_channels=document.integer(at + "in_channels"),
        out_channels=document.integer(at + "out_channels"),
        channels=channels[0],
        attention_head_dim=document.integer(at + "attention_head_dim"),
        num_heads=document.integer(at + "num_heads"),
        n_blocks=document.integer(at + "n_blocks", high=1000),
        num_mid_blocks=document.integer(at + "num_mid_blocks", high=1000),
        chunk_frames=document.integer(at + "static_chunk_size"),
    )


def _vocoder(document: Document) -> VocoderConfig:
    at = "hift."
    return VocoderConfig(
        mel_bins=document.integer(at + "in_channels"),
        base_channels=document.integer(at + "base_channels"),
        nb_harmonics=document.integer(at + "nb_harmonics", high=1000),
        sample_rate=document.integer(at + "sampling_rate"),
        nsf_alpha=document.number(at + "nsf_alpha"),
        nsf_sigma=document.number(at + "nsf_sigma"),
        nsf_voiced_threshold=document.number(at + "nsf_voiced_threshold"),
        upsample_rates=document.integers(at + "upsample_rates"),
        upsample_kernel_sizes=document.integers(at + "upsample_kernel_sizes"),
        istft_n_fft=document.integer(at + "istft_params.n_fft"),
        istft_hop=document.integer(at + "istft_params.hop_len"),
        resblock_kernel_sizes=document.integers(at + "resblock_kernel_sizes"),
        resblock_dilation_sizes=document.integer_lists(at + "resblock_dilation_sizes"),
        source_resblock_kernel_sizes=document.integers(at + "source_resblock_kernel_sizes"),
        source_resblock_dilation_sizes=document.integer_lists(at + "source_resblock_dilation_sizes"),
        lrelu_slope=document.number(at + "lrelu_slope"),
        audio_limit=document.number(at + "audio_limit"),
        f0_channels=document.integer(at + "f0_predictor.cond_channels"),
    )


def _check_agreement(config: ModelConfig, document: Document, qwen: Document) -> None:
    """Values that must fit each other, told with the key that is out of line."""
    lm, flow, vocoder = config.language_model, config.flow, config.vocoder
    width = document.integer("llm.llm_input_size")
    if width != lm.hidden_size:
        raise document.bad_value("llm.llm_input_size", width, f"{lm.hidden_size}, as {qwen.file} says,")
    if (
        lm.hidden_size % lm.num_heads
        or (lm.hidden_size // lm.num_heads) % 2
        or lm.num_heads % lm.num_kv_heads
    ):
        raise qwen.bad_value("num_attention_heads", lm.num_heads, "a divisor of hidden_size")
    if flow.vocab_size != lm.speech_token_size:
        raise document.bad_value(
            "flow.vocab_size", flow.vocab_size, f"llm.speech_token_size {lm.speech_token_size}"
        )
    if flow.encoder.input_size != flow.input_size:
        raise document.bad_value("flow.encoder.input_size", flow.encoder.input_size, f"{flow.input_size}")
    if flow.encoder.output_size % flow.encoder.attention_heads:
        raise document.bad_value(
            "flow.encoder.attention_heads", flow.encoder.attention_heads, "a divisor of the width"
        )
    if flow.estimator.chunk_frames != flow.encoder.chunk_tokens * flow.token_mel_ratio:
        raise document.bad_value(
            "flow.decoder.estimator.static_chunk_size",
            flow.estimator.chunk_frames,
            "chunk_size * token_mel_ratio",
        )
    if vocoder.hop * config.token_rate * flow.token_mel_ratio != config.sample_rate:
        raise document.bad_value(
            "hift.upsample_rates", list(vocoder.upsample_rates), "rates that make 480 samples"
        )
    _check_lengths(vocoder, document)


def _check_lengths(vocoder: VocoderConfig, document: Document) -> None:
    stages = len(vocoder.upsample_rates)
    expected = {
        "upsample_kernel_sizes": (len(vocoder.upsample_kernel_sizes), stages),
        "source_resblock_kernel_sizes": (len(vocoder.source_resblock_kernel_sizes), stages),
        "source_resblock_dilation_sizes": (len(vocoder.source_resblock_dilation_sizes), stages),
        "resblock_dilation_sizes": (len(vocoder.resblock_dilation_sizes), len(vocoder.resblock_kernel_sizes)),
    }
    for key, (found, wanted) in expected.items():
        if found != wanted:
            raise document.bad_value("hift." + key, f"{found} entries", f"a list of {wanted}")
    if vocoder.base_channels % 2**stages:
        raise document.bad_value("hift.base_channels", vocoder.base_channels, f"a multiple of {2**stages}")

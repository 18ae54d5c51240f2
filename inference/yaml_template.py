"""Writes `cosyvoice2.yaml` for given sizes, in the layout of the public file (SPEC 1.5).

The tags name the classes that other programs for this layout look for; nothing here imports or executes them.
"""

from __future__ import annotations

from collections.abc import Iterable

from inference.models.config import FlowConfig, LanguageModelConfig, ModelConfig, VocoderConfig

_MEL = """\
feat_extractor: !name:matcha.utils.audio.mel_spectrogram
    n_fft: 1920
    num_mels: 80
    sampling_rate: !ref <sample_rate>
    hop_size: 480
    win_size: 1920
    fmin: 0
    fmax: 8000
    center: False
"""

_TOKENIZER = """\
get_tokenizer: !name:cosyvoice.tokenizer.tokenizer.get_qwen_tokenizer
    token_path: !ref <qwen_pretrain_path>
    skip_special_tokens: True
allowed_special: 'all'
"""


def render(config: ModelConfig) -> str:
    """The text of the file."""
    parts = [_head(config), _language_model(config.language_model), _flow(config.flow)]
    parts += [_vocoder(config.vocoder), _TOKENIZER, _MEL]
    return "\n".join(parts)


def _head(config: ModelConfig) -> str:
    lm, flow = config.language_model, config.flow
    return f"""\
sample_rate: {config.sample_rate}
llm_input_size: {lm.hidden_size}
llm_output_size: {lm.hidden_size}
spk_embed_dim: {flow.speaker_dim}
qwen_pretrain_path: ''
token_frame_rate: {config.token_rate}
token_mel_ratio: {flow.token_mel_ratio}

chunk_size: {flow.encoder.chunk_tokens}
num_decoding_left_chunks: -1
"""


def _language_model(lm: LanguageModelConfig) -> str:
    return f"""\
llm: !new:cosyvoice.llm.llm.Qwen2LM
    llm_input_size: !ref <llm_input_size>
    llm_output_size: !ref <llm_output_size>
    speech_token_size: {lm.speech_token_size}
    length_normalized_loss: True
    lsm_weight: 0
    mix_ratio: {_numbers(lm.mix_ratio)}
    llm: !new:cosyvoice.llm.llm.Qwen2Encoder
        pretrain_path: !ref <qwen_pretrain_path>
    sampling: !name:cosyvoice.utils.common.ras_sampling
        top_p: {lm.sampling.top_p}
        top_k: {lm.sampling.top_k}
        win_size: {lm.sampling.win_size}
        tau_r: {lm.sampling.tau_r}
"""


def _flow(flow: FlowConfig) -> str:
    encoder, estimator = flow.encoder, flow.estimator
    # Keys of ours, written only where a value differs from what the public file implies by leaving them out.
    up_blocks = f"\n        num_up_blocks: {encoder.num_up_blocks}" if encoder.num_up_blocks != 4 else ""
    steps = f"\n                n_timesteps: {flow.n_timesteps}" if flow.n_timesteps != 10 else ""
    return f"""\
flow: !new:cosyvoice.flow.flow.CausalMaskedDiffWithXvec
    input_size: {flow.input_size}
    output_size: {flow.mel_bins}
    spk_embed_dim: !ref <spk_embed_dim>
    output_type: 'mel'
    vocab_size: {flow.vocab_size}
    input_frame_rate: !ref <token_frame_rate>
    only_mask_loss: True
    token_mel_ratio: !ref <token_mel_ratio>
    pre_lookahead_len: {flow.pre_lookahead}
    encoder: !new:cosyvoice.transformer.upsample_encoder.UpsampleConformerEncoder
        output_size: {encoder.output_size}
        attention_heads: {encoder.attention_heads}
        linear_units: {encoder.linear_units}
        num_blocks: {encoder.num_blocks}{up_blocks}
        dropout_rate: 0.1
        positional_dropout_rate: 0.1
        attention_dropout_rate: 0.1
        normalize_before: True
        input_layer: 'linear'
        pos_enc_layer_type: 'rel_pos_espnet'
        selfattention_layer_type: 'rel_selfattn'
        input_size: {encoder.input_size}
        use_cnn_module: False
        macaron_style: False
        static_chunk_size: !ref <chunk_size>
    decoder: !new:cosyvoice.flow.flow_matching.CausalConditionalCFM
        in_channels: 240
        n_spks: 1
        spk_emb_dim: 80
        cfm_params: !new:omegaconf.DictConfig
            content:
                sigma_min: 1e-06
                solver: 'euler'
                t_scheduler: 'cosine'
                training_cfg_rate: 0.2
                inference_cfg_rate: {flow.cfg_rate}{steps}
                reg_loss_type: 'l1'
        estimator: !new:cosyvoice.flow.decoder.CausalConditionalDecoder
            in_channels: {estimator.in_channels}
            out_channels: {estimator.out_channels}
            channels: [{estimator.channels}]
            dropout: 0.0
            attention_head_dim: {estimator.attention_head_dim}
            n_blocks: {estimator.n_blocks}
            num_mid_blocks: {estimator.num_mid_blocks}
            num_heads: {estimator.num_heads}
            act_fn: 'gelu'
            static_chunk_size: !ref <chunk_size> * <token_mel_ratio>
            num_decoding_left_chunks: !ref <num_decoding_left_chunks>
"""


def _vocoder(vocoder: VocoderConfig) -> str:
    return f"""\
hift: !new:cosyvoice.hifigan.generator.HiFTGenerator
    in_channels: {vocoder.mel_bins}
    base_channels: {vocoder.base_channels}
    nb_harmonics: {vocoder.nb_harmonics}
    sampling_rate: !ref <sample_rate>
    nsf_alpha: {vocoder.nsf_alpha}
    nsf_sigma: {vocoder.nsf_sigma}
    nsf_voiced_threshold: {vocoder.nsf_voiced_threshold:g}
    upsample_rates: {_numbers(vocoder.upsample_rates)}
    upsample_kernel_sizes: {_numbers(vocoder.upsample_kernel_sizes)}
    istft_params:
        n_fft: {vocoder.istft_n_fft}
        hop_len: {vocoder.istft_hop}
    resblock_kernel_sizes: {_numbers(vocoder.resblock_kernel_sizes)}
    resblock_dilation_sizes: {_rows(vocoder.resblock_dilation_sizes)}
    source_resblock_kernel_sizes: {_numbers(vocoder.source_resblock_kernel_sizes)}
    source_resblock_dilation_sizes: {_rows(vocoder.source_resblock_dilation_sizes)}
    lrelu_slope: {vocoder.lrelu_slope}
    audio_limit: {vocoder.audio_limit}
    f0_predictor: !new:cosyvoice.hifigan.f0_predictor.ConvRNNF0Predictor
        num_class: 1
        in_channels: {vocoder.mel_bins}
        cond_channels: {vocoder.f0_channels}
"""


def _numbers(values: Iterable[int]) -> str:
    return "[" + ", ".join(str(value) for value in values) + "]"


def _rows(rows: Iterable[Iterable[int]]) -> str:
    return "[" + ", ".join(_numbers(row) for row in rows) + "]"

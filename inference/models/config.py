"""Sizes of a CosyVoice2 checkpoint, as plain typed values.

Nothing here reads a file: `inference.checkpoint` builds these from `cosyvoice2.yaml` and the language
model's `config.json`. The defaults are those of the public CosyVoice2-0.5B.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class SamplingConfig:
    """Repetition-aware sampling (SPEC 3.1)."""

    top_p: float = 0.8
    top_k: int = 25
    win_size: int = 10
    tau_r: float = 0.1


@dataclass(frozen=True)
class LanguageModelConfig:
    """Qwen2 body plus speech embeddings and speech head (SPEC 3)."""

    vocab_size: int = 151936
    hidden_size: int = 896
    intermediate_size: int = 4864
    num_layers: int = 24
    num_heads: int = 14
    num_kv_heads: int = 2
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1_000_000.0
    speech_token_size: int = 6561
    mix_ratio: tuple[int, int] = (5, 15)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def speech_vocab_size(self) -> int:
        """Speech ids plus end-of-speech, one unused id and the fill token."""
        return self.speech_token_size + 3

    @property
    def end_of_speech(self) -> int:
        return self.speech_token_size

    @property
    def fill_token(self) -> int:
        return self.speech_token_size + 2

    @property
    def stop_ids(self) -> tuple[int, int, int]:
        return (self.speech_token_size, self.speech_token_size + 1, self.speech_token_size + 2)


@dataclass(frozen=True)
class FlowEncoderConfig:
    """Upsampling conformer encoder (SPEC 4)."""

    input_size: int = 512
    output_size: int = 512
    attention_heads: int = 8
    linear_units: int = 2048
    num_blocks: int = 6
    num_up_blocks: int = 4
    chunk_tokens: int = 25


@dataclass(frozen=True)
class EstimatorConfig:
    """Velocity network (SPEC 5.1)."""

    in_channels: int = 320
    out_channels: int = 80
    channels: int = 256
    attention_head_dim: int = 64
    num_heads: int = 8
    n_blocks: int = 4
    num_mid_blocks: int = 12
    chunk_frames: int = 50


@dataclass(frozen=True)
class FlowConfig:
    """Token-to-mel model (SPEC 4, 5)."""

    vocab_size: int = 6561
    input_size: int = 512
    mel_bins: int = 80
    speaker_dim: int = 192
    pre_lookahead: int = 3
    token_mel_ratio: int = 2
    cfg_rate: float = 0.7
    n_timesteps: int = 10
    encoder: FlowEncoderConfig = field(default_factory=FlowEncoderConfig)
    estimator: EstimatorConfig = field(default_factory=EstimatorConfig)


@dataclass(frozen=True)
class VocoderConfig:
    """HiFT vocoder (SPEC 6)."""

    mel_bins: int = 80
    base_channels: int = 512
    nb_harmonics: int = 8
    sample_rate: int = 24000
    nsf_alpha: float = 0.1
    nsf_sigma: float = 0.003
    nsf_voiced_threshold: float = 10.0
    upsample_rates: tuple[int, ...] = (8, 5, 3)
    upsample_kernel_sizes: tuple[int, ...] = (16, 11, 7)
    istft_n_fft: int = 16
    istft_hop: int = 4
    resblock_kernel_sizes: tuple[int, ...] = (3, 7, 11)
    resblock_dilation_sizes: tuple[tuple[int, ...], ...] = ((1, 3, 5), (1, 3, 5), (1, 3, 5))
    source_resblock_kernel_sizes: tuple[int, ...] = (7, 7, 11)
    source_resblock_dilation_sizes: tuple[tuple[int, ...], ...] = ((1, 3, 5), (1, 3, 5), (1, 3, 5))
    lrelu_slope: float = 0.1
    audio_limit: float = 0.99
    f0_channels: int = 512

    @property
    def hop(self) -> int:
        """Audio samples per mel frame."""
        samples = self.istft_hop
        for rate in self.upsample_rates:
            samples *= rate
        return samples


@dataclass(frozen=True)
class ModelConfig:
    """Everything a model folder's configuration says about sizes and rates."""

    sample_rate: int = 24000
    token_rate: int = 25
    language_model: LanguageModelConfig = field(default_factory=LanguageModelConfig)
    flow: FlowConfig = field(default_factory=FlowConfig)
    vocoder: VocoderConfig = field(default_factory=VocoderConfig)

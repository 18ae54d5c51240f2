"""Sizes of the bundled nano checkpoint: the public architecture, narrower and shallower."""

from __future__ import annotations

from inference.models.config import (
    EstimatorConfig,
    FlowConfig,
    FlowEncoderConfig,
    LanguageModelConfig,
    ModelConfig,
    SamplingConfig,
    VocoderConfig,
)

TEXT_VOCAB_SIZE = 4096  # rows of the text embedding; the tokenizer may use fewer

NANO = ModelConfig(
    language_model=LanguageModelConfig(
        vocab_size=TEXT_VOCAB_SIZE,
        hidden_size=256,
        intermediate_size=768,
        num_layers=6,
        num_heads=4,
        num_kv_heads=2,
        # Measured: with the public values (0.8, 25, 0.1) a model this small swallows and swaps sounds. Its 729 codes
        # repeat within a vowel, so the repetition rule may only stop a code that fills most of the window.
        sampling=SamplingConfig(top_p=0.3, top_k=5, win_size=10, tau_r=0.6),
    ),
    flow=FlowConfig(
        input_size=192,
        encoder=FlowEncoderConfig(
            input_size=192,
            output_size=192,
            attention_heads=4,
            linear_units=512,
            num_blocks=3,
            num_up_blocks=4,
        ),
        estimator=EstimatorConfig(
            channels=128, attention_head_dim=32, num_heads=4, n_blocks=1, num_mid_blocks=6
        ),
    ),
    vocoder=VocoderConfig(base_channels=192, f0_channels=128),
)

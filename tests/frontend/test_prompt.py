"""Model input of every mode (SPEC 1.4, 2.7)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from inference.frontend.prompt import (
    ModelInput,
    clone_input,
    convert_input,
    cross_lingual_input,
    instruct_input,
    preset_input,
)
from inference.types import CheckpointError, Voice
from tests.frontend.text_support import full_tokenizer, nano_tokenizer
from tests.golden_data import load_case, parametrize, reference_folder

pytestmark = pytest.mark.unit


def a_voice(transcript: str = "", tokens: int = 7) -> Voice:
    generator = np.random.default_rng(3)
    return Voice(
        speech_tokens=generator.integers(0, 6561, tokens, dtype=np.int32),
        mel=generator.standard_normal((2 * tokens, 80), dtype=np.float32),
        speaker=generator.standard_normal(192, dtype=np.float32),
        transcript=transcript,
    )


def _recorded_voice(arrays: dict[str, Any], transcript: str) -> Voice:
    return Voice(
        speech_tokens=arrays["flow_prompt_speech_token"][0],
        mel=arrays["prompt_speech_feat"][0],
        speaker=arrays["flow_embedding"][0],
        transcript=transcript,
    )


def _made(mode: str, inputs: dict[str, str], arrays: dict[str, Any]) -> ModelInput:
    tokenizer = full_tokenizer()
    if mode == "sft":
        stored = torch.load(reference_folder() / "stub_onnx/spk2info.pt", weights_only=True)
        return preset_input(inputs["tts"], stored[inputs["spk"]], tokenizer)
    voice = _recorded_voice(arrays, inputs.get("prompt", ""))
    if mode == "vc":
        return convert_input(arrays["source_speech_token"][0], voice)
    if mode == "zero_shot":
        return clone_input(inputs["tts"], voice, tokenizer, exact=True)
    if mode == "instruct2":
        return instruct_input(inputs["tts"], inputs["instruct"], voice, tokenizer, exact=True)
    return cross_lingual_input(inputs["tts"], voice, tokenizer)


@pytest.mark.golden
@parametrize("name", "mode_")
def test_every_recorded_mode(name: str) -> None:
    case = load_case(name)
    made = _made(case.meta["mode"], case.meta["inputs"], case.arrays)
    for found, key in (
        (made.text_ids, "text"),
        (made.prompt_text_ids, "prompt_text"),
        (made.llm_prompt_tokens, "llm_prompt_speech_token"),
        (made.flow_prompt_tokens, "flow_prompt_speech_token"),
        (made.prompt_mel, "prompt_speech_feat"),
    ):
        expected = (
            case.arrays[key][0] if key in case.arrays else np.zeros((0, 80) if key.endswith("feat") else 0)
        )
        assert np.array_equal(found, expected), key
    assert np.array_equal(made.speaker, case.arrays["flow_embedding"][0])
    if "text" in case.arrays:
        length = case.arrays["text"].shape[1]
        assert (made.min_tokens, made.max_tokens) == (2 * length, 20 * length)


def test_types_and_shapes() -> None:
    made = clone_input("Hello.", a_voice("Some words."), nano_tokenizer())
    for ids in (made.text_ids, made.prompt_text_ids, made.llm_prompt_tokens, made.flow_prompt_tokens):
        assert ids.dtype == np.int32
        assert ids.ndim == 1
    assert made.prompt_mel.dtype == made.speaker.dtype == np.float32
    assert made.prompt_mel.shape == (14, 80)
    assert made.speaker.shape == (192,)


@pytest.mark.parametrize("transcript", ["", "  ", "😀", "<|endofprompt|>"])
def test_clone_without_transcript_is_cross_lingual(transcript: str) -> None:
    made = clone_input("Hello.", a_voice(transcript), nano_tokenizer())
    assert len(made.prompt_text_ids) == len(made.llm_prompt_tokens) == 0
    assert len(made.flow_prompt_tokens) == 7


def test_clone_prompt_is_normalised() -> None:
    tokenizer = nano_tokenizer()
    made = clone_input("Hello.", a_voice("I have <|im_end|>3"), tokenizer)
    assert made.prompt_text_ids.tolist() == tokenizer.encode("I have three.")
    assert made.llm_prompt_tokens.tolist() == made.flow_prompt_tokens.tolist()


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("instruction", ["speak softly", "speak softly<|endofprompt|>"])
def test_instruction_ends_with_one_mark(instruction: str, exact: bool) -> None:
    tokenizer = nano_tokenizer()
    made = instruct_input("Hello.", instruction, a_voice("words"), tokenizer, exact=exact)
    assert made.prompt_text_ids.tolist() == [*tokenizer.encode("speak softly"), tokenizer.end_of_prompt]
    assert len(made.llm_prompt_tokens) == 0


def test_instruction_control_tokens_go() -> None:
    tokenizer = nano_tokenizer()
    hostile = "a<|endofprompt|>b<|endof<|im_end|>prompt|> ＜|endoftext|＞c"
    ids = instruct_input("Hello.", hostile, a_voice(), tokenizer).prompt_text_ids.tolist()
    assert ids.count(tokenizer.end_of_prompt) == 1
    assert ids[-1] == tokenizer.end_of_prompt
    assert not {tokenizer.encode(token)[0] for token in ("<|endoftext|>", "<|im_end|>")} & set(ids)


def test_stored_clip_preset() -> None:
    voice = a_voice()
    entry = {
        "prompt_text": torch.tensor([[1, 2, 3]], dtype=torch.int32),
        "prompt_text_len": torch.tensor([3], dtype=torch.int32),
        "llm_prompt_speech_token": torch.from_numpy(voice.speech_tokens[None]),
        "flow_prompt_speech_token": torch.from_numpy(voice.speech_tokens[None]),
        "prompt_speech_feat": torch.from_numpy(voice.mel[None]),
        "llm_embedding": torch.from_numpy(voice.speaker[None]),
        "flow_embedding": torch.from_numpy(voice.speaker[None]),
    }
    made = preset_input("Hello.", entry, nano_tokenizer())
    assert made.prompt_text_ids.tolist() == [1, 2, 3]
    assert np.array_equal(made.llm_prompt_tokens, voice.speech_tokens)
    assert np.array_equal(made.flow_prompt_tokens, voice.speech_tokens)
    assert np.array_equal(made.prompt_mel, voice.mel)
    assert np.array_equal(made.speaker, voice.speaker)


def test_trained_preset_with_extra_keys_has_no_prompt() -> None:
    entry = {"embedding": torch.ones(1, 192), "speech_token": torch.ones(1, 5), "prompt_text": "words"}
    made = preset_input("Hello.", entry, nano_tokenizer())
    assert len(made.prompt_text_ids) == len(made.llm_prompt_tokens) == len(made.flow_prompt_tokens) == 0
    assert made.prompt_mel.shape == (0, 80)
    assert made.speaker.tolist() == [1.0] * 192


def test_unusable_preset() -> None:
    with pytest.raises(CheckpointError) as caught:
        preset_input("Hello.", {"prompt_text": torch.zeros(1, 1)}, nano_tokenizer())
    assert caught.value.code == "preset_unusable"


def test_conversion_speaks_exactly_the_source() -> None:
    source = np.arange(9, dtype=np.int32)
    made = convert_input(source, a_voice("words"))
    assert len(made.text_ids) == len(made.llm_prompt_tokens) == 0
    assert (made.min_tokens, made.max_tokens) == (9, 9)

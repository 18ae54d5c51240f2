"""The language model against the recorded original, and against itself in batches and in pieces."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from inference.models.config import LanguageModelConfig, SamplingConfig
from inference.models.language_model import LanguageModel, Prompt
from tests.golden_data import Case, load_case, parametrize, reference_folder, relative_error, tiny_weights

TOLERANCE = 1e-4


def config_of(meta: dict[str, Any]) -> LanguageModelConfig:
    """The language model configuration that a golden case names."""
    config = meta["config"]
    qwen = config["qwen2"]
    sampling = config.get("sampling")
    return LanguageModelConfig(
        vocab_size=qwen["vocab_size"],
        hidden_size=qwen["hidden_size"],
        intermediate_size=qwen["intermediate_size"],
        num_layers=qwen["num_hidden_layers"],
        num_heads=qwen["num_attention_heads"],
        num_kv_heads=qwen["num_key_value_heads"],
        rms_norm_eps=qwen["rms_norm_eps"],
        rope_theta=qwen["rope_theta"],
        speech_token_size=config["speech_token_size"],
        sampling=SamplingConfig(**sampling) if sampling else SamplingConfig(),
    )


def build(cfg: LanguageModelConfig, state: dict[str, Tensor]) -> LanguageModel:
    with torch.device("meta"):
        model = LanguageModel(cfg)
    kept = {key: value for key, value in state.items() if not key.startswith("llm.model.lm_head")}
    model.load_state_dict(kept, assign=True)
    return model.eval()


def tiny_model(cfg: LanguageModelConfig | None = None) -> LanguageModel:
    return build(cfg or config_of(load_case("llm_zero_shot_a").meta), tiny_weights("llm.pt"))


def prompt_of(case: Case) -> Prompt:
    arrays = case.arrays
    text = [*arrays.get("prompt_text_token", []), *arrays["text_token"]]
    return Prompt(text, list(arrays.get("prompt_speech_token", [])))


def check_case(case: Case, model: LanguageModel, tolerance: float = TOLERANCE) -> None:
    device = model.device
    with torch.inference_mode():
        prompt = model.embed_prompt(prompt_of(case))
        forced = case.arrays["forced_tokens"]
        assert relative_error(prompt[None].float(), case.tensor("prefill_embeds")) <= tolerance
        assert relative_error(model(prompt[None]).float(), case.tensor("prefill_hidden")) <= tolerance
        cache = model.new_cache(1, len(prompt) + len(forced))
        hidden = model.prefill([prompt], cache)
        steps = []
        for number, token in enumerate(forced):
            steps.append(model.logits(hidden).log_softmax(-1)[0])
            place = len(prompt) + number
            ids = torch.tensor([[int(token)]], device=device)
            hidden = model(model.embed_speech(ids), torch.tensor([[place]], device=device), cache, place + 1)[:, 0]
        assert relative_error(torch.stack(steps), case.tensor("step_logp")) <= tolerance


@pytest.mark.golden
@parametrize("name", "llm_")
def test_recorded_decode(name: str) -> None:
    case = load_case(name)
    if case.meta["kind"] == "llm_teacher_forced" and not name.startswith("full_"):
        check_case(case, tiny_model(config_of(case.meta)))


@pytest.mark.golden
@pytest.mark.slow
@parametrize("name", "full_llm_")
def test_recorded_decode_at_full_size(name: str, full_weights: Any) -> None:
    case = load_case(name)
    state = torch.load(full_weights("llm"), weights_only=True, mmap=True)
    check_case(case, build(config_of(case.meta), state))


@pytest.mark.golden
@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float32, 1e-3), (torch.float16, 2e-2), (torch.bfloat16, 1e-1)]
)
def test_cuda_matches_the_recording(cuda: torch.device, dtype: torch.dtype, bound: float) -> None:
    case = load_case("llm_zero_shot_a")
    check_case(case, tiny_model(config_of(case.meta)).to(cuda, dtype), bound)


@pytest.mark.golden
def test_a_padded_batch_gives_each_what_it_gets_alone(device: torch.device) -> None:
    model = tiny_model().to(device)
    prompts = [Prompt([3, 5, 8, 13], [7] * n) for n in (0, 17, 40)]
    with torch.inference_mode():
        embedded = [model.embed_prompt(prompt) for prompt in prompts]
        cache = model.new_cache(3, 64)
        together = model.prefill(embedded, cache)
        ids = torch.tensor([[11], [22], [33]], device=device)
        places = torch.tensor([[len(prompt)] for prompt in embedded], device=device)
        together_next = model(model.embed_speech(ids), places, cache, 60)[:, 0]
        for row, prompt in enumerate(embedded):
            alone_cache = model.new_cache(1, 64)
            alone = model.prefill([prompt], alone_cache)
            alone_next = model(
                model.embed_speech(ids[row : row + 1]), places[row : row + 1], alone_cache, len(prompt) + 1
            )[:, 0]
            assert relative_error(together[row], alone[0]) < 1e-5
            assert relative_error(together_next[row], alone_next[0]) < 1e-5


@pytest.mark.unit
def test_every_tensor_of_the_full_checkpoint_has_its_place() -> None:
    import json

    manifest = reference_folder() / "manifest.json"
    if not manifest.exists():
        pytest.skip(f"no {manifest}")
    listed = json.loads(manifest.read_text())["files"]["llm.pt"]["tensors"]
    expected = {e["key"]: tuple(e["shape"]) for e in listed if not e["key"].startswith("llm.model.lm_head")}
    with torch.device("meta"):
        model = LanguageModel(LanguageModelConfig())
    assert {key: tuple(value.shape) for key, value in model.state_dict().items()} == expected

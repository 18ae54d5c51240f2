"""Generation that does not depend on who else is being served, and that ends."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from inference.runtime.feed import SpeechPrompt
from inference.runtime.generate import MAX_CONTEXT, SpeechTokenGenerator
from inference.types import EngineError, RequestError
from tests.models.language_model_support import prompt, random_model


def prompts() -> list[SpeechPrompt]:
    return [
        prompt(range(4), range(20), seed=1),
        prompt(range(9), seed=2),
        prompt([3], range(7), seed=3),
        prompt(range(30), range(2), seed=1),
    ]


def test_alone_or_in_a_batch_the_same_tokens(device: torch.device) -> None:
    generator = SpeechTokenGenerator(random_model().to(device))
    together = generator.generate(prompts())
    assert together == [list(generator.stream(given)) for given in prompts()]
    assert together == generator.generate(prompts()[::-1])[::-1]
    assert all(together)


def test_another_seed_gives_other_tokens() -> None:
    generator = SpeechTokenGenerator(random_model())
    runs = [tuple(generator.stream(prompt(range(10), seed=seed))) for seed in range(4)]
    assert len(set(runs)) == 4


def test_lengths_stay_within_the_limits() -> None:
    generator = SpeechTokenGenerator(random_model())
    for seed in range(20):
        assert 6 <= len(list(generator.stream(prompt(range(3), seed=seed)))) <= 60


def test_the_prompt_text_does_not_lengthen() -> None:
    text, other = np.arange(3, dtype=np.int32), np.arange(30, dtype=np.int32)
    given = SpeechPrompt(text, other, other[:0])
    assert (given.min_len, given.max_len) == (6, 60)


def test_the_minimum_holds_where_the_end_is_likely() -> None:
    model = random_model()
    model.llm_decoder.bias[model.cfg.end_of_speech] = 60.0
    assert len(list(SpeechTokenGenerator(model).stream(prompt(range(5))))) == 10


def test_the_maximum_ends_what_never_ends() -> None:
    model = random_model()
    model.llm_decoder.bias[model.cfg.end_of_speech :] = -60.0
    assert [
        len(tokens) for tokens in SpeechTokenGenerator(model).generate([prompt(range(2)), prompt([1])])
    ] == [40, 20]


def test_no_text_gives_nothing() -> None:
    generator = SpeechTokenGenerator(random_model())
    assert list(generator.stream(prompt([]))) == []
    assert generator.generate([]) == []
    alone = list(generator.stream(prompt(range(4))))
    assert generator.generate([prompt([]), prompt(range(4))]) == [[], alone]


def test_closing_stops_the_work() -> None:
    model = random_model()
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    model.llm_decoder.register_forward_hook(count)
    stream = SpeechTokenGenerator(model).stream(prompt(range(10)))
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert calls == 1


def test_consuming_slowly_leaves_no_inference_mode_behind() -> None:
    stream = SpeechTokenGenerator(random_model()).stream(prompt(range(10)))
    next(stream)
    assert not torch.is_inference_mode_enabled()


def test_nan_is_one_clear_error() -> None:
    model = random_model()
    model.speech_embedding.weight.fill_(torch.nan)
    generator = SpeechTokenGenerator(model)
    with pytest.raises(EngineError) as raised:
        generator.generate([prompt(range(4)), prompt(range(4), [1])])
    assert raised.value.code == "non_finite"
    none = np.zeros(0, dtype=np.int32)
    with pytest.raises(EngineError) as raised:
        list(generator.stream_text([np.arange(9, dtype=np.int32)], none, none))
    assert raised.value.code == "non_finite"


def test_a_prompt_past_the_context_is_refused() -> None:
    with pytest.raises(RequestError) as raised:
        next(SpeechTokenGenerator(random_model()).stream(prompt([1], [2] * MAX_CONTEXT)))
    assert raised.value.code == "text_too_long"


@pytest.mark.gpu
def test_cuda_draws_what_the_cpu_draws(cuda: torch.device) -> None:
    """Float rounding can flip a draw once in a long while; not in these short runs."""
    expected = SpeechTokenGenerator(random_model()).generate(prompts())
    assert SpeechTokenGenerator(random_model().to(cuda)).generate(prompts()) == expected


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
def test_half_precision_generates(dtype: torch.dtype, cuda: torch.device) -> None:
    generator = SpeechTokenGenerator(random_model().to(cuda, dtype))
    tokens = generator.generate(prompts())
    assert all(tokens) and tokens == generator.generate(prompts())

"""Text in pieces: every feed and every token of the original, and the healed form without its quirk."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from inference.models.language_model import SERVICE, SPEECH, TEXT
from inference.runtime import bistream
from inference.runtime.bistream import Bistream
from inference.runtime.feed import Feed, pad_feeds
from inference.runtime.generate import SpeechTokenGenerator
from inference.runtime.kv_cache import KvCache
from inference.runtime.language_model_step import extend
from inference.types import EngineError
from tests.golden_data import Case, load_case, parametrize, relative_error
from tests.models.language_model_support import random_model, tiny_model

BISTREAM = parametrize("name", "bistream_")
NAMES = {SERVICE: "L", TEXT: "T", SPEECH: "S"}
CFG = random_model().cfg


def spell(feed: Feed) -> list[str]:
    return [f"{NAMES[kind]}{row}" for kind, row in zip(feed.kinds.tolist(), feed.ids.tolist())]


def run(state: Bistream, text: list[int], results: list[int]) -> tuple[list[Feed], list[int]]:
    """All feeds and emitted tokens when the sampler returns `results`."""
    waiting = iter(results)
    feeds: list[Feed] = []
    emitted: list[int] = []

    def decode() -> None:
        while state.decoding:
            feeds.append(state.feed)
            drawn = state.cfg.fill_token if bistream.fill_is_due(state) else next(waiting)
            token = bistream.accept(state, drawn)
            if token is not None:
                emitted.append(token)

    for text_id in text:
        bistream.push_text(state, text_id)
        decode()
    bistream.end_text(state)
    decode()
    assert next(waiting, None) is None, "the sampler was asked less often than recorded"
    return feeds, emitted


def replay(case: Case) -> tuple[list[Feed], list[int]]:
    arrays = case.arrays
    state = bistream.start(
        tiny_model(case).cfg, arrays["prompt_text"].tolist(), arrays["prompt_speech"].tolist(), exact=True
    )
    return run(state, arrays["text"].tolist(), arrays["sampler_results"].tolist())


@pytest.mark.golden
@BISTREAM
def test_feeds_and_tokens_equal_recorded(name: str) -> None:
    case = load_case(name)
    feeds, emitted = replay(case)
    assert [spell(feed) for feed in feeds] == case.meta["feeds"]
    assert emitted == case.arrays["emitted"].tolist()


@pytest.mark.golden
@BISTREAM
def test_hidden_states_equal_recorded(name: str) -> None:
    case = load_case(name)
    model = tiny_model(case)
    feeds, _ = replay(case)
    cache = KvCache(model.cfg, 1, 256)
    states = torch.cat([extend(model, cache, *pad_feeds([feed], model.device), 256) for feed in feeds])
    assert relative_error(states, case.tensor("last_hidden")) <= 1e-4
    logp = torch.log_softmax(model.logits(states), dim=1)
    assert relative_error(logp.gather(1, case.tensor("logp_top_ids").long()), case.tensor("logp_top")) <= 1e-4


def test_without_the_quirk_no_token_is_fed_twice() -> None:
    speech = list(range(20))
    for exact in (False, True):
        state = bistream.start(CFG, [], [], exact)
        feeds, emitted = run(state, [1, 2, 3, 4, 5, 6, 7], [*speech[:15], *speech[15:], CFG.end_of_speech])
        assert emitted == speech
        fed = [row for feed in feeds for kind, row in zip(feed.kinds, feed.ids) if kind == SPEECH]
        assert fed == ([*speech[:15], 14, *speech[15:]] if exact else speech)


def test_text_shorter_than_a_block_becomes_an_ordinary_prompt() -> None:
    feeds, emitted = run(bistream.start(CFG, [], []), [1, 2], [7, CFG.end_of_speech])
    assert spell(feeds[0]) == ["L0", "T1", "T2", "L1"]
    assert emitted == [7]


@pytest.mark.parametrize("token", [40, 41])
def test_reserved_ids_are_an_error(token: int) -> None:
    state = bistream.start(CFG, [], [])
    with pytest.raises(EngineError) as raised:
        run(state, [1, 2, 3, 4, 5], [token])
    assert raised.value.code == "unexpected_token"


@pytest.mark.parametrize(
    "pieces", [[[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]], [[i] for i in range(1, 13)], [[], [1, 2]]]
)
def test_generation_ends_and_depends_on_seed_and_text_only(pieces: list[list[int]]) -> None:
    generator = SpeechTokenGenerator(random_model())
    none = np.zeros(0, dtype=np.int32)
    arrays = [np.array(piece, dtype=np.int32) for piece in pieces]
    joined = [np.array([token for piece in pieces for token in piece], dtype=np.int32)]
    first, second = (list(generator.stream_text(given, none, none, seed=3)) for given in (arrays, joined))
    assert first == second
    assert first and all(token < CFG.end_of_speech for token in first)
    assert len(first) <= 20 * len(joined[0])
    assert first != list(generator.stream_text(joined, none, none, seed=4))


def test_speech_begins_before_the_text_is_complete() -> None:
    generator = SpeechTokenGenerator(random_model())
    none = np.zeros(0, dtype=np.int32)
    taken = []

    def pieces():  # type: ignore[no-untyped-def]
        for token in range(1, 21):
            taken.append(token)
            yield np.array([token], dtype=np.int32)

    next(generator.stream_text(pieces(), none, none))
    assert len(taken) == 5


def test_a_long_stream_outgrows_its_first_cache() -> None:
    """Growing keeps what was cached: a stream over 512 positions equals one with room from the start."""
    from inference.runtime import generate as module

    generator = SpeechTokenGenerator(random_model())
    none = np.zeros(0, dtype=np.int32)
    text = [np.array(range(50), dtype=np.int32)] * 5
    expected = list(generator.stream_text(text, none, none, seed=1))
    assert len(expected) > 512
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_FIRST_ROOM", 8192)
        assert list(generator.stream_text(text, none, none, seed=1)) == expected


def test_empty_text_gives_nothing() -> None:
    none = np.zeros(0, dtype=np.int32)
    assert list(SpeechTokenGenerator(random_model()).stream_text([], none, none)) == []

"""The language model against recorded values, and its batching and caching against itself."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
import torch
from torch import Tensor

from inference.models.config import LanguageModelConfig
from inference.models.language_model import LanguageModel
from inference.runtime.feed import SpeechPrompt, pad_feeds, speech_feed
from inference.runtime.kv_cache import KvCache
from inference.runtime.language_model_step import decode, extend, prefill, round_prefix
from tests.golden_data import (
    Case,
    full_manifest,
    golden_cases,
    load_case,
    parametrize,
    reference_folder,
    relative_error,
    require_golden,
)
from tests.models.language_model_support import (
    UNUSED_KEY,
    config_of,
    load_model,
    prompt,
    prompt_of,
    random_model,
    tiny_model,
)

TINY = parametrize("name", "llm_")
BOUND = 1e-4  # relative 2-norm of log-probabilities and hidden states, float32


def teacher_forced(model: LanguageModel, case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """Embeddings of the prompt, hidden states and log-probabilities before every forced token."""
    feed = prompt_of(case).feed()
    forced = case.arrays["forced_tokens"].tolist()
    cache = KvCache(model.cfg, 1, len(feed) + len(forced), model.device, model.dtype)
    kinds, ids, lengths = pad_feeds([feed], model.device)
    hidden = [prefill(model, cache, kinds, ids, lengths)]
    active = torch.ones(1, dtype=torch.bool, device=model.device)
    for step, token in enumerate(forced[:-1]):
        prefix = round_prefix(len(feed) + step + 1, cache.max_len)
        hidden.append(decode(model, cache, torch.tensor([token], device=model.device), active, prefix))
    states = torch.cat(hidden)
    return model.embed(kinds, ids), states, torch.log_softmax(model.logits(states), dim=1)


def embed(model: LanguageModel, given: SpeechPrompt) -> Tensor:
    """Input embeddings (1, T, hidden) of one prompt."""
    kinds, ids, _ = pad_feeds([given.feed()], model.device)
    return model.embed(kinds, ids)


def check_case(model: LanguageModel, case: Case, bound: float) -> None:
    embeddings, states, logp = teacher_forced(model, case)
    assert relative_error(embeddings, case.tensor("prefill_embeds")) <= min(bound, 1e-6)
    assert relative_error(model(embeddings), case.tensor("prefill_hidden")) <= bound
    assert relative_error(states, case.tensor("step_hidden")) <= bound
    assert relative_error(logp, case.tensor("step_logp")) <= bound
    # The bound is on the logits, which the constant of log_softmax would flatter.
    centred, expected = (x - x.mean(1, keepdim=True) for x in (logp.cpu(), case.tensor("step_logp")))
    assert relative_error(centred, expected) <= bound


@pytest.mark.golden
@TINY
def test_teacher_forced_equals_recorded(name: str) -> None:
    case = load_case(name)
    check_case(tiny_model(case), case, BOUND)


@pytest.mark.golden
@TINY
def test_lengths_follow_the_text(name: str) -> None:
    case = load_case(name)
    count = len(case.arrays["text_token"])
    assert (int(case.arrays["min_len"]), int(case.arrays["max_len"])) == (2 * count, 20 * count)


@pytest.mark.golden
@pytest.mark.slow
@parametrize("name", "full_llm_")
def test_full_size_equals_recorded(name: str, tmp_path: Path) -> None:
    reference = reference_folder()
    make = runpy.run_path(str(reference / "make_weights.py"))
    entries = json.loads((reference / "manifest.json").read_text(encoding="utf-8"))["files"]["llm.pt"][
        "tensors"
    ]
    case = load_case(name)
    check_case(load_model(config_of(case.meta), make["state_dict"](entries)), case, BOUND)


@pytest.mark.golden
def test_full_size_manifest_is_our_state_dict() -> None:
    manifest = full_manifest()
    entries = {entry["key"]: tuple(entry["shape"]) for entry in manifest["files"]["llm.pt"]["tensors"]}
    entries.pop(UNUSED_KEY)
    with torch.device("meta"):
        model = LanguageModel(LanguageModelConfig())
    assert {key: tuple(value.shape) for key, value in model.state_dict().items()} == entries


def test_padded_prefill_equals_each_alone() -> None:
    model = random_model()
    prompts = [prompt(range(3), range(9)), prompt(range(20), []), prompt([7], range(30))]
    feeds = [given.feed() for given in prompts]
    together = prefill(model, KvCache(model.cfg, 3, 40), *pad_feeds(feeds, model.device))
    for feed, found in zip(feeds, together):
        alone = prefill(model, KvCache(model.cfg, 1, 40), *pad_feeds([feed], model.device))
        assert relative_error(found[None], alone) < 1e-5


def test_prompt_is_sos_text_task_speech() -> None:
    model = random_model()
    found = embed(model, prompt([4, 5], [6]))[0]
    service, text, speech = (
        table.weight for table in (model.llm_embedding, model.decoder.embed_tokens, model.speech_embedding)
    )
    assert torch.equal(found, torch.stack([service[0], text[4], text[5], service[1], speech[6]]))


@pytest.mark.parametrize("rows", [None, [4, 0, 2]], ids=["first rows", "chosen rows"])
def test_prefill_and_decode_equal_one_pass(rows: list[int] | None, device: torch.device) -> None:
    """Rows of different lengths, decoded together with one that idles, give what a full pass gives."""
    model = random_model().to(device)
    prompts = [prompt(range(3), range(9)), prompt(range(12)), prompt([7], range(20))]
    tokens = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]], device=device)
    index = None if rows is None else torch.tensor(rows, device=device)
    cache = KvCache(model.cfg, 5, 40, device)
    feeds = [given.feed() for given in prompts]
    found = [prefill(model, cache, *pad_feeds(feeds, device), index)]
    active = torch.tensor([True, False, True], device=device)
    for step in range(tokens.shape[1]):
        found.append(decode(model, cache, tokens[:, step], active, 40, index))
    for row in (0, 2):
        whole = model(
            embed(model, prompt(prompts[row].text, [*prompts[row].prompt_speech, *tokens[row].tolist()]))
        )
        steps = torch.stack([hidden[row] for hidden in found])
        assert relative_error(steps, whole[0, -len(steps) :]) < 1e-5
    idle = model(embed(model, prompt(prompts[1].text, [5])))
    assert relative_error(found[1][1], idle[0, -1]) < 1e-5
    lengths = cache.lengths.tolist()
    order = [0, 1, 2] if rows is None else rows
    assert [lengths[row] for row in order] == [14 + 4, 14, 23 + 4]


def test_extend_in_pieces_equals_one_pass() -> None:
    model = random_model()
    speech = list(range(30))
    whole = model(embed(model, prompt([1, 2, 3], speech)))
    cache = KvCache(model.cfg, 1, 64)
    prefill(model, cache, *pad_feeds([prompt([1, 2, 3], speech[:4]).feed()], model.device))
    for begin, end in ((4, 11), (11, 12), (12, 30)):
        found = extend(model, cache, *pad_feeds([speech_feed(speech[begin:end])], model.device), 64)
        assert relative_error(found, whole[:, 5 + end - 1]) < 1e-5


def test_a_longer_prefix_changes_nothing() -> None:
    model = random_model()
    feed = prompt(range(5), range(10)).feed()
    results = []
    for prefix in (18, 64):
        cache = KvCache(model.cfg, 1, 64)
        prefill(model, cache, *pad_feeds([feed], model.device))
        results.append(decode(model, cache, torch.tensor([3]), torch.ones(1, dtype=torch.bool), prefix))
    assert relative_error(results[1], results[0]) < 1e-6


def test_reset_forgets_even_nan() -> None:
    model = random_model()
    cache = KvCache(model.cfg, 2, 32)
    feed = pad_feeds([prompt(range(4), range(4)).feed()], model.device)
    row = torch.tensor([1])
    token, active = torch.tensor([3]), torch.ones(1, dtype=torch.bool)
    prefill(model, cache, *feed, row)
    clean = decode(model, cache, token, active, 32, row)
    cache.data[:, :, 1] = torch.nan
    cache.reset(row)
    assert cache.lengths.tolist() == [0, 0]
    prefill(model, cache, *feed, row)
    assert torch.equal(decode(model, cache, token, active, 32, row), clean)


@pytest.mark.gpu
@TINY
def test_cuda_equals_recorded(name: str, cuda: torch.device) -> None:
    case = load_case(name)
    check_case(tiny_model(case).to(cuda), case, 1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float16, 5e-3), (torch.bfloat16, 4e-2)], ids=["fp16", "bf16"]
)
@TINY
def test_half_precision_stays_near(name: str, dtype: torch.dtype, bound: float, cuda: torch.device) -> None:
    """The bound is a few roundings of the format (2^-11, 2^-8) through the layers."""
    case = load_case(name)
    _, states, logp = teacher_forced(tiny_model(case).to(cuda, dtype), case)
    assert logp.dtype == torch.float32
    assert relative_error(states, case.tensor("step_hidden")) <= bound
    assert relative_error(logp, case.tensor("step_logp")) <= bound


@pytest.mark.gpu
def test_decode_step_can_be_captured(cuda: torch.device) -> None:
    """A captured step equals the plain one: fixed shapes, no wait for the device."""
    model = random_model().to(cuda)
    feed = pad_feeds([prompt(range(4), range(4)).feed(), prompt(range(9)).feed()], cuda)
    token, active = torch.tensor([3, 4], device=cuda), torch.ones(2, dtype=torch.bool, device=cuda)
    plain, graphed = KvCache(model.cfg, 2, 32, cuda), KvCache(model.cfg, 2, 32, cuda)
    prefill(model, plain, *feed)
    expected = [decode(model, plain, token, active, 32) for _ in range(3)]
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        decode(model, graphed, token, active, 32)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        found = decode(model, graphed, token, active, 32)
    graphed.reset(torch.arange(2, device=cuda))
    prefill(model, graphed, *feed)
    for hidden in expected:
        graph.replay()
        assert relative_error(found, hidden) < 1e-5


def test_golden_cases_are_found() -> None:
    require_golden()
    assert golden_cases("llm_") and golden_cases("ras_") and golden_cases("bistream_")

"""Sampling decisions of the original, and generation that does not depend on who else is being served."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from inference.models.config import SamplingConfig
from inference.models.counter_noise import counter_uniform
from inference.models.language_model import LanguageModel, Prompt
from inference.runtime.bistream import Item, Kind, interleave
from inference.runtime.generate import GenerationJob, generate, generate_batch
from inference.runtime.sampling import nucleus, sample
from inference.types import EngineError
from tests.golden_data import Case, load_case, parametrize
from tests.models.test_language_model import config_of, tiny_model

WINDOW = 10


def _recent(case: Case) -> torch.Tensor:
    rows = []
    for history, length in zip(case.arrays["history"], case.arrays["history_len"], strict=True):
        latest = [int(token) for token in history[:length]][-WINDOW:]
        rows.append([-1] * (WINDOW - len(latest)) + latest)
    return torch.tensor(rows)


def _masked_logp(case: Case) -> torch.Tensor:
    logp = case.tensor("logp")
    ignore = case.tensor("ignore_eos").bool()
    logp[ignore, case.meta["params"]["eos"]] = float("-inf")
    return logp


@pytest.mark.golden
@parametrize("name", "ras_")
def test_recorded_decisions(name: str, device: torch.device) -> None:
    case = load_case(name)
    params = case.meta["params"]
    cfg = SamplingConfig(params["top_p"], params["top_k"], params["win_size"], params["tau_r"])
    found = sample(_masked_logp(case).to(device), _recent(case).to(device), case.tensor("u").to(device), cfg)
    assert found.tolist() == case.arrays["result"].tolist()


@pytest.mark.golden
@parametrize("name", "ras_")
def test_recorded_nucleus(name: str) -> None:
    case = load_case(name)
    weights, ids = nucleus(torch.softmax(_masked_logp(case), -1), SamplingConfig())
    for row, expected in enumerate(case.arrays["nucleus_ids"]):
        wanted = [int(i) for i in expected if i >= 0]
        assert ids[row][weights[row] > 0].tolist() == wanted


@pytest.mark.golden
@parametrize("name", "ras_")
def test_the_distribution_is_the_original_one(name: str) -> None:
    case = load_case(name)
    logp, recent = _masked_logp(case), _recent(case)
    rows, draws = (3, 17, 40), 4000
    for row in rows:
        uniforms = counter_uniform(torch.arange(draws), torch.zeros(draws, dtype=torch.int64), 2)
        ids = sample(logp[row].expand(draws, -1), recent[row].expand(draws, -1), uniforms, SamplingConfig())
        counts = np.bincount(ids.numpy(), minlength=logp.shape[1])
        for token, probability in zip(case.arrays["final_top_ids"][row][:5], case.arrays["final_top_probs"][row][:5]):
            spread = 5 * np.sqrt(probability * (1 - probability) / draws) + 1e-9
            assert abs(counts[token] / draws - probability) <= spread


@pytest.mark.unit
def test_uniforms_are_uniform_and_belong_to_the_request() -> None:
    seeds, steps = torch.arange(64), torch.arange(64)
    values = torch.cat([counter_uniform(seeds, steps + k, 2) for k in range(0, 6400, 64)]).flatten()
    assert 0.0 <= float(values.min()) and float(values.max()) < 1.0
    assert abs(float(values.mean()) - 0.5) < 0.01 and abs(float(values.var()) - 1 / 12) < 0.005
    alone = counter_uniform(torch.tensor([7]), torch.tensor([3]), 2)
    assert torch.equal(alone[0], counter_uniform(torch.tensor([1, 7]), torch.tensor([9, 3]), 2)[1])


def _jobs() -> list[GenerationJob]:
    return [
        GenerationJob(Prompt([3, 5, 8]), seed=1, min_tokens=6, max_tokens=40),
        GenerationJob(Prompt([9] * 12, [4] * 30), seed=2, min_tokens=24, max_tokens=60),
        GenerationJob(Prompt([100]), seed=2, min_tokens=0, max_tokens=3),
        GenerationJob(Prompt([100]), seed=5, min_tokens=0, max_tokens=0),
    ]


@pytest.mark.golden
def test_a_job_gets_the_same_tokens_alone_and_among_others() -> None:
    model, jobs = tiny_model(), _jobs()
    columns = list(zip(*generate_batch(model, jobs), strict=True))
    for job, column in zip(jobs, columns, strict=True):
        together = [token for token in column if token is not None]
        assert together == list(generate(model, job))
        assert job.min_tokens <= len(together) <= job.max_tokens


@pytest.mark.golden
def test_the_seed_decides() -> None:
    model = tiny_model()
    runs = [list(generate(model, GenerationJob(Prompt([3, 5, 8]), seed, 20, 20))) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.golden
def test_overflow_is_told() -> None:
    model = tiny_model()
    with torch.no_grad():
        model.llm_decoder.bias[5] = float("nan")
    with pytest.raises(EngineError) as caught:
        list(generate(model, _jobs()[0]))
    assert caught.value.code == "non_finite"


class _Recorder:
    """Runs the feeds through the model, answers as the recorded sampler did and keeps what it was fed."""

    def __init__(self, model: LanguageModel, case: Case) -> None:
        self._model, self._case = model, case
        self._answers = iter(case.arrays["sampler_results"].tolist())
        self._cache = model.new_cache(1, int(case.arrays["feed_lens"].sum()))
        self._place = 0
        self.feeds: list[list[str]] = []

    def __call__(self, feed: list[Item], history: list[int] | None, may_end: bool) -> int:
        names = {Kind.SOS: "L0", Kind.TASK: "L1"}
        self.feeds.append([names.get(kind) or f"{'T' if kind is Kind.TEXT else 'S'}{id_}" for kind, id_ in feed])
        self._check_numbers(feed)
        return self._model.cfg.fill_token if history is None else next(self._answers)

    def _check_numbers(self, feed: list[Item]) -> None:
        model, number = self._model, len(self.feeds) - 1
        service = {Kind.SOS: 0, Kind.TASK: 1}
        rows = []
        for kind, id_ in feed:
            if kind in service:
                rows.append(model.llm_embedding.weight[service[kind]])
            else:
                table = model.embed_text if kind is Kind.TEXT else model.embed_speech
                rows.append(table(torch.tensor(id_)))
        places = torch.arange(self._place, self._place + len(feed))[None]
        self._place += len(feed)
        hidden = model(torch.stack(rows)[None], places, self._cache, self._place)[0, -1]
        expected = torch.from_numpy(self._case.arrays["last_hidden"][number])
        assert torch.allclose(hidden, expected, atol=1e-4)


@pytest.mark.golden
@parametrize("name", "bistream_")
@torch.inference_mode()
def test_recorded_interleaving(name: str) -> None:
    case = load_case(name)
    cfg = config_of(case.meta)
    recorder = _Recorder(tiny_model(cfg), case)
    arrays = case.arrays
    prompt_text, prompt_speech = (arrays.get(key, np.zeros(0, int)).tolist() for key in ("prompt_text", "prompt_speech"))
    emitted = list(interleave(arrays["text"].tolist(), prompt_text, prompt_speech, recorder, cfg))
    assert emitted == arrays["emitted"].tolist()
    assert recorder.feeds == case.meta["feeds"]


@pytest.mark.unit
def test_an_end_in_the_middle_is_an_error() -> None:
    cfg = config_of(load_case("llm_zero_shot_a").meta)
    answers = itertools.repeat(cfg.end_of_speech)
    with pytest.raises(EngineError):
        list(interleave(range(10), [], [], lambda feed, history, may_end: next(answers), cfg))

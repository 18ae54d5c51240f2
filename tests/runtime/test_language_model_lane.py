"""The lane: what each job gets, whoever else is there, and that slots come and go cleanly."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from inference.models.language_model import LanguageModel
from inference.runtime.feed import SpeechPrompt
from inference.runtime.generate import SpeechTokenGenerator
from inference.runtime.language_model_lane import LanguageModelLane, SpeechJob
from inference.types import RequestError
from tests.models.language_model_support import prompt, random_model
from tests.runtime.lane_support import (
    Ears,
    MakeRunner,
    blocks,
    buckets,
    drain,
    jobs_of,
    make_lane,
    nano_model,
    products,
    random_prompts,
    recorded,
    speak,
)

every_runner = pytest.mark.parametrize("make", [blocks, buckets, recorded, products])


def by_generator(model: LanguageModel, prompts: Sequence[SpeechPrompt]) -> dict[int, list[int]]:
    generator = SpeechTokenGenerator(model)
    return {key: list(generator.stream(given)) for key, given in enumerate(prompts)}


@every_runner
def test_tokens_are_those_of_the_plain_path(make: MakeRunner) -> None:
    """Jobs of all lengths, more than there are slots, exact ones among them."""
    model = random_model()
    model.llm_decoder.bias[model.cfg.end_of_speech + 1 :] = (
        0.0  # reserved ids that an exact job may well draw
    )
    prompts = random_prompts(20, model)
    ears = speak(make_lane(model, make), {0: jobs_of(prompts)})
    assert ears.tokens == by_generator(model, prompts)
    assert ears.ended == set(range(20)) and not ears.errors


def test_nano_says_what_the_plain_path_says() -> None:
    model = nano_model()
    prompts = random_prompts(5, model, longest=10)
    ears = drain(admitted(make_lane(model, slots=8, context=1024, prefill_tokens=256), prompts))
    assert ears.tokens == by_generator(model, prompts)


def admitted(lane: LanguageModelLane, prompts: Sequence[SpeechPrompt]) -> LanguageModelLane:
    lane.admit(jobs_of(prompts))
    return lane


@pytest.mark.parametrize(
    ("which", "count", "longest"),
    [("random", 60, 30), ("nano", 10, 12), pytest.param("nano", 60, 20, marks=pytest.mark.slow)],
)
def test_company_changes_not_one_bit_on_the_cpu(which: str, count: int, longest: int) -> None:
    """Thousands of tokens, each alone and amid others that come, end and are cancelled: all keys and values equal."""
    model = nano_model() if which == "nano" else random_model(seed=5, layers=4)
    prompts = random_prompts(count, model, seed=3, longest=longest)
    alone, amid = Memory(model), Memory(model)
    for key, given in enumerate(prompts):
        alone.run({0: [SpeechJob(key, given)]})
    arrivals: dict[int, list[SpeechJob]] = {}
    for key, given in enumerate(prompts):
        arrivals.setdefault(7 * (key // 3), []).append(SpeechJob(key, given))
    noise = random_prompts(count, model, seed=4, longest=longest)
    for key, given in enumerate(noise):
        arrivals.setdefault(5 * key, []).append(SpeechJob(1000 + key, given))
    amid.run(arrivals, {5 * key + 40: 1000 + key for key in range(0, count, 2)})
    assert sum(map(len, alone.ears.tokens.values())) > 30 * count
    for key in range(count):
        assert amid.ears.tokens[key] == alone.ears.tokens[key]
        assert torch.equal(amid.kept[key], alone.kept[key])


class Memory:
    """Runs a lane of 11 slots and keeps the keys and values of every job that comes to its end."""

    def __init__(self, model: LanguageModel) -> None:
        self.lane = make_lane(model, slots=11, context=1024, prefill_tokens=48)
        self.kept: dict[int, torch.Tensor] = {}
        self.ears = Ears()
        give = self.lane._give_slot

        def keep(slot: int, used: int) -> None:
            for stream in self.lane._streams.values():
                if stream.slot == slot:
                    # The host learns of an end one step late: the last position may be none of the job's own.
                    self.kept[stream.job.key] = self.lane._runner._cache.data[
                        :, :, slot, :, : used - 1
                    ].clone()
            give(slot, used)

        self.lane._give_slot = keep  # type: ignore[method-assign]

    def run(self, arrivals: dict[int, list[SpeechJob]], cancels: dict[int, int] | None = None) -> None:
        self.ears.tokens.update(speak(self.lane, arrivals, cancels).tokens)


@every_runner
def test_a_long_prompt_stops_nobody(make: MakeRunner) -> None:
    """Taken in 16 symbols at a time, while the running stream gets a token in every step."""
    model = random_model()
    model.llm_decoder.bias[model.cfg.end_of_speech] = -60.0
    running, long = prompt(range(9), seed=1), prompt(range(5), [i % 40 for i in range(200)], seed=2)
    lane = make_lane(model, make, prefill_tokens=16, context=512)
    lane.admit([SpeechJob(0, running)])
    for _ in range(3):
        lane.step()
    lane.admit([SpeechJob(1, long)])
    ears, waited = Ears(), 0
    while 1 not in ears.tokens:
        events = lane.step()
        assert [len(event.tokens) for event in events if event.key == 0] == [1]
        ears.hear(events)
        waited += 1
    assert waited == 13  # of 207 symbols
    drain(lane, ears)
    assert ears.tokens[1] == by_generator(model, [long])[0]


def test_a_crowd_waits_its_turn() -> None:
    """At most `prefill_tokens` symbols are taken in per step."""
    lane = make_lane(random_model(), slots=8, prefill_tokens=32)
    lane.admit(jobs_of([prompt(range(8)) for _ in range(8)]))  # 10 symbols each
    taken = []
    for _ in range(3):
        lane.step()
        taken.append(len(lane._live))
    assert taken == [3, 6, 8]


@every_runner
def test_cancelling_frees_the_slot_at_once(make: MakeRunner) -> None:
    model = random_model()
    prompts = random_prompts(9, model, seed=1)
    lane = make_lane(model, make, slots=3, prefill_tokens=24)
    lane.admit(jobs_of(prompts[:6]))
    ears = Ears()
    for _ in range(3):
        ears.hear(lane.step())
    live = min(stream.job.key for stream in lane._live.values())
    room = lane.room
    for key in (live, 5, 77):  # one that runs, one that waits, one that never was
        lane.cancel(key)
        lane.cancel(key)
    assert (room, lane.room) == (0, 0) and len(lane._free) == 1
    ears.ended |= {live, 5}
    lane.admit([SpeechJob(key, prompts[key]) for key in (6, 7, 8)])
    drain(lane, ears)
    expected = by_generator(model, prompts)
    for key in set(range(9)) - {live, 5}:
        assert ears.tokens[key] == expected[key]
    assert lane.room == 3 and not lane.busy


@every_runner
def test_cancelling_all_leaves_nothing_behind(make: MakeRunner) -> None:
    model = random_model()
    lane = make_lane(model, make, prefill_tokens=8)
    lane.admit(jobs_of(random_prompts(6, model)))
    for _ in range(2):
        lane.step()
    for key in range(6):
        lane.cancel(key)
    assert lane.step() == [] and not lane.busy and lane.room == 4
    again = random_prompts(6, model, seed=9)
    assert drain(admitted(lane, again)).tokens == by_generator(model, again)


@every_runner
def test_what_is_not_finite_ends_one_job_and_soils_no_slot(make: MakeRunner) -> None:
    """Speech id 39 is poison; all slots see it, one after another."""
    model = random_model()
    model.llm_decoder.bias[39] = -60.0
    good = random_prompts(8, model, seed=2)
    good = [SpeechPrompt(p.text, p.prompt_text, p.prompt_speech % 39, p.seed) for p in good]
    bad = [prompt(range(5), [1, 2, 39, 3], seed=seed) for seed in range(8)]
    expected = by_generator(model, good)
    model.speech_embedding.weight[39] = torch.nan
    lane = make_lane(model, make, slots=2)
    ears = Ears()
    for key in range(8):
        lane.admit([SpeechJob(100 + key, bad[key]), SpeechJob(key, good[key])])
        drain(lane, ears)
    assert ears.errors == {100 + key: "non_finite" for key in range(8)}
    assert {key: ears.tokens[key] for key in range(8)} == expected


@every_runner
def test_infinity_that_stays_in_a_cancelled_slot_is_cleared(make: MakeRunner) -> None:
    model = random_model()
    given = [prompt(range(5), range(9), seed=4)]
    lane = make_lane(model, make, slots=1)
    lane.admit([SpeechJob(9, prompt(range(9), range(30)))])
    for _ in range(5):
        lane.step()
    lane._runner._cache.data[:, :, 0, :, : lane._live[0].filled] = torch.inf
    lane.cancel(9)
    assert drain(admitted(lane, given)).tokens == by_generator(model, given)


def test_what_cannot_fit_is_refused_and_nothing_is_taken() -> None:
    lane = make_lane(random_model(), context=40)
    fitting, too_long = prompt(range(4), range(10)), prompt(range(9), range(20))  # 31 and at least 18 more
    with pytest.raises(RequestError) as raised:
        lane.admit([SpeechJob(1, fitting), SpeechJob(2, too_long)])
    assert (raised.value.code, raised.value.details) == ("text_too_long", {"limit": 40, "key": 2})
    assert not lane.busy
    with pytest.raises(RequestError):
        lane.admit([SpeechJob(1, prompt([1], range(37)))])
    lane.admit([SpeechJob(1, prompt([1], range(35)))])
    assert lane.busy


@every_runner
def test_speech_is_cut_where_the_context_ends(make: MakeRunner) -> None:
    model = random_model()
    model.llm_decoder.bias[model.cfg.end_of_speech :] = -60.0
    given = prompt(range(10), range(20))  # 32 symbols, up to 200 tokens
    ears = drain(admitted(make_lane(model, make, context=100), [given]))
    assert ears.tokens[0] == by_generator(model, [given])[0][:68]


@every_runner
def test_the_maximum_and_no_text(make: MakeRunner) -> None:
    model = random_model()
    model.llm_decoder.bias[model.cfg.end_of_speech :] = -60.0
    ears = drain(admitted(make_lane(model, make), [prompt([]), prompt([1]), prompt([2, 3])]))
    assert {key: len(tokens) for key, tokens in ears.tokens.items()} == {0: 0, 1: 20, 2: 40}
    assert ears.ended == {0, 1, 2}


@every_runner
def test_live_rows_move_down(make: MakeRunner) -> None:
    """Of many short jobs and one long one, admitted last, the long one ends up in the first slot, unharmed."""
    model = random_model()
    model.llm_decoder.bias[model.cfg.end_of_speech :] = -60.0
    prompts = [prompt([key], seed=key) for key in range(15)] + [prompt(range(10), range(7), seed=3)]
    lane = make_lane(model, make, slots=16, prefill_tokens=1024)
    ears = Ears()
    lane.admit(jobs_of(prompts))
    ears.hear(lane.step())
    assert sorted(lane._live) == list(range(16))
    while len(ears.ended) < 15:
        ears.hear(lane.step())
    ears.hear(lane.step())
    assert list(lane._live) == [0] or make is blocks and list(lane._live)[0] < 8
    drain(lane, ears)
    assert ears.tokens == by_generator(model, prompts)


def test_room_counts_slots_and_who_waits() -> None:
    lane = make_lane(random_model(), slots=4)
    assert lane.room == 4 and not lane.busy and lane.step() == []
    lane.admit(jobs_of([prompt(range(5), seed=key) for key in range(3)]))
    assert lane.room == 1
    lane.step()
    assert lane.room == 1
    lane.admit([SpeechJob(key, prompt(range(5))) for key in (5, 6, 7)])
    assert lane.room == 0
    drain(lane)
    assert lane.room == 4


def test_a_key_in_use_is_refused() -> None:
    lane = make_lane(random_model())
    lane.admit([SpeechJob(1, prompt(range(5)))])
    with pytest.raises(ValueError, match="in use"):
        lane.admit([SpeechJob(1, prompt(range(5)))])


def test_no_step_is_captured_while_somebody_speaks() -> None:
    lane = make_lane(random_model(), recorded)
    lane.admit([SpeechJob(1, prompt(range(5)))])
    lane._runner._wanted.append(("decode", (1, 256)))
    assert not lane.idle() and len(lane._runner._wanted) == 1


@every_runner
@pytest.mark.parametrize("where", ["forward", "logits"])
def test_a_step_that_failed_can_be_done_again(
    make: MakeRunner, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when memory runs out for a moment, while prompts are taken in or later."""
    model = random_model()
    prompts = random_prompts(11, model)
    lane = make_lane(model, make, slots=11)
    lane.admit(jobs_of(prompts))
    fused, ears, count = lane._runner._model, Ears(), 0
    plain = getattr(fused, where)

    def fail_now_and_then(*arguments: object) -> torch.Tensor:
        nonlocal count
        count += 1
        if count % 7 == 1:
            raise RuntimeError("CUDA out of memory.")
        return plain(*arguments)

    monkeypatch.setattr(fused, where, fail_now_and_then)
    while lane.busy:
        try:
            ears.hear(lane.step())
        except RuntimeError:
            continue
    monkeypatch.undo()
    assert count > 20
    assert ears.tokens == by_generator(model, prompts)


def test_memory_is_what_slots_and_context_cost() -> None:
    model = random_model()
    small, large = (make_lane(model, buckets, slots=slots, context=1024).memory_bytes() for slots in (4, 8))
    per_slot = 2 * model.cfg.num_layers * model.cfg.num_kv_heads * model.cfg.head_dim * 1024 * 4
    assert large - small == pytest.approx(4 * per_slot, rel=0.01)


# ------------------------------------------------------------------------------------------------------ CUDA
def crowd(model: LanguageModel, make: MakeRunner, slots: int) -> Ears:
    """150 jobs that come over time, a third of them cancelled: when is a matter of time, so these are left out."""
    prompts = random_prompts(150, model, seed=6, longest=30)
    arrivals: dict[int, list[SpeechJob]] = {}
    for key, given in enumerate(prompts):
        arrivals.setdefault(key // 3, []).append(SpeechJob(key, given))
    cancels = {key // 3 + 4 + key % 7: key for key in range(0, 150, 3)}
    ears = speak(make_lane(model, make, slots=slots, context=1024, prefill_tokens=256), arrivals, cancels)
    for key in cancels.values():
        ears.tokens.pop(key, None)
    return ears


@pytest.mark.gpu
def test_captured_steps_say_what_plain_ones_say(cuda: torch.device) -> None:
    model = random_model(layers=4).to(cuda)
    expected = crowd(model, buckets, 64)
    found = crowd(model, recorded, 64)
    assert found.tokens == expected.tokens and not found.errors
    assert len(found.tokens) == 100


@pytest.mark.gpu
def test_cuda_says_what_the_plain_path_says(cuda: torch.device) -> None:
    """float32; a rounding error can flip a draw once in a long while, not in these short runs."""
    model = random_model().to(cuda)
    prompts = random_prompts(64, model)
    ears = drain(admitted(make_lane(model, recorded, slots=64, prefill_tokens=512), prompts))
    assert ears.tokens == by_generator(model, prompts)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
@pytest.mark.parametrize("make", [recorded, products])
def test_half_precision_repeats_itself(make: MakeRunner, dtype: torch.dtype, cuda: torch.device) -> None:
    model = random_model(layers=4).to(cuda, dtype)
    first, second = (crowd(model, make, 64) for _ in range(2))
    assert first.tokens == second.tokens and not first.errors


@pytest.mark.gpu
def test_a_step_does_not_wait_for_the_device(cuda: torch.device) -> None:
    """Torch raises where an operation waits; only reading ids, through an event, may."""
    lane = make_lane(random_model().to(cuda), recorded, slots=8)
    lane.admit(jobs_of([prompt(range(9), seed=key) for key in range(8)]))
    lane.step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(5):
            lane.step()
        lane.cancel(3)
        lane.admit([SpeechJob(20, prompt(range(4), np.arange(30)))])
        lane.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    drain(lane)

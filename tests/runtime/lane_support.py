"""Lanes of every kind for the tests, and driving them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from inference.checkpoint import load_folder
from inference.models.language_model import LanguageModel
from inference.runtime.block_runner import BlockRunner
from inference.runtime.bucket_runner import BucketRunner
from inference.runtime.feed import SpeechPrompt
from inference.runtime.language_model_lane import LanguageModelLane, SpeechEvent, SpeechJob
from inference.runtime.slot_runner import SlotRunner
from inference.settings import LaneSettings

NANO = Path(__file__).parents[2] / "assets" / "nano"
MakeRunner = Callable[[LanguageModel, LaneSettings], SlotRunner]


def blocks(model: LanguageModel, settings: LaneSettings) -> SlotRunner:
    """What the CPU uses."""
    return BlockRunner(model, settings.slots, settings.context, settings.prefill_tokens)


def buckets(model: LanguageModel, settings: LaneSettings) -> SlotRunner:
    """What CUDA uses without graphs; runs on the CPU too."""
    return BucketRunner(model, settings.slots, settings.context, settings.prefill_tokens, graphs=False)


def recorded(model: LanguageModel, settings: LaneSettings) -> SlotRunner:
    """With captured steps, for which a CPU just calls the step again."""
    return BucketRunner(model, settings.slots, settings.context, settings.prefill_tokens)


def products(model: LanguageModel, settings: LaneSettings) -> SlotRunner:
    """With attention by matrix products."""
    return BucketRunner(
        model, settings.slots, settings.context, settings.prefill_tokens, graphs=False, product=True
    )


def make_lane(
    model: LanguageModel,
    make: MakeRunner = blocks,
    slots: int = 4,
    context: int = 256,
    prefill_tokens: int = 64,
    seconds: float = 30.0,
) -> LanguageModelLane:
    settings = LaneSettings(slots=slots, context=context, prefill_tokens=prefill_tokens)
    lane = LanguageModelLane(model, settings, make(model, settings))
    lane.warm_up(seconds)
    return lane


def jobs_of(prompts: Iterable[SpeechPrompt]) -> list[SpeechJob]:
    return [SpeechJob(key, prompt) for key, prompt in enumerate(prompts)]


class Ears:
    """Collects what a lane says and checks that it makes sense."""

    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = {}
        self.errors: dict[int, str] = {}
        self.ended: set[int] = set()

    def hear(self, events: Iterable[SpeechEvent]) -> None:
        for event in events:
            assert event.key not in self.ended
            assert event.tokens or event.ended
            self.tokens.setdefault(event.key, []).extend(event.tokens)
            if event.ended:
                self.ended.add(event.key)
            if event.error is not None:
                assert event.ended
                self.errors[event.key] = event.error.code


def drain(lane: LanguageModelLane, ears: Ears | None = None, most: int = 20000) -> Ears:
    """Step until nothing is left."""
    ears = ears or Ears()
    for _ in range(most):
        if not lane.busy:
            return ears
        ears.hear(lane.step())
    raise AssertionError("the lane does not come to an end")


def speak(
    lane: LanguageModelLane,
    arrivals: Mapping[int, Sequence[SpeechJob]],
    cancels: Mapping[int, int] | None = None,
) -> Ears:
    """Admit jobs and cancel keys at given steps, then go on to the end."""
    ears = Ears()
    for step in range(max(*arrivals, *(cancels or {}), 0) + 1):
        lane.admit(arrivals.get(step, ()))
        if cancels and step in cancels:
            lane.cancel(cancels[step])
            ears.ended.add(cancels[step])  # nothing more may be heard of it
        ears.hear(lane.step())
    return drain(lane, ears)


def random_prompts(count: int, model: LanguageModel, seed: int = 0, longest: int = 12) -> list[SpeechPrompt]:
    """Prompts of many lengths, some of them exact."""
    stream = np.random.default_rng(seed)

    def ids(most: int, below: int) -> np.ndarray:
        return stream.integers(0, below, stream.integers(0, most + 1)).astype(np.int32)

    cfg = model.cfg
    prompts = []
    for number in range(count):
        text = stream.integers(0, cfg.vocab_size, stream.integers(1, longest + 1)).astype(np.int32)
        prompts.append(
            SpeechPrompt(
                text,
                ids(longest, cfg.vocab_size),
                ids(3 * longest, cfg.speech_token_size),
                seed=int(stream.integers(0, 2**62)),
                exact=number % 4 == 3,
            )
        )
    return prompts


def nano_model() -> LanguageModel:
    torch.set_num_threads(1)
    return load_folder(NANO).language_model

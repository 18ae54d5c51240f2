"""Small models and inputs for the tests of the token-to-wave lane."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch

from inference.frontend.prompt import ModelInput
from inference.models.config import VocoderConfig
from inference.models.flow import FlowModel
from inference.models.vocoder import Vocoder
from inference.runtime.clock import Clock
from inference.runtime.schedule import ChunkCall, ChunkSchedule
from inference.runtime.token_to_wave import TokenToWave
from inference.runtime.wave_lane import WaveItem, WaveLane, WaveResult, WaveStream
from inference.settings import LaneSettings
from inference.types import Int16Audio
from tests.models.flow_support import random_flow

SETTINGS = LaneSettings(max_batch=8, max_batch_frames=4096, threads=2)


@lru_cache(maxsize=1)
def quiet_vocoder() -> Vocoder:
    """Random weights, but one pitch and no overload: rounding errors stay as small as they are."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        vocoder = Vocoder(VocoderConfig(base_channels=32, f0_channels=16)).eval()
        vocoder.f0_predictor.classifier.weight.data.zero_()
        vocoder.f0_predictor.classifier.bias.data.fill_(150.0)
        vocoder.conv_post.weight.data.mul_(0.2)
        vocoder.conv_post.bias.data[: vocoder.fourier.bins] -= 2.0
    return vocoder


def model_input(prompt: int, seed: int = 0, frames: int | None = None) -> ModelInput:
    """A voice of `prompt` tokens, by default with two mel frames each."""
    random = np.random.default_rng(seed)
    nothing = np.zeros(0, dtype=np.int32)
    count = 2 * prompt if frames is None else frames
    return ModelInput(
        text_ids=nothing,
        prompt_text_ids=nothing,
        llm_prompt_tokens=nothing,
        flow_prompt_tokens=random.integers(0, 6561, prompt).astype(np.int32),
        prompt_mel=(random.standard_normal((count, 80)) - 5).astype(np.float32),
        speaker=random.standard_normal(192).astype(np.float32),
        min_tokens=0,
        max_tokens=1000,
    )


def make_tokens(count: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed + 100).integers(0, 6561, count).tolist())


class Speaker:
    """One segment: its input and tokens, and the chunks in which a listener gets it (or all at once)."""

    def __init__(
        self,
        tokens: int,
        prompt: int,
        *,
        whole: bool = False,
        speed: float = 1.0,
        seed: int = 0,
        exact: bool = False,
    ) -> None:
        self.input = model_input(prompt, seed)
        self.tokens = make_tokens(tokens, seed)
        self.speed, self.seed, self.exact = speed, seed, exact
        self.calls: list[ChunkCall | None] = [None] if whole else list(chunk_calls(tokens, prompt))

    def open(self, lane: WaveLane) -> WaveStream:
        return lane.open(self.input, seed=self.seed, speed=self.speed, exact=self.exact)

    def alone(self, flow: FlowModel | None = None, vocoder: Vocoder | None = None) -> list[Int16Audio]:
        """What the plain way makes of each piece."""
        models = TokenToWave(flow or random_flow(), vocoder or quiet_vocoder(), 0)
        sound = models.begin(self.input, seed=self.seed, speed=self.speed, exact=self.exact, clock=Clock())
        return [
            sound.whole(self.tokens) if call is None else sound.chunk(call, self.tokens[: call.token_count])
            for call in self.calls
        ]


def chunk_calls(tokens: int, prompt: int) -> list[ChunkCall]:
    """The calls of a stream whose tokens come one by one."""
    schedule, calls = ChunkSchedule(prompt, 3), []
    for ready in range(1, tokens + 1):
        if call := schedule.next_call(ready, finished=False):
            calls.append(call)
    while call := schedule.next_call(tokens, finished=True):
        calls.append(call)
    return calls


def speak_together(lane: WaveLane, speakers: Sequence[Speaker]) -> list[list[WaveResult]]:
    """Round for round, the next piece of each speaker in one batch; the results of each speaker."""
    streams = [speaker.open(lane) for speaker in speakers]
    found: list[list[WaveResult]] = [[] for _ in speakers]
    for number in range(max(len(speaker.calls) for speaker in speakers)):
        items = []
        for key, (speaker, stream) in enumerate(zip(speakers, streams)):
            if number < len(speaker.calls):
                call = speaker.calls[number]
                tokens = speaker.tokens if call is None else speaker.tokens[: call.token_count]
                items.append(WaveItem(key, stream, tokens, call))
        results = lane.run(items)
        assert [result.key for result in results] == [item.key for item in items]
        for result in results:
            found[result.key].append(result)
    for stream in streams:
        lane.close(stream)
    return found


def make_lane(
    *, batched: bool, flow: FlowModel | None = None, vocoder: Vocoder | None = None, **changes: object
) -> WaveLane:
    settings = replace(SETTINGS, **changes)  # type: ignore[arg-type]
    return WaveLane(flow or random_flow(), vocoder or quiet_vocoder(), settings, batched=batched)


def own_flow() -> FlowModel:
    """A flow model that a test may spoil."""
    return copy.deepcopy(random_flow())


def samples(results: Sequence[WaveResult]) -> Int16Audio:
    """All sound of one speaker; fails where there is an error."""
    for result in results:
        assert result.error is None, result.error
    return np.concatenate([result.pcm for result in results if result.pcm is not None])

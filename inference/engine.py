"""One request at a time, from text and a reference clip to sound: the plain path that everything else builds on."""

from __future__ import annotations

import copy
import logging
from collections.abc import Generator, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

import torch

from inference.frontend.lexicon import read_lexicon
from inference.frontend.prompt import ModelInput
from inference.frontend.requests import SegmentInput
from inference.loading import load_models
from inference.runtime.clock import Clock
from inference.runtime.feed import SpeechPrompt
from inference.runtime.generate import SpeechTokenGenerator
from inference.runtime.schedule import ChunkSchedule
from inference.runtime.token_to_wave import SegmentSound, TokenToWave
from inference.runtime.uniforms import derive_seed
from inference.types import AudioChunk, EngineError, Int16Audio, Reference, SynthesisRequest, Voice
from inference.validate import validate

logger = logging.getLogger(__name__)


class CosyVoice:
    """A loaded model folder that speaks.

    Requests share nothing but the weights and the cache of prepared voices, so threads may use one object; their
    work just is not batched.

    `device`: "auto", "cpu", "cuda" or "cuda:N"; `precision`: "auto", "fp32", "fp16" or "bf16" (half precision on CUDA
    only, given up for a module that fails its self-test); `threads`: CPU threads of the ONNX networks; `lexicon`: a
    file with the user's readings of words (see `inference.frontend.lexicon`); `vocoder_backend` and `flow_backend`:
    see `inference.runtime.backends`.
    Raises `CheckpointError` for an unusable folder and `RequestError` for an unknown device, precision or backend and
    an unusable lexicon.
    """

    def __init__(
        self,
        model_dir: str | Path,
        device: str = "auto",
        precision: str = "auto",
        threads: int = 1,
        lexicon: str | Path | None = None,
        vocoder_backend: str = "auto",
        flow_backend: str = "auto",
    ) -> None:
        words = None if lexicon is None else read_lexicon(Path(lexicon))
        models = load_models(model_dir, device, precision, threads, words, vocoder_backend, flow_backend)
        self.device = models.device
        self.config = models.config
        self.sample_rate = models.config.sample_rate
        self._presets = models.presets
        self._front_end = models.front_end
        self._language_model = models.language_model
        self._to_wave = TokenToWave(models.flow, models.vocoder)

    @property
    def presets(self) -> list[str]:
        """Names of the preset speakers in the model folder."""
        return self._front_end.presets

    def prepare_voice(self, reference: Reference, exact: bool = False) -> Voice:
        """A clip's `Voice`, to be used in many requests. Raises `RequestError` for an unusable clip."""
        return self._front_end.voices.prepare(reference, exact)

    def synthesize(self, request: SynthesisRequest) -> Generator[AudioChunk, None, None]:
        """Speak: chunks in order, the last one marked `final`. Closing the iterator stops the work.

        With `request.stream` a chunk comes as soon as it is made, otherwise one per text segment.
        Raises `RequestError` at once for input that cannot be used. Iterating raises `EngineError`: no_sound,
        non_finite, out_of_memory and what the models raise.
        """
        validate(request)
        clock = Clock()
        with clock.measure("front_end"):
            segments = self.model_inputs(request)
        return self._speak(request, segments, clock)

    def model_inputs(self, request: SynthesisRequest) -> list[SegmentInput]:
        """What the models get for each segment of a valid request; never empty. Raises `RequestError`."""
        return self._front_end.segments(request)

    # ------------------------------------------------------------------------------------------- segments
    def _speak(
        self, request: SynthesisRequest, segments: list[SegmentInput], clock: Clock
    ) -> Generator[AudioChunk, None, None]:
        index = 0
        for number, segment in enumerate(segments):
            last_segment = number == len(segments) - 1
            seed = derive_seed(request.seed, number)
            try:
                for pcm, last in self._segment(request, segment, seed, clock):
                    if len(pcm) or last:
                        final = last and last_segment
                        yield AudioChunk(
                            pcm, self.sample_rate, index, segment.text, final, clock.timings(), number
                        )
                        index += 1
            except torch.OutOfMemoryError as error:
                raise EngineError(
                    "out_of_memory",
                    "The device has too little free memory for this request; shorten it or try again later.",
                ) from error

    def _segment(
        self, request: SynthesisRequest, segment: SegmentInput, seed: int, clock: Clock
    ) -> Iterator[tuple[Int16Audio, bool]]:
        """(PCM, is it the segment's last) of one segment."""
        sound = self._to_wave.begin(
            segment.model_input, seed=seed, speed=request.speed, exact=request.exact, clock=clock
        )
        if segment.tokens is None:
            source = self._draw(segment.model_input, seed, request.exact)
        else:
            source = _all(segment.tokens)
        with closing(source), closing(sound):
            tokens = clock.pass_on(source)
            if request.stream:
                prompt_length = len(segment.model_input.flow_prompt_tokens)
                schedule = ChunkSchedule(prompt_length, self.config.flow.pre_lookahead)
                yield from _in_chunks(sound, tokens, schedule)
            else:
                yield sound.whole(_some(list(tokens))), True

    def _draw(self, model_input: ModelInput, seed: int, exact: bool) -> Generator[int, None, None]:
        """Speech tokens. A half-precision model whose output is not finite gives way to float32 for good."""
        prompt = SpeechPrompt(
            model_input.text_ids,
            model_input.prompt_text_ids,
            model_input.llm_prompt_tokens,
            seed,
            exact,
        )
        model, drawn = self._language_model, 0
        try:
            for token in SpeechTokenGenerator(model).stream(prompt):
                drawn += 1
                yield token
            return
        except EngineError as error:
            if error.code != "non_finite" or model.dtype == torch.float32:
                raise
        logger.warning("The language model overflowed in half precision; it runs in float32 from now on.")
        self._language_model = copy.deepcopy(model).float()
        # The same randomness draws nearly the same tokens: go on behind those that were given.
        yield from islice(SpeechTokenGenerator(self._language_model).stream(prompt), drawn, None)


def _in_chunks(
    sound: SegmentSound, source: Iterator[int], schedule: ChunkSchedule
) -> Iterator[tuple[Int16Audio, bool]]:
    """(PCM, is it the last) as soon as the tokens for it are there (SPEC 7.2)."""
    tokens: list[int] = []
    for token in source:
        tokens.append(token)
        if call := schedule.next_call(len(tokens), finished=False):
            yield sound.chunk(call, tokens), False
    _some(tokens)
    while call := schedule.next_call(len(tokens), finished=True):
        yield sound.chunk(call, tokens), call.final


def _all(tokens: list[int]) -> Generator[int, None, None]:
    yield from tokens


def _some(tokens: list[int]) -> list[int]:
    if not tokens:
        raise EngineError("no_sound", "The model produced no sound; try again with another seed.")
    return tokens

"""One request at a time, from text and a reference clip to sound: the plain path that everything else builds on."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from inference.checkpoint import ModelFolder, load_folder
from inference.frontend.prompt import (
    ModelInput,
    clone_input,
    convert_input,
    cross_lingual_input,
    instruct_input,
    preset_input,
)
from inference.frontend.text import Segment, prepare_text
from inference.frontend.tokenizer import TextTokenizer
from inference.frontend.voice import VoicePreparer
from inference.models.flow import FlowModel
from inference.models.language_model import LanguageModel
from inference.runtime.feed import SpeechPrompt, pad_feeds
from inference.runtime.generate import SpeechTokenGenerator
from inference.runtime.precision import choose_device, choose_dtype, with_precision
from inference.runtime.schedule import ChunkSchedule
from inference.runtime.token_to_wave import SegmentSound, TokenToWave
from inference.runtime.uniforms import derive_seed
from inference.types import (
    AudioChunk,
    EngineError,
    Int16Audio,
    Mode,
    Reference,
    RequestError,
    SynthesisRequest,
    Timings,
    Voice,
)
from inference.validate import validate

logger = logging.getLogger(__name__)


@dataclass
class Clock:
    """Seconds spent on one request, by stage."""

    started: float = field(default_factory=time.perf_counter)
    front_end: float = 0.0
    language_model: float = 0.0
    flow: float = 0.0
    vocoder: float = 0.0
    first_audio: float = 0.0

    def timings(self) -> Timings:
        total = time.perf_counter() - self.started
        self.first_audio = self.first_audio or total
        return Timings(
            self.front_end, self.language_model, self.flow, self.vocoder, self.first_audio, total
        )


class CosyVoice:
    """A loaded model folder that speaks. Not safe to share between threads; see `inference.pool` for serving many.

    `device`: "auto", "cpu", "cuda" or "cuda:N"; `precision`: "auto", "fp32", "fp16" or "bf16" (half precision on CUDA
    only, given up for a module that fails its self-test); `threads`: CPU threads of the ONNX networks.
    Raises `CheckpointError` for an unusable folder and `RequestError` for an unknown device or precision.
    """

    def __init__(
        self, model_dir: str | Path, device: str = "auto", precision: str = "auto", threads: int = 1
    ) -> None:
        self.device = choose_device(device)
        dtype = choose_dtype(precision, self.device)
        folder: ModelFolder = load_folder(Path(model_dir), device=str(self.device))
        self.config = folder.config
        self.sample_rate = folder.config.sample_rate
        self._presets = folder.presets
        self._tokenizer = TextTokenizer(folder.text_tokenizer)
        self._voices = VoicePreparer(
            folder.speaker_encoder, folder.speech_tokenizer, threads=threads, device=str(self.device)
        )
        language_model = with_precision(
            folder.language_model, dtype, _probe_language_model, "language model"
        )
        self._generator = SpeechTokenGenerator(language_model)
        flow = with_precision(folder.flow, dtype, _probe_flow, "flow model")
        self._to_wave = TokenToWave(flow, folder.vocoder)

    @property
    def presets(self) -> list[str]:
        """Names of the preset speakers in the model folder."""
        return sorted(self._presets)

    def prepare_voice(self, reference: Reference, exact: bool = False) -> Voice:
        """A clip's `Voice`, to be used in many requests. Raises `RequestError` for an unusable clip."""
        return self._voices.prepare(reference, exact)

    def synthesize(self, request: SynthesisRequest) -> Iterator[AudioChunk]:
        """Speak: chunks in order, the last one marked `final`. Closing the iterator stops the work.

        With `request.stream` a chunk comes as soon as it is made, otherwise one per text segment.
        Raises `RequestError` before any sound for input that cannot be used, `EngineError` if the model fails.
        """
        validate(request)
        clock = Clock()
        segments = self._inputs(request)
        clock.front_end = time.perf_counter() - clock.started
        index = 0
        for number, (text, model_input, tokens) in enumerate(segments):
            last_segment = number == len(segments) - 1
            seed = derive_seed(request.seed, number)
            for pcm, last in self._segment(request, model_input, tokens, seed, clock):
                if len(pcm) or last:
                    yield AudioChunk(
                        pcm, self.sample_rate, index, text, last and last_segment, clock.timings()
                    )
                    index += 1

    # ------------------------------------------------------------------------------------------ front end
    def _inputs(self, request: SynthesisRequest) -> list[tuple[str, ModelInput, list[int] | None]]:
        """(text, model input, given speech tokens or None) of every segment."""
        if request.mode is Mode.CONVERT:
            voice = self._voice(request, untrimmed=request.exact)
            assert request.source is not None  # `validate` has seen to it
            tokens = self._voices.source_tokens(request.source, request.exact)
            return [("", convert_input(tokens, voice), tokens.tolist())]
        segments = prepare_text(
            request.text, self._tokenizer, language=request.language, exact=request.exact
        )
        voice = None if request.mode is Mode.PRESET else self._voice(request)
        return [(segment.text, self._model_input(request, segment, voice), None) for segment in segments]

    def _voice(self, request: SynthesisRequest, untrimmed: bool = False) -> Voice:
        if isinstance(request.voice, Voice):
            return request.voice
        assert isinstance(request.voice, Reference)
        return self._voices.prepare(request.voice, request.exact, untrimmed)

    def _model_input(self, request: SynthesisRequest, segment: Segment, voice: Voice | None) -> ModelInput:
        if voice is None:
            name = str(request.voice)
            if name not in self._presets:
                known = ", ".join(self.presets) or "none"
                raise RequestError(
                    "preset_unknown", f"There is no preset speaker {name!r}; there are: {known}.", known=known
                )
            return preset_input(segment.text, self._presets[name], self._tokenizer)
        if request.mode is Mode.INSTRUCT:
            return instruct_input(segment.text, request.instruction, voice, self._tokenizer)
        if request.mode is Mode.CLONE:
            return clone_input(segment.text, voice, self._tokenizer, exact=request.exact)
        return cross_lingual_input(segment.text, voice, self._tokenizer)

    # ------------------------------------------------------------------------------------------- segments
    def _segment(
        self,
        request: SynthesisRequest,
        model_input: ModelInput,
        given: list[int] | None,
        seed: int,
        clock: Clock,
    ) -> Iterator[tuple[Int16Audio, bool]]:
        """(PCM, is it the segment's last) for one segment."""
        sound = self._to_wave.begin(model_input, seed=seed, speed=request.speed, exact=request.exact)
        source = iter(given) if given is not None else self._generator.stream(_prompt(model_input, seed))
        if not request.stream:
            tokens = list(_timed(source, clock))
            _require_tokens(tokens)
            yield self._finish(sound.whole(tokens), sound, clock), True
            return
        lookahead = self.config.flow.pre_lookahead
        schedule = ChunkSchedule(len(model_input.flow_prompt_tokens), lookahead)
        tokens = []
        for token in _timed(source, clock):
            tokens.append(token)
            if call := schedule.next_call(len(tokens), finished=False):
                yield self._finish(sound.chunk(call, tokens), sound, clock), False
        _require_tokens(tokens)
        while call := schedule.next_call(len(tokens), finished=True):
            yield self._finish(sound.chunk(call, tokens), sound, clock), call.final

    def _finish(self, pcm: Int16Audio, sound: SegmentSound, clock: Clock) -> Int16Audio:
        clock.flow += sound.take_flow_seconds()
        clock.vocoder += sound.take_vocoder_seconds()
        return pcm


def _prompt(model_input: ModelInput, seed: int) -> SpeechPrompt:
    return SpeechPrompt(
        model_input.text_ids, model_input.prompt_text_ids, model_input.llm_prompt_tokens, seed
    )


def _timed(source: Iterator[int], clock: Clock) -> Iterator[int]:
    """Pass the tokens on, adding the time they took to make to the clock."""
    while True:
        begun = time.perf_counter()
        token = next(source, None)
        clock.language_model += time.perf_counter() - begun
        if token is None:
            return
        yield token


def _require_tokens(tokens: list[int]) -> None:
    if not tokens:
        raise EngineError("no_sound", "The model produced no sound; try again with another seed.")


def _probe_language_model(model: LanguageModel) -> Tensor:
    """Logits of a fixed prompt, for the precision self-test."""
    text = np.arange(11, 40, dtype=np.int32) % model.cfg.vocab_size
    speech = np.arange(0, 6000, 97, dtype=np.int32) % model.cfg.speech_token_size
    kinds, ids, _ = pad_feeds([SpeechPrompt(text, text[:0], speech).feed()], model.device)
    return model.logits(model(model.embed(kinds, ids)))


def _probe_flow(model: FlowModel) -> Tensor:
    """Mel of fixed tokens, for the precision self-test."""
    device = model.encoder_proj.weight.device
    tokens = (torch.arange(40, device=device) * 97 % model.cfg.vocab_size)[None]
    prompt_mel = torch.linspace(-8.0, 0.0, 40 * model.cfg.mel_bins, device=device).view(1, 40, -1)
    lengths = (torch.tensor([40]), torch.tensor([20]), torch.tensor([40]))
    speaker = torch.linspace(-1.0, 1.0, model.cfg.speaker_dim, device=device)[None]
    mel, _ = model.inference(
        tokens, lengths[0], tokens[:, :20], lengths[1], prompt_mel, lengths[2], speaker,
        streaming=False, finalize=True,
    )  # fmt: skip
    return mel

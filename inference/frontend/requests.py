"""From a request to what the models get for each of its segments; shared by the plain engine and the pool."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inference.frontend.lexicon import Lexicon
from inference.frontend.prompt import (
    ModelInput,
    clone_input,
    convert_input,
    cross_lingual_input,
    instruct_input,
    preset_input,
)
from inference.frontend.text import prepare_text
from inference.frontend.tokenizer import TextTokenizer
from inference.frontend.voice import VoicePreparer
from inference.types import Mode, Reference, SynthesisRequest, Voice
from inference.validate import preset_unknown, reference_missing, source_missing


@dataclass(frozen=True)
class SegmentInput:
    """One segment, ready for the models. `tokens` are given in voice conversion, else to be drawn."""

    text: str
    model_input: ModelInput
    tokens: list[int] | None = None


class RequestFrontEnd:
    """Text and sound processing of one model folder. Safe to share between threads.

    `presets`: name → entry of `spk2info.pt`; read at every request, so entries may be added.
    """

    def __init__(
        self,
        tokenizer: TextTokenizer,
        voices: VoicePreparer,
        presets: Mapping[str, Mapping[str, Any]],
        lexicon: Lexicon | None = None,
    ) -> None:
        self.voices = voices
        self._lexicon = lexicon
        self._tokenizer = tokenizer
        self._presets = presets
        # Work on text is Python only: several threads at it are no faster, but keep the others from the interpreter.
        self._text_turn = threading.Lock()

    @property
    def presets(self) -> list[str]:
        """Names of the preset speakers."""
        return sorted(self._presets)

    def segments(self, request: SynthesisRequest) -> list[SegmentInput]:
        """What the models get for each segment of a valid request; never empty. Raises `RequestError`."""
        if request.mode == Mode.CONVERT:
            if request.source is None:
                raise source_missing()
            voice = self._voice(request, untrimmed=request.exact)
            tokens = self.voices.source_tokens(request.source, request.exact)
            return [SegmentInput("", convert_input(tokens, voice), tokens.tolist())]
        # The text first: it is quickly judged, a long clip is not.
        with self._text_turn:
            texts = self._texts(request)
        if request.mode == Mode.PRESET:
            entry = self._preset(request.voice)
            return [SegmentInput(text, preset_input(text, entry, self._tokenizer)) for text in texts]
        voice = self._voice(request)
        with self._text_turn:
            return [SegmentInput(text, self._with_voice(request, text, voice)) for text in texts]

    def _texts(self, request: SynthesisRequest) -> list[str]:
        segments = prepare_text(
            request.text,
            self._tokenizer,
            language=request.language,
            exact=request.exact,
            lexicon=self._lexicon,
        )
        return [segment.text for segment in segments]

    def _preset(self, name: object) -> Mapping[str, Any]:
        if isinstance(name, str) and name in self._presets:
            return self._presets[name]
        raise preset_unknown(name, self._presets)

    def _voice(self, request: SynthesisRequest, untrimmed: bool = False) -> Voice:
        if isinstance(request.voice, Voice):
            return request.voice
        if not isinstance(request.voice, Reference):
            raise reference_missing()
        return self.voices.prepare(request.voice, request.exact, untrimmed)

    def _with_voice(self, request: SynthesisRequest, text: str, voice: Voice) -> ModelInput:
        if request.mode == Mode.INSTRUCT:
            return instruct_input(text, request.instruction, voice, self._tokenizer, exact=request.exact)
        if request.mode == Mode.CLONE:
            return clone_input(text, voice, self._tokenizer, exact=request.exact)
        return cross_lingual_input(text, voice, self._tokenizer)

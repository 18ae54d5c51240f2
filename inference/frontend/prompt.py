"""What each mode gives to the models (SPEC 2.7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from inference.frontend.clean import without_control_tokens
from inference.frontend.text import normalise_prompt
from inference.frontend.tokenizer import END_OF_PROMPT, TextTokenizer
from inference.types import CheckpointError, FloatAudio, Voice

Ids = npt.NDArray[np.int32]

MEL_BINS = 80
_MIN_SPEECH_PER_TEXT, _MAX_SPEECH_PER_TEXT = 2, 20


@dataclass(frozen=True)
class ModelInput:
    """Everything the models need for one segment."""

    text_ids: Ids  # (L,)
    prompt_text_ids: Ids  # (n,), said or instructed before the text
    llm_prompt_tokens: Ids  # (P,) or (0,)
    flow_prompt_tokens: Ids  # (P,) or (0,)
    prompt_mel: FloatAudio  # (F, 80) natural-log mel
    speaker: FloatAudio  # (192,)
    min_tokens: int
    max_tokens: int


def clone_input(
    segment_text: str, voice: Voice, tokenizer: TextTokenizer, exact: bool = False, language: str = "auto"
) -> ModelInput:
    """The voice goes on speaking; without a transcript the cross-lingual form is all that can be done."""
    transcript = normalise_prompt(voice.transcript, language=language, exact=exact)
    if not transcript.strip():
        return cross_lingual_input(segment_text, voice, tokenizer)
    prompt = tokenizer.encode(transcript)
    return _from_voice(segment_text, voice, tokenizer, prompt, voice.speech_tokens)


def cross_lingual_input(segment_text: str, voice: Voice, tokenizer: TextTokenizer) -> ModelInput:
    """The language model hears nothing of the clip, so that its language and wording have no say."""
    return _from_voice(segment_text, voice, tokenizer, [], voice.speech_tokens[:0])


def instruct_input(
    segment_text: str, instruction: str, voice: Voice, tokenizer: TextTokenizer, exact: bool = False
) -> ModelInput:
    """The instruction, closed by exactly one end-of-prompt mark, stands before the text.

    `exact` only adds the mark where it is missing, and otherwise leaves the instruction as it is.
    """
    if exact:
        closed = instruction if END_OF_PROMPT in instruction else instruction + END_OF_PROMPT
    else:
        closed = without_control_tokens(instruction).strip() + END_OF_PROMPT
    return _from_voice(segment_text, voice, tokenizer, tokenizer.encode(closed), voice.speech_tokens[:0])


def preset_input(segment_text: str, entry: Mapping[str, Any], tokenizer: TextTokenizer) -> ModelInput:
    """A speaker of `spk2info.pt`: a trained one (`embedding`) or a stored clip (`flow_embedding`) (SPEC 1.4).

    Raises CheckpointError("preset_unusable").
    """
    if "embedding" in entry:
        return _build(
            tokenizer.encode(segment_text), [], [], [], np.zeros((0, MEL_BINS)), _vector(entry["embedding"])
        )
    if "flow_embedding" not in entry:
        raise CheckpointError("preset_unusable", "The preset speaker has no speaker vector in spk2info.pt.")
    mel = _array(entry.get("prompt_speech_feat"), np.zeros((0, MEL_BINS))).reshape(-1, MEL_BINS)
    return _build(
        tokenizer.encode(segment_text),
        _stored_ids(entry, "prompt_text"),
        _stored_ids(entry, "llm_prompt_speech_token"),
        _stored_ids(entry, "flow_prompt_speech_token"),
        mel,
        _vector(entry["flow_embedding"]),
    )


def convert_input(source_tokens: Ids, voice: Voice) -> ModelInput:
    """Voice conversion: no text; exactly the source's speech tokens are to be spoken."""
    count = len(source_tokens)
    empty = voice.speech_tokens[:0]
    return _build([], [], empty, voice.speech_tokens, voice.mel, voice.speaker, bounds=(count, count))


def _from_voice(
    text: str, voice: Voice, tokenizer: TextTokenizer, prompt: Sequence[int], llm_prompt: Ids
) -> ModelInput:
    return _build(tokenizer.encode(text), prompt, llm_prompt, voice.speech_tokens, voice.mel, voice.speaker)


def _build(
    text: Sequence[int],
    prompt_text: Sequence[int] | Ids,
    llm_prompt: Sequence[int] | Ids,
    flow_prompt: Sequence[int] | Ids,
    mel: npt.NDArray[Any],
    speaker: npt.NDArray[Any],
    bounds: tuple[int, int] | None = None,
) -> ModelInput:
    least, most = bounds or (int(_MIN_SPEECH_PER_TEXT * len(text)), int(_MAX_SPEECH_PER_TEXT * len(text)))
    return ModelInput(
        text_ids=_ids(text),
        prompt_text_ids=_ids(prompt_text),
        llm_prompt_tokens=_ids(llm_prompt),
        flow_prompt_tokens=_ids(flow_prompt),
        prompt_mel=np.ascontiguousarray(mel, dtype=np.float32),
        speaker=np.ascontiguousarray(speaker, dtype=np.float32),
        min_tokens=least,
        max_tokens=most,
    )


def _ids(values: Sequence[int] | Ids) -> Ids:
    return np.asarray(values, dtype=np.int32).reshape(-1)


def _array(value: Any, missing: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A tensor or array of the stored entry, without asking for torch here."""
    return missing if value is None else np.asarray(value)


def _stored_ids(entry: Mapping[str, Any], key: str) -> Ids:
    return _ids(_array(entry.get(key), np.zeros(0, dtype=np.int32)))


def _vector(value: Any) -> npt.NDArray[Any]:
    return np.asarray(value).reshape(-1)

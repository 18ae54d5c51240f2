"""Bodies of the requests. Sizes are limits of what is read; what can be spoken is judged by the engine."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from inference.types import MAX_INSTRUCTION_CHARACTERS, MAX_TEXT_CHARACTERS
from inference.validate import MAX_SEED

AudioFormat = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]
MODELS = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts")  # names that OpenAI's clients send; all are this model

_MAX_NAME = 60


def _from_base64(value: Any) -> Any:
    """A clip: bytes as they are, else base64, also as a data: URL. Never an address to be fetched."""
    if not isinstance(value, str):
        return value
    text = value.partition(",")[2] if value.startswith("data:") else value
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError("is no base64; addresses are not fetched, send the file itself") from error


Clip = Annotated[
    bytes,
    BeforeValidator(_from_base64),
    WithJsonSchema({"type": "string", "contentEncoding": "base64", "description": "An audio file in base64"}),
]
Speed = Annotated[float, Field(ge=0.25, le=4.0, description="1 is as the model speaks")]
Seed = Annotated[int, Field(ge=0, le=MAX_SEED, description="The same seed gives the same sound")]
Text = Annotated[str, Field(max_length=MAX_TEXT_CHARACTERS)]
Instruction = Annotated[str, Field(max_length=MAX_INSTRUCTION_CHARACTERS)]
Language = Annotated[str, Field(max_length=16, description="How numbers are read: auto, zh, en, ja, ko …")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class VoiceId(BaseModel):
    """A voice by its id, as OpenAI's newer clients send it."""

    id: Annotated[str, Field(max_length=_MAX_NAME)]


class SpeechBody(BaseModel):
    """`POST /v1/audio/speech`, as OpenAI's. Fields that are not listed are ignored."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"model": "tts-1", "input": "Hello.", "voice": "Anna"}]}
    )

    model: Annotated[str, Field(max_length=100)] = "cosyvoice2"
    input: Annotated[Text, Field(min_length=1, description="What is to be spoken")]
    voice: Annotated[str, Field(max_length=_MAX_NAME)] | VoiceId
    response_format: AudioFormat = "mp3"
    speed: Speed = 1.0
    instructions: Annotated[Instruction, Field(description="How to say it; never spoken")] | None = None
    stream_format: Literal["audio", "sse"] = "audio"
    seed: Seed = 0
    language: Language = "auto"

    @property
    def voice_name(self) -> str:
        """Name or id of the voice."""
        return self.voice if isinstance(self.voice, str) else self.voice.id


class SoundBody(_Strict):
    """What all native requests have."""

    response_format: AudioFormat = "wav"
    stream_format: Literal["audio", "sse", "json"] = "audio"
    subtitles: Annotated[
        Literal["srt", "vtt"] | None, Field(description="Add them to the answer (stream_format json)")
    ] = None
    speed: Speed = 1.0
    seed: Seed = 0

    @model_validator(mode="after")
    def _subtitles_need_json(self) -> SoundBody:
        if self.subtitles and self.stream_format != "json":
            raise ValueError("subtitles come in the JSON answer: give stream_format json too")
        return self


class SpokenBody(SoundBody):
    """A text in the voice of a clip (`reference`) or of a saved voice (`voice`)."""

    text: Text
    language: Language = "auto"
    reference: Clip | None = None
    voice: Annotated[str, Field(max_length=_MAX_NAME, description="Name or id of a saved voice")] | None = (
        None
    )

    @model_validator(mode="after")
    def _one_voice(self) -> SpokenBody:
        if (self.reference is None) == (self.voice is None):
            raise ValueError("give either a reference clip or a saved voice")
        return self


class CloneBody(SpokenBody):
    """`transcript`: what the clip says, word for word; may be empty."""

    transcript: Text = ""


class CrossLingualBody(SpokenBody):
    """The clip alone is used, for a text in another language."""


class InstructBody(SpokenBody):
    """`instruction`: how to say it, for example "speak slowly and gently"."""

    instruction: Annotated[Instruction, Field(min_length=1)]


class ConvertBody(SoundBody):
    """`source`: a recording whose words are kept; `reference` or `voice`: who shall have spoken them."""

    source: Clip
    reference: Clip | None = None
    voice: Annotated[str, Field(max_length=_MAX_NAME, description="Name or id of a saved voice")] | None = (
        None
    )

    @model_validator(mode="after")
    def _one_voice(self) -> ConvertBody:
        if (self.reference is None) == (self.voice is None):
            raise ValueError("give either a reference clip or a saved voice")
        return self


class NewVoiceBody(_Strict):
    """A voice to keep: its name, a clip, and what is said in it; or a `file` that was exported."""

    name: Annotated[str, Field(max_length=_MAX_NAME)] = ""
    reference: Clip | None = None
    transcript: Text = ""
    file: Clip | None = None

    @model_validator(mode="after")
    def _one_source(self) -> NewVoiceBody:
        if (self.reference is None) == (self.file is None):
            raise ValueError("give either a reference clip or an exported file")
        if self.reference is not None and not self.name.strip():
            raise ValueError("give the voice a name")
        return self


class VoicePatch(_Strict):
    """What is to be changed of a saved voice."""

    name: Annotated[str, Field(min_length=1, max_length=_MAX_NAME)] | None = None
    transcript: Text | None = None


class VoiceShown(BaseModel):
    """A voice as it is listed. `kind`: saved, or preset (part of the model)."""

    id: str
    name: str
    kind: Literal["saved", "preset"] = "saved"
    transcript: str = ""
    created: str = ""
    seconds: float = 0.0
    warnings: list[str] = []


class VoiceList(BaseModel):
    """All voices."""

    object: Literal["list"] = "list"
    voices: list[VoiceShown]


class ModelShown(BaseModel):
    """A model as OpenAI lists it."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "cosyvoice-studio"


class ModelList(BaseModel):
    """All names under which the model may be asked for."""

    object: Literal["list"] = "list"
    data: list[ModelShown]


class ErrorDetail(BaseModel):
    """What went wrong: a sentence for people, a code for programs."""

    message: str
    type: str
    code: str
    param: str | None = None
    request_id: str = ""


class ErrorShown(BaseModel):
    """The one shape of all errors."""

    error: ErrorDetail

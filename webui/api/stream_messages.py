"""What a client and `/v1/stream` say to each other, as JSON; sound goes in binary messages."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from webui.api.schemas import AudioFormat, Clip, Instruction, Language, Seed, Speed

MAX_MESSAGE_TEXT = 5000


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Start(_Message):
    """The first message. `voice` (saved, or a preset) or `reference`, as in the other requests; or `session`.

    `session`: of a connection that broke, to go on with; `after`: the last piece of which all has been received.
    """

    type: Literal["start"]
    api_key: Annotated[str, Field(max_length=200)] = ""  # for browsers, which can set no headers
    voice: Annotated[str, Field(max_length=60)] | None = None
    reference: Clip | None = None
    session: Annotated[str, Field(max_length=60)] | None = None
    after: Annotated[int, Field(ge=-1, le=2**31)] = -1
    transcript: Annotated[str, Field(max_length=MAX_MESSAGE_TEXT)] = ""
    instruction: Instruction = ""
    response_format: AudioFormat = "pcm"
    speed: Speed = 1.0
    seed: Seed = 0
    language: Language = "auto"

    @model_validator(mode="after")
    def _one_voice(self) -> Start:
        if self.session is not None:
            if self.reference is not None or self.voice is not None:
                raise ValueError("a session that goes on has its voice already")
        elif (self.reference is None) == (self.voice is None):
            raise ValueError("give either a reference clip or a saved voice")
        return self


class Text(_Message):
    """More of the text; sentences are spoken as soon as they are complete."""

    type: Literal["text"]
    text: Annotated[str, Field(max_length=MAX_MESSAGE_TEXT)]


class Control(_Message):
    """flush: speak what is there. end: that was all, tell when it has been spoken. cancel: be silent at once.

    resume, skip: after an error, try the piece again or leave it out. ping: are you there.
    """

    type: Literal["flush", "end", "cancel", "resume", "skip", "ping"]


ClientMessage = Annotated[Start | Text | Control, Field(discriminator="type")]
CLIENT_MESSAGE: TypeAdapter[Start | Text | Control] = TypeAdapter(ClientMessage)

"""Bodies and answers of the job routes."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from webui.api.schemas import Clip, Instruction, Language, Seed, Speed, Text

MOST_ITEMS = 5000
JobMode = Literal["clone", "cross_lingual", "instruct", "preset"]


class JobItem(BaseModel):
    """One thing to say; what is left out is taken from the job."""

    model_config = ConfigDict(extra="forbid")

    text: Text
    name: Annotated[str, Field(max_length=60, description="Of the file, without ending")] = ""
    voice: Annotated[str, Field(max_length=60)] = ""
    instruction: Instruction = ""
    mode: JobMode | None = None
    seed: Seed | None = None
    speed: Annotated[float, Field(ge=0.5, le=2.0)] | None = None


def _from_json(value: Any) -> Any:
    """In a form the list comes as text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ValueError("is no JSON") from error


Items = Annotated[list[JobItem], BeforeValidator(_from_json), Field(max_length=MOST_ITEMS)]


class JobBody(BaseModel):
    """`items`, or a `file` (.txt, .csv, .tsv, .jsonl or .srt, told by `file_name`), and what holds for all of them."""

    model_config = ConfigDict(extra="forbid")

    items: Items = []
    file: Clip | None = None
    file_name: Annotated[str, Field(max_length=100)] = "job.txt"
    name: Annotated[str, Field(max_length=100, description="Of the job, for people")] = "job"
    voice: Annotated[str, Field(max_length=60)] = ""
    reference: Clip | None = None
    transcript: Text = ""
    mode: JobMode | None = None
    instruction: Instruction = ""
    language: Language = "auto"
    seed: Seed = 0
    speed: Annotated[Speed, Field(ge=0.5, le=2.0)] = 1.0
    response_format: Literal["wav", "flac", "mp3", "ogg"] = "wav"

    @model_validator(mode="after")
    def _something_to_say(self) -> JobBody:
        if bool(self.items) == (self.file is not None):
            raise ValueError("give either items or a file")
        if self.voice and self.reference is not None:
            raise ValueError("give either a reference clip or a saved voice")
        return self


class JobItemShown(BaseModel):
    """How an item ended. `audio`: where its sound is."""

    item: int
    state: Literal["waiting", "done", "failed"]
    seconds: float = 0.0
    audio: str | None = None
    code: str | None = None
    message: str | None = None


class JobShown(BaseModel):
    """A job. `state`: running, stopped (it can be resumed) or done."""

    id: str
    name: str
    created: float
    state: Literal["running", "stopped", "done"]
    total: int
    done: int
    failed: int
    seconds: float


class JobDetail(JobShown):
    """A job and all of its items."""

    items: list[JobItemShown]


class JobList(BaseModel):
    """The caller's jobs, the newest first."""

    object: Literal["list"] = "list"
    jobs: list[JobShown]

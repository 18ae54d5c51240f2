"""Routes that speak: OpenAI's shape and our own."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from inference.types import Mode, SynthesisRequest
from webui.api.access import ApiCaller, Caller
from webui.api.answers import SpeechAnswer, StreamAnswer, WholeAnswer
from webui.api.bodies import body_docs, read_body
from webui.api.context import ApiContext, context_of, note_caller
from webui.api.documents import ERRORS, SOUND, SOUND_OR_JSON
from webui.api.errors import ApiError
from webui.api.quota import Lease
from webui.api.requests import native_request, speech_request
from webui.api.schemas import (
    MODELS,
    CloneBody,
    ConvertBody,
    CrossLingualBody,
    InstructBody,
    ModelList,
    ModelShown,
    SoundBody,
    SpeechBody,
    SpokenBody,
)
from webui.api.tempo import split_speed
from webui.api.writers import EventWriter, SoundWriter

_CONVERT_CHARACTERS = 200  # that a conversion counts as

router = APIRouter(responses=ERRORS)


@router.post(
    "/v1/audio/speech", tags=["OpenAI"], responses=SOUND, response_class=Response, summary="Speak a text"
)
async def create_speech(request: Request, body: SpeechBody, caller: Caller) -> Response:
    """As OpenAI's endpoint; the first bytes are sent when the first chunk of sound is ready.

    `voice` is the name or id of a saved voice (`GET /v1/audio/voices`) or a preset. `instructions` say how to speak.
    """
    context = context_of(request)
    note_caller(request, caller)
    if body.model not in (context.model, *MODELS):
        raise ApiError(404, "model_not_found", f"There is no model {body.model!r} here; use {context.model}.")
    wanted = await speech_request(context, body)
    factor = split_speed(body.speed)[1]
    rate = context.pool.sample_rate
    writer = (
        EventWriter(body.response_format, rate, factor, characters=len(body.input))
        if body.stream_format == "sse"
        else SoundWriter(body.response_format, rate, factor)
    )
    lease = context.access.enter(caller, len(body.input))
    return StreamAnswer(context.pool, wanted, lease, writer)


@router.get("/v1/models", tags=["OpenAI"], summary="Names of the model")
async def list_models(request: Request, caller: Caller) -> ModelList:
    """The model's own name, and those by which OpenAI's clients ask for it."""
    context = context_of(request)
    names = (context.model, *MODELS)
    return ModelList(data=[ModelShown(id=name, created=int(context.started)) for name in names])


@router.get("/v1/models/{model}", tags=["OpenAI"], summary="One name of the model")
async def get_model(request: Request, model: str, caller: Caller) -> ModelShown:
    """As `GET /v1/models`, one entry."""
    context = context_of(request)
    if model not in (context.model, *MODELS):
        raise ApiError(404, "model_not_found", f"There is no model {model!r} here; use {context.model}.")
    return ModelShown(id=model, created=int(context.started))


@router.post(
    "/v1/clone",
    tags=["Speech"],
    responses=SOUND_OR_JSON,
    response_class=Response,
    openapi_extra=body_docs(CloneBody),
    summary="Speak in the voice of a clip whose words are known",
)
async def clone(request: Request, caller: Caller) -> Response:
    """The closest voice: a clip (or a saved voice) and what is said in it."""
    return await _spoken(request, caller, Mode.CLONE, await read_body(request, CloneBody))


@router.post(
    "/v1/cross-lingual",
    tags=["Speech"],
    responses=SOUND_OR_JSON,
    response_class=Response,
    openapi_extra=body_docs(CrossLingualBody),
    summary="Speak another language in the voice of a clip",
)
async def cross_lingual(request: Request, caller: Caller) -> Response:
    """The clip alone is enough."""
    return await _spoken(request, caller, Mode.CROSS_LINGUAL, await read_body(request, CrossLingualBody))


@router.post(
    "/v1/instruct",
    tags=["Speech"],
    responses=SOUND_OR_JSON,
    response_class=Response,
    openapi_extra=body_docs(InstructBody),
    summary="Speak as told",
)
async def instruct(request: Request, caller: Caller) -> Response:
    """Dialect, mood or pace in a sentence; the instruction itself is never spoken."""
    return await _spoken(request, caller, Mode.INSTRUCT, await read_body(request, InstructBody))


@router.post(
    "/v1/convert",
    tags=["Speech"],
    responses=SOUND_OR_JSON,
    response_class=Response,
    openapi_extra=body_docs(ConvertBody),
    summary="Give a recording another voice",
)
async def convert(request: Request, caller: Caller) -> Response:
    """The words and their timing stay, the voice is the reference's."""
    return await _spoken(request, caller, Mode.CONVERT, await read_body(request, ConvertBody))


async def _spoken(
    request: Request, caller: ApiCaller, mode: Mode, body: SpokenBody | ConvertBody
) -> SpeechAnswer:
    context = context_of(request)
    note_caller(request, caller)
    wanted = await native_request(context, mode, body)
    characters = _CONVERT_CHARACTERS if mode is Mode.CONVERT else len(wanted.text)
    writer = _writer(context, body, characters)
    lease = context.access.enter(caller, characters)
    return _answer(context, wanted, lease, writer, body)


def _writer(context: ApiContext, body: SoundBody, characters: int) -> SoundWriter:
    rate, factor = context.pool.sample_rate, split_speed(body.speed)[1]
    if body.stream_format != "sse":
        return SoundWriter(body.response_format, rate, factor)
    return EventWriter(body.response_format, rate, factor, characters=characters, with_segments=True)


def _answer(
    context: ApiContext, wanted: SynthesisRequest, lease: Lease, writer: SoundWriter, body: SoundBody
) -> SpeechAnswer:
    if body.stream_format == "json":
        return WholeAnswer(context.pool, wanted, lease, writer, body.response_format, body.subtitles)
    return StreamAnswer(context.pool, wanted, lease, writer)

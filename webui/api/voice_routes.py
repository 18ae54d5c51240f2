"""Routes of saved voices."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request, Response

from inference.types import Reference
from inference.voices import SavedVoice, VoiceLibrary, save_clip
from webui.api.access import Caller
from webui.api.bodies import body_docs, read_body
from webui.api.context import ApiContext, context_of, note_caller
from webui.api.documents import ERRORS
from webui.api.errors import ApiError
from webui.api.schemas import NewVoiceBody, VoiceList, VoicePatch, VoiceShown

_PREPARING = 100  # characters that preparing a clip counts as

router = APIRouter(
    tags=["Voices"], responses={**ERRORS, 409: {**ERRORS[400], "description": "The name is taken"}}
)


@router.get("/v1/voices", summary="All voices")
@router.get(
    "/v1/audio/voices", tags=["OpenAI"], summary="All voices, where OpenAI's chat fronts look for them"
)
async def list_voices(request: Request, caller: Caller) -> VoiceList:
    """Saved voices by name, then the model's presets."""
    context = context_of(request)
    entries = await asyncio.to_thread(context.voices.voices) if context.voices else []
    presets = [VoiceShown(id=name, name=name, kind="preset") for name in context.pool.presets]
    return VoiceList(voices=[*(_shown(entry) for entry in entries), *presets])


@router.post("/v1/voices", status_code=201, openapi_extra=body_docs(NewVoiceBody), summary="Keep a voice")
async def add_voice(request: Request, caller: Caller) -> VoiceShown:
    """From a clip (prepared once, so that requests with it start sooner), or from an exported file."""
    context = context_of(request)
    note_caller(request, caller)
    library = _library(context)
    body = await read_body(request, NewVoiceBody)
    if body.file is not None:
        return _shown(await asyncio.to_thread(library.restore, body.file, body.name))
    lease = context.access.enter(caller, _PREPARING)
    try:
        reference = Reference(body.reference or b"", body.transcript)
        return _shown(await save_clip(context.pool, library, body.name, reference))
    finally:
        lease.release()


@router.get("/v1/voices/{voice}", summary="One voice")
async def get_voice(request: Request, voice: str, caller: Caller) -> VoiceShown:
    """By name or id."""
    return _shown(await asyncio.to_thread(_library(context_of(request)).find, voice))


@router.patch("/v1/voices/{voice}", summary="Rename a voice or correct its transcript")
async def change_voice(request: Request, voice: str, body: VoicePatch, caller: Caller) -> VoiceShown:
    """Fields that are left out stay as they are."""
    note_caller(request, caller)
    library = _library(context_of(request))
    entry = await asyncio.to_thread(library.find, voice)
    if body.transcript is not None:
        entry = await asyncio.to_thread(library.set_transcript, entry.id, body.transcript)
    if body.name is not None and body.name != entry.name:
        entry = await asyncio.to_thread(library.rename, entry.id, body.name)
    return _shown(entry)


@router.delete("/v1/voices/{voice}", status_code=204, summary="Remove a voice for good")
async def delete_voice(request: Request, voice: str, caller: Caller) -> Response:
    """By name or id."""
    note_caller(request, caller)
    await asyncio.to_thread(_library(context_of(request)).delete, voice)
    return Response(status_code=204)


@router.get(
    "/v1/voices/{voice}/audio",
    response_class=Response,
    responses={200: {"content": {"audio/wav": {}}, "description": "A WAV file"}},
    summary="What is heard of a voice",
)
async def get_voice_audio(request: Request, voice: str, caller: Caller) -> Response:
    """The clip as it is used: trimmed and levelled."""
    sound = await asyncio.to_thread(_library(context_of(request)).wav, voice)
    return Response(sound, media_type="audio/wav")


@router.get(
    "/v1/voices/{voice}/export",
    response_class=Response,
    responses={200: {"content": {"application/octet-stream": {}}, "description": "A .safetensors file"}},
    summary="A voice as one file",
)
async def export_voice(request: Request, voice: str, caller: Caller) -> Response:
    """For `POST /v1/voices` with `file`, here or elsewhere."""
    library = _library(context_of(request))
    entry = await asyncio.to_thread(library.find, voice)
    data = await asyncio.to_thread(library.export, entry.id)
    headers = {"Content-Disposition": f'attachment; filename="{entry.id}.safetensors"'}
    return Response(data, media_type="application/octet-stream", headers=headers)


def _library(context: ApiContext) -> VoiceLibrary:
    if context.voices is None:
        raise ApiError(404, "no_library", "This server keeps no voices.")
    return context.voices


def _shown(entry: SavedVoice) -> VoiceShown:
    return VoiceShown(
        id=entry.id,
        name=entry.name,
        transcript=entry.transcript,
        created=entry.created,
        seconds=entry.seconds,
        warnings=list(entry.warnings),
    )

"""From a request's body to what the engine is asked for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from inference.logs import REQUEST_ID
from inference.types import Mode, Reference, RequestError, SynthesisRequest, Voice
from webui.api.errors import ApiError
from webui.api.schemas import (
    CloneBody,
    ConvertBody,
    InstructBody,
    SpeechBody,
    SpokenBody,
)
from webui.api.tempo import split_speed

if TYPE_CHECKING:
    from webui.api.context import ApiContext


async def speech_request(context: ApiContext, body: SpeechBody) -> SynthesisRequest:
    """OpenAI's request. A saved voice is cloned with its transcript, without one across languages.

    Raises `RequestError` voice_unknown, preset_unknown …
    """
    name, instruction = body.voice_name, (body.instructions or "").strip()
    mode, voice = await choose_voice(context, name, instruction)
    return SynthesisRequest(
        mode=mode,
        text=body.input,
        voice=voice,
        instruction=instruction,
        speed=split_speed(body.speed)[0],
        seed=body.seed,
        stream=True,
        language=body.language,
        request_id=REQUEST_ID.get(),
    )


async def choose_voice(
    context: ApiContext, name: str, instruction: str = ""
) -> tuple[Mode, Voice | Reference | str]:
    """The voice called `name` and the mode that suits it. Raises `RequestError` voice_unknown, `ApiError`."""
    if name in context.pool.presets:
        if instruction:
            raise ApiError(
                400, "preset_cannot_follow", "A preset speaker takes no instruction; use a saved voice."
            )
        return Mode.PRESET, name
    voice = await saved_voice(context, name)
    if instruction:
        return Mode.INSTRUCT, voice
    return (Mode.CLONE if voice.transcript.strip() else Mode.CROSS_LINGUAL), voice


async def saved_voice(context: ApiContext, name: str) -> Voice | Reference:
    """Raises `RequestError` voice_unknown, with the names that there are."""
    library = context.voices
    if library is None:
        raise RequestError("voice_unknown", f"There is no saved voice {name!r}.", name=name)
    try:
        return await asyncio.to_thread(library.load, name)
    except RequestError as error:
        if error.code != "voice_unknown":
            raise
        known = [entry.name for entry in await asyncio.to_thread(library.voices)][:10]
        more = f"Saved voices: {', '.join(known)}." if known else "None has been saved yet: POST /v1/voices."
        raise RequestError("voice_unknown", f"{error.message} {more}", name=name[:60]) from error


async def native_request(context: ApiContext, mode: Mode, body: SpokenBody | ConvertBody) -> SynthesisRequest:
    """One of the native requests."""
    transcript = body.transcript if isinstance(body, CloneBody) else ""
    voice: Voice | Reference
    if body.reference is not None:
        voice = Reference(body.reference, transcript)
    else:
        voice = await saved_voice(context, body.voice or "")
        if transcript:
            raise ApiError(400, "transcript_saved", "A saved voice has its own transcript; leave it out.")
    more: dict[str, Any] = {}
    if isinstance(body, ConvertBody):
        more = {"source": Reference(body.source)}
    else:
        more = {"text": body.text, "language": body.language}
    if isinstance(body, InstructBody):
        more["instruction"] = body.instruction
    return SynthesisRequest(
        mode=mode,
        voice=voice,
        speed=split_speed(body.speed)[0],
        seed=body.seed,
        stream=True,
        request_id=REQUEST_ID.get(),
        **more,
    )

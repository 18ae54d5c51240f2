"""What the OpenAPI document says of answers."""

from __future__ import annotations

from typing import Any

from webui.api.schemas import ErrorShown

Responses = dict[int | str, dict[str, Any]]

ERRORS: Responses = {
    status: {"model": ErrorShown, "description": what}
    for status, what in {
        400: "The request cannot be spoken",
        401: "No valid key or login",
        403: "Not allowed from here",
        404: "No such voice, model or thing",
        413: "Too large",
        415: "Neither a form nor JSON",
        422: "A field is missing or wrong",
        429: "The caller's own limit; `Retry-After` says when to come again",
        500: "Our fault; the log has more",
        503: "Busy or not ready; `Retry-After` says when to come again",
    }.items()
}
_BINARY = {"schema": {"type": "string", "format": "binary"}}
_AUDIO = ("audio/mpeg", "audio/ogg", "audio/aac", "audio/flac", "audio/wav", "audio/pcm")
_SOUNDS: dict[str, Any] = {
    **dict.fromkeys(_AUDIO, _BINARY),
    "text/event-stream": {},
}
_OBJECT = {"application/json": {"schema": {"type": "object"}}}
SOUND: Responses = {200: {"description": "Sound, from the first chunk on", "content": _SOUNDS}}
SOUND_OR_JSON: Responses = {
    200: {"description": "Sound from the first chunk on, or all of it as JSON", "content": _SOUNDS | _OBJECT}
}

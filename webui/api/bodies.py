"""Requests that come as a form with files or as JSON with base64: read alike, documented alike."""

from __future__ import annotations

import asyncio
import json
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.datastructures import UploadFile
from starlette.requests import Request

from webui.api.errors import ApiError, validation_error

BodyT = TypeVar("BodyT", bound=BaseModel)

_FORMS = ("multipart/form-data", "application/x-www-form-urlencoded")
_FIELD_BYTES = 2**20
_FILES, _FIELDS = 4, 40


async def read_body(request: Request, model: type[BodyT]) -> BodyT:
    """The request's body as `model`. Raises `ApiError` 415 or 422."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in _FORMS:
        values = await _form(request)
    elif kind == "application/json":
        values = await _json(request)
    else:
        raise ApiError(415, "media_type", "Send multipart/form-data or application/json.")
    try:
        # Clips in base64 are megabytes, which must not hold up everybody else.
        return await asyncio.to_thread(model.model_validate, values)
    except ValidationError as error:
        raise validation_error(error.errors(include_input=False, include_url=False)) from error


async def _form(request: Request) -> dict[str, Any]:
    values: dict[str, Any] = {}
    async with request.form(max_files=_FILES, max_fields=_FIELDS, max_part_size=_FIELD_BYTES) as form:
        for name, value in form.multi_items():
            values[name] = await value.read() if isinstance(value, UploadFile) else value
    return values


async def _json(request: Request) -> Any:
    body = await request.body()
    try:
        return await asyncio.to_thread(json.loads, body)
    except (ValueError, RecursionError) as error:
        raise ApiError(422, "invalid_request", "The body is no JSON.") from error


def body_docs(model: type[BaseModel]) -> dict[str, Any]:
    """For a route's `openapi_extra`: `model` as JSON and as a form."""
    schema = model.model_json_schema()
    # References are looked up from the document's root, where these definitions are not.
    schema = _inlined(schema, schema.pop("$defs", {}))
    form = json.loads(json.dumps(schema))
    for field in form["properties"].values():
        for part in (field, *field.get("anyOf", ())):
            if part.pop("contentEncoding", None):
                part["format"] = "binary"
    return {
        "requestBody": {
            "required": True,
            "content": {"multipart/form-data": {"schema": form}, "application/json": {"schema": schema}},
        }
    }


def _inlined(part: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(part, list):
        return [_inlined(one, definitions) for one in part]
    if not isinstance(part, dict):
        return part
    if "$ref" in part:
        return _inlined(definitions[part["$ref"].rsplit("/", 1)[1]], definitions)
    return {key: _inlined(value, definitions) for key, value in part.items()}

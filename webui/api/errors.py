"""One JSON shape for everything that goes wrong, and the HTTP status of each kind.

    {"error": {"message": "…", "type": "invalid_request_error", "code": "empty_text", "param": null, "request_id": "…"}}

That is OpenAI's shape, so its clients show the sentence.
"""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from inference.logs import REQUEST_ID
from inference.types import CheckpointError, EngineError, SynthesisError

logger = logging.getLogger(__name__)

_STATUS = {
    "voice_unknown": 404,
    "preset_unknown": 404,
    "batch_unknown": 404,
    "batch_too_many": 409,
    "voice_name_taken": 409,
    "voices_full": 409,
    "voices_locked": 403,
    "audio_too_large": 413,
    "voice_file_too_large": 413,
    "visitor_busy": 429,
    "visitor_rate": 429,
    # Nothing is wrong with these requests: they may be sent again.
    "busy": 503,
    "not_ready": 503,
    "pool_closed": 503,
    "worker_lost": 503,
    "out_of_memory": 503,
}
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_NO_JSON = ("json_invalid", "model_attributes_type", "model_type")
_HTTP_CODES = {413: "body_too_large"}
DEFAULT_RETRY = 2  # seconds, where nothing better is known


class ApiError(Exception):
    """What the API itself refuses. `retry_after`: seconds, for the header of that name."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.retry_after = retry_after


def as_api_error(error: BaseException, retry_after: float | None = None) -> ApiError:
    """`error` as it is told to a caller; what is not meant for them is logged and told without its insides."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, SynthesisError):
        status = status_of(error)
        again = _seconds(error) or retry_after or DEFAULT_RETRY
        return ApiError(
            status, error.code, error.message, retry_after=again if status in (429, 503) else None
        )
    logger.error("An unexpected error.", exc_info=error)
    return ApiError(500, "internal_error", "Something unexpected went wrong on our side; the log has more.")


def _seconds(error: SynthesisError) -> float | None:
    """When to come again, where the error itself knows."""
    seconds = error.details.get("seconds")
    return float(seconds) if isinstance(seconds, (int, float)) and error.code == "visitor_rate" else None


def status_of(error: SynthesisError) -> int:
    """HTTP status of an error of the engine."""
    if error.code in _STATUS:
        return _STATUS[error.code]
    return 500 if isinstance(error, (EngineError, CheckpointError)) else 400


def error_body(error: ApiError) -> dict[str, Any]:
    """The JSON of an error."""
    kind = _TYPES.get(error.status, "server_error" if error.status >= 500 else "invalid_request_error")
    return {
        "error": {
            "message": error.message,
            "type": kind,
            "code": error.code,
            "param": error.param,
            "request_id": REQUEST_ID.get(),
        }
    }


def error_response(error: ApiError) -> JSONResponse:
    """The answer that tells of an error."""
    headers = {"Cache-Control": "no-store"}
    if error.retry_after is not None:
        headers["Retry-After"] = str(max(1, round(error.retry_after)))
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(error_body(error), error.status, headers)


def not_found(what: str) -> ApiError:
    """404 for a path or a thing."""
    return ApiError(404, "not_found", f"There is no {what}.")


def install_error_handlers(app: FastAPI) -> None:
    """Make every error of `app` answer in the one shape."""

    async def engine(request: Request, error: Exception) -> JSONResponse:
        return error_response(as_api_error(error))

    async def http(request: Request, error: Exception) -> JSONResponse:
        if not isinstance(error, HTTPException):
            return error_response(as_api_error(error))
        if error.status_code == 404:
            return error_response(not_found(f"{request.url.path!r} in this API; /docs lists what there is"))
        if error.status_code == 405:
            message = f"{request.method} is not possible here."
            response = error_response(ApiError(405, "method_not_allowed", message))
            response.headers.update(error.headers or {})
            return response
        code = _HTTP_CODES.get(error.status_code, "http_error")
        return error_response(ApiError(error.status_code, code, str(error.detail)))

    async def invalid(request: Request, error: Exception) -> JSONResponse:
        faults = error.errors() if isinstance(error, RequestValidationError) else []
        return error_response(validation_error(faults))

    app.add_exception_handler(ApiError, engine)
    app.add_exception_handler(SynthesisError, engine)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(Exception, engine)


def validation_error(faults: Any) -> ApiError:
    """422 that names the first field that is wrong."""
    for fault in faults:
        if fault.get("type") in _NO_JSON:
            return ApiError(
                422, "invalid_request", "The body is no JSON object, or its Content-Type says so."
            )
        where = ".".join(str(part) for part in fault.get("loc", ()) if part not in ("body", "query", "path"))
        message = str(fault.get("msg", "is wrong")).removeprefix("Value error, ")
        sentence = f"{where}: {message}" if where else message
        return ApiError(422, "invalid_request", sentence, param=where or None)
    return ApiError(422, "invalid_request", "The request cannot be understood.")


__all__ = [
    "ApiError",
    "as_api_error",
    "error_body",
    "error_response",
    "install_error_handlers",
    "not_found",
    "status_of",
    "validation_error",
]

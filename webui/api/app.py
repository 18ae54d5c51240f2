"""The API's own application, and the one route by which the page's application hands requests to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse
from starlette.routing import BaseRoute, Match, NoMatchFound

from webui.api import job_routes, operation_routes, speech_routes, stream_route, voice_routes
from webui.api.context import ApiContext
from webui.api.docs_page import docs_page
from webui.api.errors import install_error_handlers
from webui.api.guard import Guard

if TYPE_CHECKING:
    from starlette.datastructures import URLPath
    from starlette.types import Receive, Scope, Send

_DESCRIPTION = """Speech with CosyVoice2: OpenAI's shape, our own, a WebSocket for text that is still being written
(`/v1/stream`, see docs/api.md) and batch jobs. Errors have one shape; every answer has an `X-Request-Id`."""
_PATHS = ("/health", "/ready", "/metrics", "/docs", "/openapi.json")


def create_api(context: ApiContext, *, only_health: bool = False) -> FastAPI:
    """The API as a FastAPI application. `only_health` leaves out all but `/health` and `/ready`."""
    hidden = {"openapi_url": None} if only_health else {}
    api = FastAPI(
        title="CosyVoice Studio",
        version="1",
        description=_DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        separate_input_output_schemas=False,
        **hidden,  # type: ignore[arg-type]
    )
    api.state.context = context
    install_error_handlers(api)
    api.include_router(operation_routes.health)
    if not only_health:
        for part in (speech_routes, voice_routes, stream_route, job_routes, operation_routes):
            api.include_router(part.router)

        @api.get("/docs", include_in_schema=False)
        async def show_docs() -> HTMLResponse:
            return HTMLResponse(docs_page(api.openapi()))

    return api


class ApiRoute(BaseRoute):
    """Gives all that is the API's to it, whatever the method, so that nothing of it ends up at the page."""

    def __init__(self, api: FastAPI, context: ApiContext) -> None:
        self.api = api
        self._app = Guard(api, context.metrics)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        path = scope.get("path", "")
        own = path in _PATHS or path == "/v1" or path.startswith(("/v1/", "/docs/"))
        return (Match.FULL if own and scope["type"] in ("http", "websocket") else Match.NONE), {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        # A scope of its own: what the outer application has put there is about other routes.
        inner = {
            key: value for key, value in scope.items() if key not in ("app", "router", "route", "endpoint")
        }
        await self._app(inner, receive, send)

    def url_path_for(self, name: str, /, **path_params: Any) -> URLPath:
        raise NoMatchFound(name, path_params)

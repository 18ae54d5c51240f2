"""The web application (our routes, then the page) and the server that runs it."""

from __future__ import annotations

import importlib
import threading
import time
from typing import TYPE_CHECKING, Any

from inference.types import EngineError
from webui.visitors import VisitorCookie

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.types import ASGIApp, Receive, Scope, Send

    from webui.options import Options
    from webui.studio import Studio

MAX_UPLOAD = "100mb"
START_SECONDS = 30.0
CLOSE_SECONDS = 3  # for connections to end by themselves


def build_app(studio: Studio, pool: Any, page: Any, options: Options) -> FastAPI:
    """Everything under one port: API, metrics and, at "/", the Gradio `page`."""
    import gradio as gr
    from fastapi import FastAPI
    from starlette.middleware.cors import CORSMiddleware

    from webui.api.guard import RequestIds
    from webui.own_files import OwnFilesOnly
    from webui.page.first_language import FirstLanguage
    from webui.page.look import look
    from webui.page_assets import PageAssets, assets_folder

    app = FastAPI(title="CosyVoice Studio", docs_url=None, redoc_url=None, openapi_url=None)
    add_api = getattr(importlib.import_module("webui.api"), "add_api", None)
    if add_api is not None:
        add_api(app, pool, studio, options)
    everyone = "*" in options.enable_cors
    # Also without any origin: Gradio then leaves out its own, which lets pages of all sites in with their cookies.
    app.add_middleware(
        CORSMiddleware,
        allow_origins=["*"] if everyone else list(options.enable_cors),
        allow_credentials=bool(options.enable_cors) and not everyone,
        allow_methods=["*"],
        allow_headers=["*"],
        expose_headers=["Retry-After", "X-Request-Id", "X-Sample-Rate", "X-Seed", "X-Warning"],
    )
    gr.mount_gradio_app(
        app,
        page,
        path="/",
        server_name=options.server_name,
        server_port=options.server_port,
        root_path=options.root_path or None,
        auth=studio.logins.answer if studio.logins.required else None,
        max_file_size=MAX_UPLOAD,
        footer_links=[],
        run_history=False,  # it would keep every visitor's texts in a browser that others may use too
        enable_monitoring=False,
        show_error=False,
        ssr_mode=False,
        mcp_server=False,
        **look(),
    )
    # Without it Gradio takes any path of this machine that a client names for one that was uploaded.
    page.has_launched = True
    studio.logins.watch(app.routes[-1].app)  # type: ignore[attr-defined]
    app.add_middleware(FirstLanguage, usual=options.language, words=getattr(page, "first_words", None))
    app.add_middleware(OwnFilesOnly)
    app.add_middleware(VisitorCookie)
    if (assets := assets_folder()) is not None:
        app.add_middleware(PageAssets, folder=assets)
    app.add_middleware(Gate, prefix=_path_of(options.root_path))
    app.add_middleware(RequestIds)
    return app


class Gate:
    """Middleware: takes the proxy's prefix off, and fetches nothing for anybody from elsewhere."""

    def __init__(self, app: ASGIApp, prefix: str = "") -> None:
        self._app = app
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            path = scope["path"]
            if self._prefix and (path + "/").startswith(self._prefix + "/"):
                path = path[len(self._prefix) :] or "/"
                scope = {**scope, "path": path, "raw_path": path.encode()}
            if scope["type"] == "http" and path.startswith("/gradio_api/") and _is_foreign(path):
                from starlette.responses import PlainTextResponse

                await PlainTextResponse("Only files of this studio.", 403)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _is_foreign(path: str) -> bool:
    """Whether the page's server is asked to fetch an address of the outside world."""
    for mark in ("/file=", "/proxy="):
        if mark in path and path.split(mark, 1)[1].lower().startswith(("http:", "https:")):
            return True
    return "/proxy=" in path


def _path_of(root_path: str) -> str:
    """ "/studio" of "/studio" and of "https://example.org/studio"."""
    if "://" in root_path:
        rest = root_path.split("://", 1)[1]
        return "/" + rest.split("/", 1)[1] if "/" in rest else ""
    return root_path


class WebServer:
    """uvicorn in a thread of its own."""

    def __init__(self, app: FastAPI, name: str, port: int) -> None:
        import uvicorn

        config = uvicorn.Config(
            app,
            host=name,
            port=port,
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=CLOSE_SECONDS,
            ws_max_size=2**23,  # a clip in base64 may be in the first message
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, name="web", daemon=True)
        self.url = f"http://{_shown(name)}:{port}"

    def start(self) -> None:
        """Return when the port is open. Raises `EngineError("port_taken")`."""
        self._thread.start()
        deadline = time.monotonic() + START_SECONDS
        while not self._server.started and self._thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.02)
        if not self._server.started:
            port = self._server.config.port
            raise EngineError(
                "port_taken", f"The page could not be opened on port {port}; see the log.", port=port
            )

    def close(self) -> None:
        """End it; running answers have a moment to finish."""
        self._server.should_exit = True
        self._thread.join(timeout=CLOSE_SECONDS + 5)


def _shown(name: str) -> str:
    """An address that a browser on this machine can open."""
    if name in ("0.0.0.0", "::", ""):
        return "127.0.0.1"
    return f"[{name}]" if ":" in name else name

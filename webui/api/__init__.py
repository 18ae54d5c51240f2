"""The API: OpenAI's shape, our own, jobs, a WebSocket, metrics; on the page's port and over the page's pool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastapi import FastAPI

    from webui.options import Options


def add_api(app: FastAPI, pool: Any, studio: Any, options: Options) -> None:
    """Let `app` answer for `/v1`, `/health`, `/ready`, `/metrics` and `/docs`; to be called before the page is mounted.

    `pool`: a `WorkerPool` or `MeteredPool`; of `studio` are used, where it has them, `voices`, `jobs`, `logins` and
    `limiter`.
    """
    import time

    from webui.api.access import Access
    from webui.api.app import ApiRoute, create_api
    from webui.api.context import ApiContext
    from webui.api.keys import KeyFile
    from webui.metrics import MeteredPool, Metrics

    metered = pool if isinstance(pool, MeteredPool) else MeteredPool(pool, Metrics(pool.status), "api")
    access = Access(
        KeyFile(options.api_keys),
        getattr(studio, "logins", None),
        getattr(studio, "limiter", None),
        shared=options.share,
        origins=options.enable_cors,
    )
    context = ApiContext(
        pool=metered.for_front("api"),
        metrics=metered.metrics,
        access=access,
        voices=getattr(studio, "voices", None),
        jobs=getattr(studio, "jobs", None),
        started=time.time(),
    )
    app.router.routes.insert(0, ApiRoute(create_api(context, only_health=not options.api), context))

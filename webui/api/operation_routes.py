"""Routes for whoever runs the studio: is it alive, is it ready, how is it doing."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST

from webui.api.access import Admin
from webui.api.context import context_of
from webui.api.documents import ERRORS

health = APIRouter(tags=["Operation"])
router = APIRouter(tags=["Operation"], responses=ERRORS)


@health.get("/health", summary="Is the process alive")
async def is_alive() -> dict[str, str]:
    """Always `{"status": "ok"}`: restart what does not answer this."""
    return {"status": "ok"}


@health.get(
    "/ready",
    response_class=JSONResponse,
    responses={200: {"description": "Requests are taken"}, 503: {"description": "Not yet, or not any more"}},
    summary="Are requests taken",
)
async def is_ready(request: Request) -> JSONResponse:
    """200 when a worker is warm, 503 while loading and while stopping: send no traffic then."""
    status = context_of(request).metrics.status()
    content: dict[str, Any] = {
        "ready": status.ready,
        "closing": status.closing,
        "waiting": status.waiting,
        "live": status.live,
        "workers": [
            {"name": worker.name, "device": worker.device, "ready": worker.ready, "stage": worker.stage}
            for worker in status.workers
        ],
    }
    headers = {} if status.ready else {"Retry-After": "5"}
    return JSONResponse(content, 200 if status.ready else 503, headers)


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}, "description": "Prometheus' text format"}},
    summary="Metrics for Prometheus",
)
async def read_metrics(request: Request, caller: Admin) -> Response:
    """Needs an administrator's key (`authorization` in Prometheus' `scrape_configs`), or to be on this machine."""
    text = await asyncio.to_thread(context_of(request).metrics.text)
    return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})

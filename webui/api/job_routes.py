"""Routes of batch jobs: long lists spoken in the background, kept on disk, going on after a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse

from inference.frontend.encode import FORMATS, media_type
from inference.types import Mode, Reference
from webui.api.access import ApiCaller, Caller
from webui.api.bodies import body_docs, read_body
from webui.api.context import ApiContext, context_of, note_caller
from webui.api.documents import ERRORS
from webui.api.errors import ApiError
from webui.api.job_bodies import JobBody, JobDetail, JobItemShown, JobList, JobShown
from webui.api.requests import choose_voice
from webui.batch.job import BatchSettings
from webui.batch.jobs import BatchStatus
from webui.batch.rows import Row, read_rows

router = APIRouter(tags=["Jobs"], responses=ERRORS)

_MEDIA_TYPES = {f".{name}": media_type(name) for name in FORMATS}


@router.post("/v1/jobs", status_code=202, openapi_extra=body_docs(JobBody), summary="Have a list spoken")
async def create_job(request: Request, caller: Caller) -> JobShown:
    """Answers at once; `GET /v1/jobs/{id}` tells how far it is, and its items can be had as they are finished."""
    context = context_of(request)
    note_caller(request, caller)
    jobs = _jobs(context)
    body = await read_body(request, JobBody)
    rows = await asyncio.to_thread(_rows, body)
    settings = await _settings(context, body, rows)
    lease = context.access.enter(caller, sum(len(row.text) for row in rows))
    try:
        number = await asyncio.to_thread(jobs.start, rows, settings, _owner(caller), body.name)
    finally:
        lease.release()
    return _shown(await asyncio.to_thread(jobs.status, number, _owner(caller)))


@router.get("/v1/jobs", summary="The caller's jobs")
async def list_jobs(request: Request, caller: Caller) -> JobList:
    """The newest first."""
    found = await asyncio.to_thread(_jobs(context_of(request)).jobs, _owner(caller))
    return JobList(jobs=[_shown(status) for status in found])


@router.get("/v1/jobs/{job}", summary="How far a job is")
async def get_job(request: Request, job: str, caller: Caller) -> JobDetail:
    """With what has become of each item."""
    jobs, owner = _jobs(context_of(request)), _owner(caller)
    status = await asyncio.to_thread(jobs.status, job, owner)
    results = await asyncio.to_thread(jobs.results, job, owner)
    items = []
    for number in range(status.total):
        result = results.get(number)
        if result is None:
            items.append(JobItemShown(item=number, state="waiting"))
        elif result.file:
            audio = f"/v1/jobs/{job}/items/{number}"
            items.append(JobItemShown(item=number, state="done", seconds=result.seconds, audio=audio))
        else:
            items.append(JobItemShown(item=number, state="failed", code=result.code, message=result.message))
    return JobDetail(**_shown(status).model_dump(), items=items)


@router.get(
    "/v1/jobs/{job}/items/{item}",
    response_class=Response,
    responses={
        200: {"description": "The item's sound", "content": {kind: {} for kind in _MEDIA_TYPES.values()}}
    },
    summary="The sound of one item",
)
async def get_job_item(request: Request, job: str, item: int, caller: Caller) -> Response:
    """As soon as it is finished, while others are still being spoken."""
    path: Path | None = await asyncio.to_thread(_jobs(context_of(request)).sound, job, _owner(caller), item)
    if path is None:
        raise ApiError(404, "item_not_ready", "This item has no sound, or not yet.")
    return FileResponse(path, media_type=_MEDIA_TYPES.get(path.suffix), filename=path.name)


@router.get(
    "/v1/jobs/{job}/zip",
    response_class=Response,
    responses={200: {"description": "Sound and a report", "content": {"application/zip": {}}}},
    summary="All sound so far",
)
async def get_job_zip(request: Request, job: str, caller: Caller) -> Response:
    """A zip with the files that are finished and `report.csv`."""
    path: Path = await asyncio.to_thread(_jobs(context_of(request)).archive, job, _owner(caller))
    return FileResponse(path, media_type="application/zip", filename=path.name)


@router.post("/v1/jobs/{job}/cancel", summary="Stop a job")
async def cancel_job(request: Request, job: str, caller: Caller) -> JobShown:
    """What is finished stays; `resume` goes on."""
    return await _told(request, job, caller, "stop")


@router.post("/v1/jobs/{job}/resume", summary="Go on with a stopped job")
async def resume_job(request: Request, job: str, caller: Caller) -> JobShown:
    """Of a job that is done, the items that failed are tried again."""
    return await _told(request, job, caller, "resume")


@router.delete("/v1/jobs/{job}", status_code=204, summary="Remove a job and its sound")
async def delete_job(request: Request, job: str, caller: Caller) -> Response:
    """It is stopped first."""
    await asyncio.to_thread(_jobs(context_of(request)).delete, job, _owner(caller))
    return Response(status_code=204)


async def _told(request: Request, job: str, caller: ApiCaller, what: str) -> JobShown:
    jobs, owner = _jobs(context_of(request)), _owner(caller)
    await asyncio.to_thread(getattr(jobs, what), job, owner)
    return _shown(await asyncio.to_thread(jobs.status, job, owner))


def _jobs(context: ApiContext) -> Any:
    if context.jobs is None:
        raise ApiError(404, "no_jobs", "This server keeps no jobs.")
    return context.jobs


def _owner(caller: ApiCaller) -> str:
    return f"api:{caller.key}"


def _rows(body: JobBody) -> list[Row]:
    if body.file is not None:
        return read_rows(body.file_name, body.file)
    return [
        Row(
            text=item.text,
            name=item.name,
            voice=item.voice,
            instruction=item.instruction,
            mode=item.mode or "",
            seed=item.seed,
            speed=item.speed,
        )
        for item in body.items
    ]


async def _settings(context: ApiContext, body: JobBody, rows: list[Row]) -> BatchSettings:
    """Raises `RequestError` voice_unknown for any voice that is named, before a long list begins."""
    voice: Reference | str | None = body.voice or None
    mode = Mode(body.mode) if body.mode else None
    if body.reference is not None:
        voice = Reference(body.reference, body.transcript)
        mode = mode or (Mode.CLONE if body.transcript.strip() else Mode.CROSS_LINGUAL)
    if body.instruction.strip():
        mode = Mode(body.mode or "instruct")
    for name in {row.voice for row in rows if row.voice} | ({body.voice} if body.voice else set()):
        fitting, _ = await choose_voice(context, name)
        if name == body.voice:
            mode = mode or fitting
    return BatchSettings(
        mode=mode or Mode.CROSS_LINGUAL,
        voice=voice,
        instruction=body.instruction,
        speed=body.speed,
        seed=body.seed,
        language=body.language,
        audio_format=body.response_format,
    )


def _shown(status: BatchStatus) -> JobShown:
    return JobShown(
        id=status.id,
        name=status.name,
        created=status.created,
        state=status.state,  # type: ignore[arg-type]
        total=status.total,
        done=status.spoken,
        failed=len(status.failures),
        seconds=round(status.seconds, 3),
    )

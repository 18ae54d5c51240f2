"""What all routes of the API share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from starlette.requests import HTTPConnection

from webui.api.access import Access, ApiCaller
from webui.api.sessions import Sessions
from webui.metrics import MeteredPool, Metrics

if TYPE_CHECKING:
    from inference.voices import VoiceLibrary


@dataclass(frozen=True)
class ApiContext:
    """`jobs` is a `webui.batch.jobs.BatchJobs`, None where there are none."""

    pool: MeteredPool
    metrics: Metrics
    access: Access
    voices: VoiceLibrary | None = None
    jobs: Any = None
    model: str = "cosyvoice2"
    started: float = field(default=0.0)  # seconds since the epoch
    sessions: Sessions = field(default_factory=Sessions)


def context_of(connection: HTTPConnection) -> ApiContext:
    """The context of the application that serves `connection`."""
    return cast(ApiContext, connection.app.state.context)


def note_caller(connection: HTTPConnection, caller: ApiCaller) -> None:
    """Let the access log know who it was."""
    connection.scope.setdefault("state", {})["caller"] = caller.key

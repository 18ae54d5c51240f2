"""The tab for whoever runs the studio: live load, latency, workers, GPUs and the last errors. Others do not see it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from html import escape
from typing import Any

import gradio as gr
from gradio.context import Context

from inference.pool_status import PoolStatus, WorkerStatus
from webui.gpu import Gpu
from webui.local_request import is_local
from webui.metrics import LatestError, MeteredPool, Metrics
from webui.page.context import QUIET, PageContext
from webui.page.texts import explain_code, say

SECONDS = 2.0  # between two looks, while the tab is open
_GIB = 2**30
_WORKER_ROWS = (
    *("worker", "device", "state", "live", "slots", "busy"),
    *("batch", "cache", "memory", "restarts", "backends"),
)
_OUTCOMES = ("finished", "cancelled", "refused", "failed")


class MonitorTab:
    """Opens its own `gr.Tab`, hidden until the page knows who has opened it. Without metrics there is none."""

    def __init__(self, context: PageContext) -> None:
        pool = getattr(context.studio, "pool", None)
        if not isinstance(pool, MeteredPool):
            return
        self._metrics: Metrics = pool.metrics
        self._logins = context.studio.logins
        self._tab = gr.Tab(say("tab_monitor", "zh"), id="monitor", elem_id="tab-monitor", visible=False)
        with context.keep(self._tab, label="tab_monitor"):
            about = gr.Markdown(say("about_monitor", "zh"), elem_classes="about")
            context.keep(about, value="about_monitor")
            self._board = gr.HTML(elem_id="monitor", padding=False)
        timer = gr.Timer(SECONDS, active=False)
        outputs = [self._tab, timer, self._board]
        page: Any = Context.root_block
        page.load(self._open, context.language, outputs, **QUIET)
        self._tab.select(self._begin, context.language, [timer, self._board], **QUIET)
        timer.tick(self._look, context.language, self._board, **QUIET)

    def may_watch(self, request: gr.Request) -> bool:
        """An administrator who is logged in; where nobody logs in, whoever sits at this machine."""
        if self._logins.required:
            return self._logins.is_admin(request.username)
        return request.request is not None and is_local(request.request)

    def _open(self, language: str, request: gr.Request) -> list[Any]:
        return [gr.update(visible=self.may_watch(request)), gr.update(active=False), ""]

    def _begin(self, language: str, request: gr.Request) -> list[Any]:
        return [gr.update(active=self.may_watch(request)), self._look(language, request)]

    def _look(self, language: str, request: gr.Request) -> str:
        # Hiding a tab keeps nobody from calling its handlers.
        return board(self._metrics, language) if self.may_watch(request) else ""


def board(metrics: Metrics, language: str) -> str:
    """All that is shown, as HTML."""
    status = metrics.status()
    parts = [_load(metrics, status, language), _workers(status.workers, language)]
    if gpus := metrics.gpus.read():
        parts.append(_gpus(gpus, language))
    parts.append(_errors(list(metrics.latest_errors), language))
    return "".join(parts)


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """p50, p95 and p99; empty for no values."""
    if not values:
        return {}
    ordered = sorted(values)
    last = len(ordered) - 1
    return {f"p{share}": ordered[round(last * share / 100)] for share in (50, 95, 99)}


def _load(metrics: Metrics, status: PoolStatus, language: str) -> str:
    places = sum(worker.concurrency for worker in status.workers if worker.ready)
    outcomes = " · ".join(
        say(f"monitor_{name}", language).format(count=metrics.outcomes[name]) for name in _OUTCOMES
    )
    rows = [
        (say("monitor_live", language), f"{status.live} / {places}"),
        (say("monitor_waiting", language), f"{status.waiting} / {status.queue_size}"),
        (say("monitor_first", language), _latency(list(metrics.latest_first), language)),
        (say("monitor_whole", language), _latency(list(metrics.latest_whole), language)),
        (say("monitor_outcomes", language), outcomes),
    ]
    state = say("monitor_ready" if status.ready else "monitor_not_ready", language)
    return f"<h3>{escape(say('monitor_load', language))} · {escape(state)}</h3>{_lines(rows)}"


def _latency(values: Sequence[float], language: str) -> str:
    found = quantiles(values)
    return say("monitor_quantiles", language).format(**found) if found else say("monitor_none", language)


def _workers(workers: Sequence[WorkerStatus], language: str) -> str:
    """A column for each worker: there are few of them, and much to tell of each."""
    shown = [_worker(worker, language) for worker in workers]
    rows = [
        [say(f"monitor_{name}", language), *(column[place] for column in shown)]
        for place, name in enumerate(_WORKER_ROWS)
    ]
    return f"<h3>{escape(say('monitor_workers', language))}</h3>{_lines(rows)}"


def _worker(worker: WorkerStatus, language: str) -> list[str]:
    stats = worker.stats
    state = say("monitor_worker_ready", language) if worker.ready else worker.stage
    state = state or say("monitor_worker_down", language)
    memory = f"{stats.memory_bytes / _GIB:.1f} GiB"
    if stats.device_bytes:
        memory += f" + {stats.device_bytes / _GIB:.1f} GiB"
    clips = stats.voice_hits + stats.voice_misses
    return [
        worker.name,
        worker.device,
        f"{state}: {worker.error}" if worker.error and not worker.ready else state,
        f"{worker.live} / {worker.concurrency}",
        f"{stats.drawing} / {stats.slots}",
        f"{stats.speech_busy:.0%} / {stats.wave_busy:.0%}",
        f"{_mean(stats.speech_rows, stats.speech_steps)} / {_mean(stats.wave_items, stats.wave_batches)}",
        f"{stats.voice_hits / clips:.0%}" if clips else "–",
        memory,
        str(worker.restarts),
        ", ".join(f"{part} {backend}" for part, backend in worker.backends.items() if part != "device"),
    ]


def _mean(total: int, count: int) -> str:
    return f"{total / count:.1f}" if count else "–"


def _gpus(gpus: Sequence[Gpu], language: str) -> str:
    rows = [
        [
            f"{gpu.index} {gpu.name}",
            f"{gpu.utilisation:.0%}",
            f"{gpu.memory_used / _GIB:.1f} / {gpu.memory_total / _GIB:.1f} GiB",
            f"{gpu.power:.0f} W",
            f"{gpu.temperature:.0f} °C",
        ]
        for gpu in gpus
    ]
    return _table("monitor_gpus", ("gpu", "use", "memory", "power", "heat"), rows, language)


def _errors(errors: Sequence[LatestError], language: str) -> str:
    rows = [
        [
            time.strftime("%H:%M:%S", time.localtime(error.moment)),
            error.front,
            error.code,
            explain_code(error.code, error.message, language),
            error.request_id,
        ]
        for error in reversed(errors)
    ]
    if not rows:
        return f"<h3>{escape(say('monitor_errors', language))}</h3><p>{escape(say('monitor_none', language))}</p>"
    return _table("monitor_errors", ("when", "front", "kind", "message", "request"), rows, language)


def _lines(rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column are the names."""
    lines = "".join(
        f"<tr><th>{escape(name)}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
        for name, *cells in rows
    )
    return f'<div class="monitor-table"><table>{lines}</table></div>'


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], language: str) -> str:
    head = "".join(f"<th>{escape(say(f'monitor_{name}', language))}</th>" for name in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return (
        f"<h3>{escape(say(title, language))}</h3>"
        f'<div class="monitor-table"><table><tr>{head}</tr>{body}</table></div>'
    )

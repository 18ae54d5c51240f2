"""The visitor's batches: which there are, how far the chosen one is, and what can be done with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr

from inference.types import RequestError, SynthesisError
from webui.batch.jobs import BatchStatus
from webui.outputs import hand_out
from webui.page.context import QUIET, PageContext
from webui.page.texts import explain, say, say_of
from webui.visitors import visitor_of

TICK_SECONDS = 1.5
MOST_FAILURES = 5  # told on the page; the report in the archive has them all


class BatchList:
    """Builds its controls in the current block. `inputs` and `outputs` are those of `show`."""

    def __init__(self, context: PageContext) -> None:
        self._context = context
        self._jobs = context.studio.jobs
        self._handed: dict[tuple[str, int], str] = {}  # archive of a batch with so many ended rows
        keep = context.keep
        self._chosen = self._context.line_list("batch_list", "batch-list")
        self._progress = gr.HTML(elem_id="batch-progress", elem_classes="announced")
        with gr.Row(elem_classes="small-row"):
            self._stop = self._button("stop")
            self._resume = self._button("resume")
            self._retry = self._button("retry")
            self._delete = self._button("delete")
        self._archive = gr.DownloadButton(
            say("batch_archive", "zh"), visible=False, variant="primary", elem_id="batch-archive"
        )
        keep(self._archive, label="batch_archive")
        self._timer = gr.Timer(TICK_SECONDS, active=False)
        self.inputs = [self._chosen, context.language]
        self.outputs = [
            self._chosen,
            self._progress,
            self._stop,
            self._resume,
            self._retry,
            self._delete,
            self._archive,
            self._timer,
        ]
        self._connect()

    def _button(self, name: str) -> gr.Button:
        text = f"batch_{name}"
        made = gr.Button(say(text, "zh"), size="sm", visible=False, elem_id=f"batch-{name}")
        return self._context.keep(made, value=text)

    def _connect(self) -> None:
        self._timer.tick(self.show, self.inputs, self.outputs, **QUIET)
        for event in (self._chosen.input, self._context.language.input):
            event(self.show, self.inputs, self.outputs, **QUIET)
        jobs = self._jobs
        actions: list[tuple[gr.Button, Callable[[str, str], None]]] = [
            (self._stop, jobs.stop),
            (self._resume, jobs.resume),
            (self._retry, jobs.resume),
            (self._delete, jobs.delete),
        ]
        for button, action in actions:
            button.click(self._after(action), self.inputs, self.outputs, **QUIET)

    def _after(self, action: Callable[[str, str], None]) -> Callable[..., Any]:
        async def handle(chosen: str | None, language: str, request: gr.Request) -> list[Any]:
            visitor = visitor_of(request)
            try:
                await asyncio.to_thread(action, chosen or "", visitor)
            except SynthesisError as error:
                shown = await self.shown(chosen, language, visitor)
                shown[1] = f"<p>⚠️ {escape(explain(error, language))}</p>"
                return shown
            return await self.shown(chosen, language, visitor)

        return handle

    def unchanged(self) -> list[Any]:
        """The outputs as they are."""
        return [gr.skip() for _ in self.outputs]

    async def show(self, chosen: str | None, language: str, request: gr.Request) -> list[Any]:
        """The list as it is now, for the browser that asks."""
        return await self.shown(chosen, language, visitor_of(request))

    async def shown(self, chosen: str | None, language: str, visitor: str) -> list[Any]:
        """The outputs for a visitor; the newest batch is taken when `chosen` is none of theirs."""
        return await asyncio.to_thread(self._shown, chosen, language, visitor)

    def _shown(self, chosen: str | None, language: str, visitor: str) -> list[Any]:
        found = self._jobs.jobs(visitor)
        status = next((one for one in found if one.id == chosen), found[0] if found else None)
        choices = [(batch_line(one, language), one.id) for one in found]
        running = any(one.state == "running" for one in found)
        if status is None:
            hidden = [gr.update(visible=False) for _ in range(5)]
            return [gr.update(choices=[], value=None, visible=False), "", *hidden, gr.Timer(active=False)]
        archive = None if status.state == "running" else self._archive_of(status, visitor)
        return [
            gr.update(choices=choices, value=status.id, visible=True),
            progress_html(status, language),
            gr.update(visible=status.state == "running"),
            gr.update(visible=status.state == "stopped"),
            gr.update(visible=status.state == "done" and bool(status.failures)),
            gr.update(visible=status.state != "running"),
            gr.update(visible=archive is not None, value=archive),
            gr.Timer(active=running),
        ]

    def _archive_of(self, status: BatchStatus, visitor: str) -> str | None:
        """The zip, made once for each state of the batch; None while there is nothing in it."""
        ended = status.spoken + len(status.failures)
        if not status.spoken:
            return None
        known = self._handed.get((status.id, ended))
        if known and Path(known).is_file():
            return known
        try:
            path = hand_out(self._jobs.archive(status.id, visitor))
        except (RequestError, OSError):  # deleted in this moment
            return None
        self._handed = {key: value for key, value in self._handed.items() if key[0] != status.id}
        self._handed[(status.id, ended)] = path
        return path


def batch_line(status: BatchStatus, language: str) -> str:
    """One line about a batch."""
    return say_of("batch_line", status.total, language).format(
        name=status.name,
        state=say(f"batch_{status.state}", language),
        spoken=status.spoken,
        total=status.total,
        seconds=status.seconds,
    )


def progress_html(status: BatchStatus, language: str) -> str:
    """A bar, and the first rows that failed with their reasons."""
    ended = status.spoken + len(status.failures)
    line = escape(batch_line(status, language))
    html = f'<progress class="batch-bar" max="{status.total}" value="{ended}" aria-label="{line}"></progress>'
    if status.failures:
        failed = say("batch_failed", language).format(count=len(status.failures))
        html += f'<p class="batch-failures">⚠️ {failed}</p><ul>'
        for failure in status.failures[:MOST_FAILURES]:
            reason = explain(failure.error, language)
            html += f"<li>{escape(say('batch_row_failed', language).format(row=failure.row + 1, reason=reason))}</li>"
        if len(status.failures) > MOST_FAILURES:
            html += f"<li>{say('batch_more', language)}</li>"
        html += "</ul>"
    return html

"""The tab for whole files of texts: what to say and how, then the visitor's batches and how far they are."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr

from inference.frontend.encode import FORMATS
from inference.types import Mode, Reference, RequestError, SynthesisError
from inference.validate import reference_missing
from webui.batch.job import BatchSettings
from webui.batch.rows import Row, read_rows
from webui.page.batch_list import BatchList
from webui.page.context import QUIET, PageContext
from webui.page.reference import ReferencePicker
from webui.page.settings_part import speed_slider
from webui.page.texts import explain, say, say_of
from webui.visitors import visitor_of

logger = logging.getLogger(__name__)

MODES = (Mode.CLONE, Mode.CROSS_LINGUAL, Mode.INSTRUCT)
ENDINGS = [".txt", ".csv", ".tsv", ".jsonl", ".srt"]


class BatchTab:
    """Opens its own `gr.Tab`."""

    def __init__(self, context: PageContext) -> None:
        self._context = context
        self._studio = context.studio
        tab = gr.Tab(say("tab_batch", "zh"), id="batch", elem_id="tab-batch")
        with context.keep(tab, label="tab_batch"):
            context.keep(gr.Markdown(say("about_batch", "zh"), elem_classes="about"), value="about_batch")
            with gr.Row(elem_classes="columns"):
                with gr.Column(min_width=320, scale=6, elem_classes="card"):
                    self._build_file()
                    self._picker = ReferencePicker(context, "batch")
                with gr.Column(min_width=320, scale=5, elem_classes="card"):
                    self._build_settings()
                    self._list = BatchList(context)
        self._connect()
        tab.select(self._list.show, self._list.inputs, self._list.outputs, **QUIET)

    def _build_file(self) -> None:
        keep = self._context.keep
        self._file = keep(
            gr.File(label=say("batch_file", "zh"), file_types=ENDINGS, type="filepath", elem_id="batch-file"),
            label="batch_file",
        )
        keep(gr.Markdown(say("batch_columns", "zh"), elem_classes="hint"), value="batch_columns")

    def _build_settings(self) -> None:
        keep = self._context.keep
        self._mode = gr.Radio(
            _mode_choices("zh"), value=MODES[0].value, label=say("batch_mode", "zh"), elem_id="batch-mode"
        )
        keep(self._mode, label="batch_mode")
        self._context.on_show(lambda language: [gr.update(choices=_mode_choices(language))], [], [self._mode])
        self._instruction = keep(
            gr.Textbox(label=say("instruction", "zh"), visible=False, lines=2, elem_id="batch-instruction"),
            label="instruction",
            placeholder="instruction_hint",
        )
        with gr.Row(elem_classes="seed-row"):
            self._speed = speed_slider(self._context, "batch")
            self._seed = keep(
                gr.Number(0, precision=0, label=say("seed", "zh"), min_width=100, elem_id="batch-seed"),
                label="seed",
            )
        self._format = keep(
            gr.Radio(list(FORMATS), value="wav", label=say("batch_format", "zh"), elem_id="batch-format"),
            label="batch_format",
        )
        self._start = keep(
            gr.Button(say("batch_start", "zh"), variant="primary", elem_id="batch-start"), value="batch_start"
        )
        self._status = self._context.keep_sentence(
            gr.Markdown(elem_id="batch-status", elem_classes=["status", "announced"])
        )

    def _connect(self) -> None:
        language = self._context.language
        self._file.change(self._read, [self._file, language], self._status, **QUIET)
        self._mode.change(
            lambda mode: gr.update(visible=mode == Mode.INSTRUCT.value),
            self._mode,
            self._instruction,
            **QUIET,
        )
        self._start.click(
            self._begin,
            [
                self._file,
                self._mode,
                self._instruction,
                self._speed,
                self._seed,
                self._format,
                language,
                *self._picker.inputs,
            ],
            [self._status, *self._list.outputs],
            api_visibility="private",
            show_progress="hidden",
            trigger_mode="once",  # an impatient second click starts no second batch
        )

    # ------------------------------------------------------------------------------------------------- handlers
    async def _read(self, file: str | None, language: str) -> str:
        if not file:
            return ""

        def tell() -> str:
            rows = read_rows(Path(file).name, Path(file).read_bytes())
            first = rows[0].text if len(rows[0].text) <= 60 else rows[0].text[:60] + "…"
            return say_of("batch_read", len(rows), language).format(count=len(rows), first=escape(first))

        return await _told(tell, language)

    async def _begin(
        self,
        request: gr.Request,
        file: str | None,
        mode: str,
        instruction: str,
        speed: float,
        seed: float | None,
        audio_format: str,
        language: str,
        *reference: Any,
    ) -> list[Any]:
        """(status, the list's outputs)."""
        visitor = visitor_of(request)
        number: str | None = None
        try:
            if not file:
                return [f"⚠️ {say('batch_no_file', language)}", *self._list.unchanged()]
            if not visitor:
                return [f"⚠️ {say('history_no_cookie', language)}", *self._list.unchanged()]
            rows = await asyncio.to_thread(lambda: read_rows(Path(file).name, Path(file).read_bytes()))
            voice, _ = self._picker.voice_of(*reference)
            settings = BatchSettings(
                Mode(mode), voice, instruction or "", float(speed), int(seed or 0), audio_format=audio_format
            )
            check_rows(rows, settings)
            if isinstance(voice, Reference):
                await self._studio.check_reference(voice)
            number = await asyncio.to_thread(
                self._studio.jobs.start, rows, settings, visitor, Path(file).name
            )
        except SynthesisError as error:
            return [f"⚠️ {explain(error, language)}", *self._list.unchanged()]
        except Exception:
            logger.exception("a batch could not be started")
            return [f"⚠️ {say('unexpected', language)}", *self._list.unchanged()]
        told = say_of("batch_started", len(rows), language).format(count=len(rows))
        return [told, *(await self._list.shown(number, language, visitor))]


def check_rows(rows: list[Row], settings: BatchSettings) -> None:
    """Raise the `RequestError` that every row would end with."""
    if settings.voice is None and any(not row.voice for row in rows):
        raise reference_missing()
    bare = any(
        not row.instruction and (row.mode or settings.mode.value) == Mode.INSTRUCT.value for row in rows
    )
    if bare and not settings.instruction.strip():
        raise RequestError(
            "instruction_missing", "Write an instruction, for example: speak slowly and gently."
        )


def _mode_choices(language: str) -> list[tuple[str, str]]:
    return [(say(f"tab_{mode.value}", language), mode.value) for mode in MODES]


async def _told(work: Callable[[], str], language: str) -> str:
    """What `work` says, or the sentence about what is wrong."""
    try:
        return await asyncio.to_thread(work)
    except SynthesisError as error:
        return f"⚠️ {explain(error, language)}"
    except OSError:
        return f"⚠️ {say('batch_no_file', language)}"

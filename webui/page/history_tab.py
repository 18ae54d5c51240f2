"""The tab with what this browser has had made: listen, take again, use its settings, delete."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import gradio as gr

from inference.types import Mode, SynthesisError
from webui.history import PastTake
from webui.outputs import DAY, hand_out, take_back
from webui.page.context import QUIET, PageContext
from webui.page.tab import SynthesisTab
from webui.page.texts import explain, say, say_of
from webui.visitors import visitor_of

LONGEST_TEXT = 60
_IS_OPEN = "(_, ...others) => [studio.isShown('tab-history'), ...others]"
Outputs = list[Any]


class HistoryTab:
    """Opens its own `gr.Tab`. `synthesis_tabs` are filled in again by "use these settings"."""

    def __init__(
        self, context: PageContext, synthesis_tabs: Mapping[Mode, SynthesisTab], tabs: gr.Tabs
    ) -> None:
        self._context = context
        self._history = context.studio.history
        self._tabs = synthesis_tabs
        tab = gr.Tab(say("tab_history", "zh"), id="history", elem_id="tab-history")
        with context.keep(tab, label="tab_history"):
            self._about = gr.Markdown(elem_classes="about")
            context.on_show(lambda language: [self._kept(language)], [], [self._about])
            with gr.Row(elem_classes="columns"):
                with gr.Column(min_width=320, scale=6, elem_classes="card"):
                    self._build_list()
                with gr.Column(min_width=320, scale=5, elem_classes="card") as self._card:
                    self._build_take()
        self._connect(tab, tabs)

    def _build_list(self) -> None:
        self._chosen = self._context.line_list("history_pick", "history-list")
        self._open = gr.Checkbox(visible=False)  # whether the tab is, filled in by `_IS_OPEN`
        self._status = gr.Markdown(elem_id="history-status", elem_classes="announced")
        with gr.Row(elem_classes="small-row"):
            self._clear = self._button("clear", size="sm")
            self._sure = self._button("clear_sure", size="sm", variant="stop")

    def _build_take(self) -> None:
        self._player = self._context.keep(
            gr.Audio(
                label=say("history_listen", "zh"),
                type="filepath",
                interactive=False,
                visible=False,
                buttons=[],
                elem_id="history-player",
                elem_classes="player",
            ),
            label="history_listen",
        )
        self._facts = gr.Markdown(elem_id="history-facts")
        with gr.Row(elem_classes="small-row"):
            self._reuse = self._button("reuse", size="sm", variant="primary")
            self._download = gr.DownloadButton(
                say("history_download", "zh"), size="sm", visible=False, elem_id="history-download"
            )
            self._context.keep(self._download, label="history_download")
            self._delete = self._button("delete", size="sm")

    def _button(self, name: str, **look: Any) -> gr.Button:
        text = f"history_{name}"
        made = gr.Button(say(text, "zh"), visible=False, elem_id=f"history-{name.replace('_', '-')}", **look)
        return self._context.keep(made, value=text)

    def _connect(self, tab: gr.Tab, tabs: gr.Tabs) -> None:
        inputs = [self._chosen, self._context.language]
        outputs = [
            self._chosen,
            self._status,
            self._player,
            self._facts,
            self._reuse,
            self._download,
            self._delete,
            self._clear,
            self._sure,
            self._card,
        ]
        tab.select(self._show, inputs, outputs, **QUIET)
        # What this page has had made is there at once for who waits in this tab.
        for one in self._tabs.values():
            one.ended.then(self._renew, [self._open, *inputs], outputs, js=_IS_OPEN, **QUIET)
        for event in (self._chosen.input, self._context.language.input):
            event(self._show, inputs, outputs, **QUIET)
        self._delete.click(self._remove, inputs, outputs, **QUIET)
        self._clear.click(lambda: [gr.update(visible=False), gr.update(visible=True)], None,
                          [self._clear, self._sure], **QUIET)  # fmt: skip
        self._sure.click(self._remove_all, inputs, outputs, **QUIET)
        settings = [part for one in self._tabs.values() for part in one.settings_components]
        self._reuse.click(self._use_again, inputs, [self._status, tabs, *settings], **QUIET)

    # ------------------------------------------------------------------------------------------------- handlers
    async def _show(self, chosen: int | None, language: str, request: gr.Request) -> Outputs:
        return await asyncio.to_thread(self._shown, chosen, language, visitor_of(request))

    async def _renew(self, is_open: bool, chosen: int | None, language: str, request: gr.Request) -> Outputs:
        """What is new in the list; who listens to an older result is left alone."""
        if not is_open:  # its takes are read when it is opened
            return [gr.skip()] * 10
        visitor = visitor_of(request)
        takes = await asyncio.to_thread(self._history.takes, visitor)
        if all(one.id != chosen for one in takes):
            return await asyncio.to_thread(self._shown, None, language, visitor)
        choices = [(take_line(one, language), one.id) for one in takes]
        return [gr.update(choices=choices, value=chosen), *[gr.skip()] * 9]

    async def _remove(self, chosen: int | None, language: str, request: gr.Request) -> Outputs:
        return await asyncio.to_thread(self._removed, chosen, language, visitor_of(request))

    def _removed(self, chosen: int | None, language: str, visitor: str) -> Outputs:
        try:
            take_back(self._history.find(visitor, int(chosen or 0)).path)
            self._history.delete(visitor, int(chosen or 0))
        except SynthesisError:  # gone already: the list says so
            pass
        return self._shown(None, language, visitor)

    async def _remove_all(self, chosen: int | None, language: str, request: gr.Request) -> Outputs:
        return await asyncio.to_thread(self._removed_all, language, visitor_of(request))

    def _removed_all(self, language: str, visitor: str) -> Outputs:
        for take in self._history.takes(visitor):
            take_back(take.path)
        self._history.clear(visitor)
        return self._shown(None, language, visitor)

    def _shown(self, chosen: int | None, language: str, visitor: str) -> Outputs:
        takes = self._history.takes(visitor)
        take = next((one for one in takes if one.id == chosen), takes[0] if takes else None)
        buttons = gr.update(visible=take is not None)
        if take is None:
            told = say("history_none" if visitor else "history_no_cookie", language)
            hidden, empty = gr.update(visible=False), gr.update(visible=False, value=None)
            return [
                gr.update(choices=[], value=None, visible=False),
                told,
                empty,
                "",
                buttons,
                empty,
                *[hidden] * 4,
            ]
        path = hand_out(take.path)
        choices = [(take_line(one, language), one.id) for one in takes]
        return [
            gr.update(choices=choices, value=take.id, visible=True),
            "",
            gr.update(value=path, visible=True),
            take_facts(take, language),
            buttons,
            gr.update(value=path, visible=True),
            buttons,
            buttons,
            gr.update(visible=False),
            buttons,
        ]

    async def _use_again(self, chosen: int | None, language: str, request: gr.Request) -> Outputs:
        """(status, tabs, the settings of every synthesis tab)."""
        nothing = [gr.skip() for one in self._tabs.values() for _ in one.settings_components]
        try:
            take = await asyncio.to_thread(self._history.find, visitor_of(request), int(chosen or 0))
        except SynthesisError as error:
            return [f"⚠️ {explain(error, language)}", gr.skip(), *nothing]
        updates: list[Any] = []
        for mode, tab in self._tabs.items():
            if mode.value == take.mode:
                updates += tab.settings_updates(await asyncio.to_thread(_settings_of, take))
            else:
                updates += [gr.skip() for _ in tab.settings_components]
        told = say("history_reused", language).format(tab=say(f"tab_{take.mode}", language))
        if take.clip is None and not take.settings.get("voice"):
            told += " " + say("history_clip_gone", language)
        return [told, gr.Tabs(selected=take.mode), *updates]

    def _kept(self, language: str) -> str:
        days = round(self._context.studio.outputs.retention.seconds / DAY)
        keep = (
            say_of("history_kept", days, language) if days else say("history_kept_always", language)
        ).format(days=days)
        return say("about_history", language).format(keep=keep)


def _settings_of(take: PastTake) -> dict[str, Any]:
    """What `SynthesisTab.settings_updates` takes, with a copy of the clip for its owner."""
    settings = {"text": take.text, "seed": take.seed, **take.settings}
    if take.clip is not None:
        settings["clip"] = hand_out(take.clip)
    return settings


def take_line(take: PastTake, language: str) -> str:
    """One line about a take: when, how, whose voice, what; the end of it may be cut off."""
    when = time.strftime("%m-%d %H:%M", time.localtime(take.created))
    text = " ".join(take.text.split())
    text = text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT] + "…"
    return " · ".join(filter(None, [when, say(f"tab_{take.mode}", language), take.voice, text]))


def take_facts(take: PastTake, language: str) -> str:
    """Length, seed and name of the file."""
    unit = "秒" if language == "zh" else "s"
    seed = say("seed", language)
    return f"{take.duration:.1f} {unit} · {seed} {take.seed}  \n`{take.path.name}`"

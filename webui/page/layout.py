"""The whole page: title bar, language and colours, and the tabs."""

from __future__ import annotations

import json
from html import escape
from typing import Any

import gradio as gr

from inference.types import Mode
from webui.page.batch_tab import BatchTab
from webui.page.context import QUIET, PageContext, Translated
from webui.page.first_language import BUILT_IN, wanted_language
from webui.page.history_tab import HistoryTab
from webui.page.look import CSS
from webui.page.monitor_tab import MonitorTab
from webui.page.sharing_note import SharingNote
from webui.page.tab import SynthesisTab
from webui.page.texts import LANGUAGES, say
from webui.page.voices_tab import VoicesTab, voice_choices
from webui.studio import Studio

MODES = (Mode.CLONE, Mode.CROSS_LINGUAL, Mode.INSTRUCT)
UPLOAD_LIFETIME = (
    6 * 3600
)  # seconds until a visitor's files are removed, also under a page that is still open
_LOGO = (
    '<svg viewBox="0 0 32 32" width="40" height="40" aria-hidden="true"><rect width="32" height="32" rx="9"/>'
    '<path d="M7 14v4M11.5 10v12M16 6v20M20.5 11v10M25 14v4"/></svg>'
)


def build_page(
    studio: Studio, *, can_stream: bool, notice: str | None = None, language: str = "auto"
) -> gr.Blocks:
    """The page over `studio`.

    `notice`: the text key of a line for every visitor; `language`: "zh", "en" or "auto" for the browser's, until the
    visitor chooses one.
    """
    with gr.Blocks(
        title="CosyVoice2 Studio",
        analytics_enabled=False,
        delete_cache=(UPLOAD_LIFETIME // 6, UPLOAD_LIFETIME),
    ) as blocks:
        page: gr.Blocks = blocks
        heading, switch, colours = _title_bar()
        # The small bundled model speaks English only, and what a newcomer hears first should be understood.
        context = PageContext(studio, switch, can_stream, "English" if notice == "notice_bundled" else "")
        context.keep(switch, label="language_label")
        context.keep(colours, value="colours")
        if notice:
            context.keep(gr.Markdown(say(notice, "zh"), elem_id="notice"), value=notice)
        SharingNote(context)
        with gr.Tabs(elem_id="tabs", overflow_behavior="wrap") as tabs:
            synthesis = {mode: SynthesisTab(context, mode) for mode in MODES}
            if studio.voices is not None:
                VoicesTab(context)
            BatchTab(context)
            HistoryTab(context, synthesis, tabs)
            MonitorTab(context)
        _follow_the_library(context)
        _speak_the_language(page, context, heading, language)
    return page


def _title_bar() -> tuple[Any, Any, Any]:
    """(heading, language switch, button of the colours)."""
    with gr.Row(elem_classes="title-bar"):
        heading = gr.HTML(_heading("zh"), padding=False, elem_id="heading")
        with gr.Row(elem_classes="switches"):
            language = gr.Radio(
                [("中文", "zh"), ("English", "en")],
                value=BUILT_IN,
                label=say("language_label", "zh"),
                show_label=False,
                container=False,
                elem_id="language",
                min_width=0,
            )
            colours = gr.Button(say("colours", "zh"), elem_id="colours", size="sm", scale=0, min_width=0)
            colours.click(None, None, None, js="() => { studio.switchColours(); }", **QUIET)
    return heading, language, colours


def _heading(language: str) -> str:
    return (
        f'<div class="brand">{_LOGO}<div><h1>{escape(say("title", language))}</h1>'
        f"<p>{escape(say('tagline', language))}</p></div></div>"
    )


# ---------------------------------------------------------------------------------------------- saved voices
def _follow_the_library(context: PageContext) -> None:
    """Every list of voices is read again when one changes, and when the page is opened."""
    library, lists = context.studio.voices, context.voice_lists
    if library is None:
        return

    def read(language: str) -> list[Any]:
        voices = voice_choices(library)
        new = [(say("voice_new", language), "")]
        return [
            gr.update(choices=[*new, *voices] if isinstance(part, gr.Dropdown) else voices) for part in lists
        ]

    context.on_show(read, [], lists)
    for change in context.voice_changes:
        change.then(read, context.language, lists, **QUIET)
    for part in lists:
        if isinstance(part, gr.Dropdown):  # another visitor may have saved one meanwhile
            part.focus(read, context.language, lists, **QUIET)


# -------------------------------------------------------------------------------------------------- language
def _speak_the_language(page: gr.Blocks, context: PageContext, heading: Any, language: str) -> None:
    """The page arrives in the visitor's language (`FirstLanguage`); what is made, not looked up, comes a moment later.

    Then the words follow the switch, which is remembered.
    """
    switch, entries, refreshers = context.language, context.translated, context.refreshers
    inputs = [part for refresher in refreshers for part in refresher.inputs]
    made = [part for refresher in refreshers for part in refresher.outputs]
    looked_up = [heading, *(entry.component for entry in entries)]

    def words(chosen: str) -> list[Any]:
        return [_heading(chosen), *(_update(entry, chosen) for entry in entries)]

    def refresh(chosen: str, values: tuple[Any, ...]) -> list[Any]:
        updates: list[Any] = []
        rest = list(values)
        for refresher in refreshers:
            own, rest = rest[: len(refresher.inputs)], rest[len(refresher.inputs) :]
            updates += refresher.function(*own, chosen)
        return updates

    def translate(chosen: str, *values: Any) -> list[Any]:
        return [*words(chosen), *refresh(chosen, values)]

    def greet(shown: str, request: gr.Request, *values: Any) -> list[Any]:
        chosen = wanted_language(request.headers, language)
        if chosen == shown:
            return [gr.skip() for _ in (switch, *looked_up)] + refresh(chosen, values)
        return [chosen, *words(chosen), *refresh(chosen, values)]

    tell = "(chosen) => studio.setLanguage(chosen, {})"
    page.load(greet, [switch, *inputs], [switch, *looked_up, *made], **QUIET).then(
        None, switch, None, js=tell.format("false"), **QUIET
    )
    switch.input(translate, [switch, *inputs], [*looked_up, *made], **QUIET)
    switch.input(None, switch, None, js=tell.format("true"), **QUIET)
    # What was said of the last result, in the words of before, would stay.
    empty = json.dumps([""] * len(context.sentences))
    switch.input(None, None, context.sentences, js=f"() => {empty}", **QUIET)
    known: Any = page
    known.first_words = {
        one: {
            heading._id: {"value": _heading(one)},
            **{entry.component._id: _texts(entry, one) for entry in entries},
        }
        for one in LANGUAGES
    }


def _update(entry: Translated, language: str) -> dict[str, Any]:
    texts: dict[str, Any] = _texts(entry, language)
    updated: dict[str, Any] = gr.update(**texts)
    return updated


def _texts(entry: Translated, language: str) -> dict[str, str]:
    return {name: say(key, language) for name, key in entry.properties.items()}


__all__ = ["CSS", "LANGUAGES", "MODES", "build_page"]

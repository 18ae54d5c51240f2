"""The whole page: title bar, language switch and the three tabs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr

from inference.types import Mode
from webui.page.tab import SynthesisTab, Translated
from webui.page.texts import LANGUAGES, language_of, say
from webui.studio import Studio

CSS = Path(__file__).with_name("page.css")
MODES = (Mode.CLONE, Mode.CROSS_LINGUAL, Mode.INSTRUCT)
UPLOAD_LIFETIME = 3600  # seconds until a visitor's files are removed


def build_page(studio: Studio, *, can_stream: bool, notice: str | None = None) -> gr.Blocks:
    """The page over `studio`; `notice` is the text key of a line for every visitor."""
    with gr.Blocks(
        title="CosyVoice2 Studio", analytics_enabled=False, delete_cache=(UPLOAD_LIFETIME, UPLOAD_LIFETIME)
    ) as blocks:
        page: gr.Blocks = blocks
        translated: list[Translated] = []
        with gr.Row(elem_classes="title-bar"):
            heading = gr.Markdown(_heading("zh"), elem_id="heading")
            language = gr.Radio(
                [("中文", "zh"), ("English", "en")],
                value="zh",
                show_label=False,
                container=False,
                elem_id="language",
                scale=0,
                min_width=190,
            )
        if notice:
            line = gr.Markdown(say(notice, "zh"), elem_id="notice")
            translated.append(Translated(line, {"value": notice}))
        with gr.Tabs():
            for mode in MODES:
                translated += SynthesisTab(studio, mode, language, can_stream=can_stream).translated
        outputs = [heading, *(entry.component for entry in translated)]

        def translate(chosen: str) -> list[Any]:
            return [_heading(chosen), *(_update(entry, chosen) for entry in translated)]

        def greet(request: gr.Request) -> list[Any]:
            chosen = language_of(request.headers.get("accept-language", ""))
            return [chosen, *translate(chosen)]

        page.load(greet, outputs=[language, *outputs], queue=False, api_visibility="private")
        language.input(
            translate, language, outputs, queue=False, api_visibility="private", show_progress="hidden"
        )
    return page


def _heading(language: str) -> str:
    return f"# {say('title', language)}\n{say('tagline', language)}"


def _update(entry: Translated, language: str) -> dict[str, Any]:
    texts: dict[str, Any] = {name: say(key, language) for name, key in entry.properties.items()}
    updated: dict[str, Any] = gr.update(**texts)
    return updated


__all__ = ["CSS", "LANGUAGES", "build_page"]

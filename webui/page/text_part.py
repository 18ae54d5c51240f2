"""The text to speak: box, sounds and emphasis to put in, examples, and the segments that will be spoken."""

from __future__ import annotations

import json
from html import escape

import gradio as gr

from inference.types import MAX_TEXT_CHARACTERS, SynthesisError
from webui.page.context import QUIET, PageContext
from webui.page.examples import EXAMPLES
from webui.page.texts import explain, say

# (name of the button's text, before the cursor or selection, after it)
HELPERS = (
    ("helper_laughter", "[laughter]", ""),
    ("helper_breath", "[breath]", ""),
    ("helper_strong", "<strong>", "</strong>"),
    ("helper_laughing", "<laughter>", "</laughter>"),
)


class TextPart:
    """Builds the controls in the current block."""

    def __init__(self, context: PageContext, name: str) -> None:
        self._context = context
        self._name = name
        keep = context.keep
        self.text = keep(
            gr.Textbox(
                label=say("text", "zh"),
                lines=5,
                max_lines=14,
                elem_id=f"{name}-text",
            ),
            label="text",
            placeholder="text_hint",
        )
        with gr.Row(elem_classes="chip-row"):
            for key, before, after in HELPERS:
                self._build_helper(key, before, after)
        with gr.Row(elem_classes="chip-row"):
            keep(gr.Markdown(say("examples", "zh"), elem_classes="row-name"), value="examples")
            for language, example in EXAMPLES.items():
                self._build_example(language, example)
        self.count = gr.HTML(padding=False, elem_id=f"{name}-count")
        self._connect()

    def _build_helper(self, key: str, before: str, after: str) -> None:
        button = gr.Button(say(key, "zh"), size="sm", elem_classes="chip-button", min_width=40)
        self._context.keep(button, value=key)
        script = (
            f"(text) => studio.insert({_js(self._name + '-text')}, text || '', {_js(before)}, {_js(after)})"
        )
        button.click(None, self.text, self.text, js=script, **QUIET)

    def _build_example(self, language: str, example: str) -> None:
        button = gr.Button(language, size="sm", elem_classes="chip-button", min_width=40)
        button.click(None, None, self.text, js=f"() => {_js(example)}", **QUIET)

    def _connect(self) -> None:
        inputs = [self.text, self._context.language]
        self.text.change(self._tell, inputs, self.count, trigger_mode="always_last", **QUIET)
        self._context.on_show(lambda text, language: [self._tell(text, language)], [self.text], [self.count])

    def _tell(self, text: str | None, language: str) -> str:
        """Characters and segments, and behind them what the voice is given to say."""
        text = text or ""
        limit = min(
            self._context.studio.limiter.limits.characters or MAX_TEXT_CHARACTERS, MAX_TEXT_CHARACTERS
        )
        characters = say("characters", language).format(count=len(text), limit=limit)
        if not text.strip() or self._context.studio.texts is None:
            return f'<p class="count">{escape(characters)}</p>'
        try:
            segments = self._context.studio.texts.segments(text)
        except SynthesisError as error:
            wrong = escape(explain(error, language))
            return f'<p class="count">{escape(characters)} · <span class="bad">{wrong}</span></p>'
        told = say("segment_count" if len(segments) > 1 else "segment_one", language).format(
            count=len(segments)
        )
        items = "".join(f"<li>{escape(segment.text)}</li>" for segment in segments)
        return (
            f'<details class="count"><summary>{escape(characters)} · {escape(told)}</summary>'
            f'<p class="hint">{escape(say("segments_hint", language))}</p><ol>{items}</ol></details>'
        )


def _js(text: str) -> str:
    """A string for a script."""
    return json.dumps(text, ensure_ascii=False)

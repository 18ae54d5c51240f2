"""How the text is to be said: free words, and presets that write them."""

from __future__ import annotations

import json

import gradio as gr

from inference.types import MAX_INSTRUCTION_CHARACTERS
from webui.page.context import QUIET, PageContext
from webui.page.examples import PRESETS
from webui.page.texts import say


class InstructionPart:
    """Builds the controls in the current block; hidden in tabs that take no instruction."""

    def __init__(self, context: PageContext, name: str, *, visible: bool) -> None:
        keep = context.keep
        with gr.Column(visible=visible, elem_classes="instruction-part"):
            self.instruction = keep(
                gr.Textbox(
                    "",
                    label=say("instruction", "zh"),
                    lines=2,
                    # One more than allowed, so that it is the studio that says so, in the visitor's language.
                    max_length=MAX_INSTRUCTION_CHARACTERS + 1,
                    elem_id=f"{name}-instruction",
                ),
                label="instruction",
                placeholder="instruction_hint",
            )
            if not visible:
                return
            for group, presets in PRESETS.items():
                with gr.Row(elem_classes="chip-row"):
                    keep(gr.Markdown(say(group, "zh"), elem_classes="row-name"), value=group)
                    for key, instruction in presets:
                        button = gr.Button(
                            say(key, "zh"), size="sm", elem_classes="chip-button", min_width=40
                        )
                        keep(button, value=key)
                        script = f"() => {json.dumps(instruction, ensure_ascii=False)}"
                        button.click(None, None, self.instruction, js=script, **QUIET)

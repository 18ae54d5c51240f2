"""Speed, seed, streaming and file format."""

from __future__ import annotations

import random

import gradio as gr

from inference.frontend.encode import FORMATS
from inference.types import MAX_SPEED, MIN_SPEED
from webui.page.context import QUIET, PageContext
from webui.page.texts import say

SEED_LIMIT = 2**31 - 1


def new_seed() -> int:
    """A seed to try."""
    return random.randint(0, SEED_LIMIT)


def speed_slider(context: PageContext, name: str) -> gr.Slider:
    """How fast is spoken, on the tab `name`."""
    return context.keep(
        gr.Slider(
            MIN_SPEED,
            MAX_SPEED,
            1.0,
            step=0.05,
            label=say("speed", "zh"),
            buttons=[],
            elem_id=f"{name}-speed",
        ),
        label="speed",
    )


class SettingsPart:
    """Builds the controls in the current block."""

    def __init__(self, context: PageContext, name: str) -> None:
        keep = context.keep
        self.speed = speed_slider(context, name)
        with gr.Row(elem_classes="seed-row"):
            # No bounds here: Gradio would tell of a wrong number in English only.
            self.seed = keep(
                gr.Number(
                    0, precision=0, label=say("seed", "zh"), min_width=110, elem_id=f"{name}-seed", buttons=[]
                ),
                label="seed",
            )
            dice = keep(
                gr.Button(
                    say("dice", "zh"),
                    size="md",
                    scale=0,
                    min_width=96,
                    elem_id=f"{name}-dice",
                    elem_classes="dice",
                ),
                value="dice",
            )
        self.keep_seed = keep(
            gr.Checkbox(True, label=say("keep_seed", "zh"), container=False, elem_id=f"{name}-keep"),
            label="keep_seed",
        )
        self.streaming = keep(
            gr.Checkbox(
                context.can_stream,
                label=say("streaming", "zh"),
                interactive=context.can_stream,
                container=False,
                elem_id=f"{name}-streaming",
            ),
            label="streaming",
        )
        self.format = keep(
            gr.Radio(
                list(FORMATS), value="wav", label=say("format", "zh"), elem_id=f"{name}-format", buttons=[]
            ),
            label="format",
        )
        dice.click(new_seed, outputs=self.seed, **QUIET)

"""How the page looks: colours, type, style sheet and the little script that runs in the browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gradio as gr

from webui.page.texts_voices import TOASTS

_HERE = Path(__file__).parent
CSS = _HERE / "page.css"
SCRIPT = _HERE / "page.js"
# Only what is on the visitor's machine: the page fetches nothing from elsewhere.
_FONT = (
    "system-ui",
    "-apple-system",
    "Segoe UI",
    "PingFang SC",
    "Microsoft YaHei",
    "Noto Sans CJK SC",
    "sans-serif",
)
_MONO = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace")


def look() -> dict[str, Any]:
    """What `mount_gradio_app` and `launch` are given."""
    return {
        "theme": _theme(),
        "css_paths": [CSS, _HERE / "studio.css"],
        "js": _script(),
        "head": _HEAD,
    }


def _script() -> str:
    sentences = json.dumps(TOASTS, ensure_ascii=False)
    return SCRIPT.read_text(encoding="utf-8").replace('"@SENTENCES@"', sentences)


_HEAD = '<meta name="color-scheme" content="light dark">'


def waveform() -> Any:
    """How a clip is drawn, in either colour scheme."""
    return gr.WaveformOptions(
        waveform_color="#94a3b0", waveform_progress_color="#14b8a6", trim_region_color="#14b8a6"
    )


def _theme() -> Any:
    theme = gr.themes.Base(
        primary_hue="teal",
        secondary_hue="teal",
        neutral_hue="slate",
        radius_size=gr.themes.sizes.radius_lg,
        text_size=gr.themes.sizes.text_md,
        spacing_size=gr.themes.sizes.spacing_md,
        font=list(_FONT),
        font_mono=list(_MONO),
    )
    return theme.set(
        body_background_fill="#f4f6f7",
        body_background_fill_dark="#0e1315",
        background_fill_primary="#ffffff",
        background_fill_primary_dark="#161d20",
        background_fill_secondary="#f4f6f7",
        background_fill_secondary_dark="#1b2427",
        block_background_fill="#ffffff",
        block_background_fill_dark="#161d20",
        block_border_color="#e2e8ea",
        block_border_color_dark="#26333a",
        border_color_primary="#d6dee1",
        border_color_primary_dark="#2c3b42",
        block_label_background_fill="transparent",
        block_label_background_fill_dark="transparent",
        block_label_border_width="0px",
        block_label_text_color="#475569",
        block_label_text_color_dark="#a5b4bb",
        block_title_text_color="#334155",
        block_title_text_color_dark="#c3d0d6",
        block_title_text_weight="600",
        block_label_text_weight="600",
        block_shadow="none",
        block_border_width="0px",
        input_border_width="1px",
        button_border_width="1px",
        color_accent="#0f766e",
        input_background_fill="#fbfcfc",
        input_background_fill_dark="#10171a",
        input_placeholder_color="#64748b",
        input_placeholder_color_dark="#8a9ba4",
        body_text_color_subdued="#5b6b73",
        body_text_color_subdued_dark="#9fb0b8",
        input_border_color="#d6dee1",
        input_border_color_dark="#2c3b42",
        input_border_color_focus="#0f766e",
        input_border_color_focus_dark="#2dd4bf",
        button_primary_background_fill="#0f766e",
        button_primary_background_fill_hover="#115e59",
        button_primary_background_fill_dark="#14b8a6",
        button_primary_background_fill_hover_dark="#2dd4bf",
        button_primary_text_color="#ffffff",
        button_primary_text_color_dark="#04211d",
        button_secondary_background_fill="#ffffff",
        button_secondary_background_fill_dark="#1f2a2e",
        button_secondary_background_fill_hover="#eef4f3",
        button_secondary_background_fill_hover_dark="#27353a",
        button_secondary_border_color="#cbd5d9",
        button_secondary_border_color_dark="#35464e",
        button_secondary_text_color="#1e293b",
        button_secondary_text_color_dark="#e2eaed",
        slider_color="#0f766e",
        slider_color_dark="#2dd4bf",
        checkbox_background_color_dark="#10171a",
        checkbox_border_color="#94a3b0",
        checkbox_border_color_dark="#5b6f78",
        checkbox_background_color_selected="#0f766e",
        checkbox_background_color_selected_dark="#14b8a6",
        checkbox_border_color_selected="#0f766e",
        checkbox_label_background_fill_selected="#0f766e",
        checkbox_label_background_fill_selected_dark="#14b8a6",
        checkbox_label_text_color_selected="#ffffff",
        checkbox_label_text_color_selected_dark="#04211d",
    )

"""Keeping a clip as a saved voice: a name and a button, in every tab that takes a clip."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import gradio as gr

from inference.types import Reference, SynthesisError
from inference.validate import reference_missing
from inference.voices import save_clip
from webui.page.context import PageContext
from webui.page.texts import explain, say
from webui.page.verdict import sentence_html

logger = logging.getLogger(__name__)


class VoiceSaver:
    """Builds its controls in the current block; `audio` and `transcript` are the clip's."""

    def __init__(
        self, context: PageContext, name: str, audio: Any, transcript: Any, *, folded: bool = True
    ) -> None:
        """`folded`: behind a line that opens it, which is there once there is a clip."""
        self._context = context
        self.fold: gr.Accordion | None = None
        if folded:
            with gr.Accordion(
                say("save_voice", "zh"), open=False, visible=False, elem_classes="quiet-fold"
            ) as self.fold:
                context.keep(self.fold, label="save_voice")
                self._build(name)
        else:
            self._build(name)
        saving = gr.on(
            [self._save.click, self.named.submit],
            self._keep,
            [self.named, audio, transcript, context.language],
            [self.named, self.told],
            api_visibility="private",
            show_progress="hidden",
        )
        context.voice_changes.append(saving)

    def _build(self, name: str) -> None:
        keep = self._context.keep
        with gr.Row(elem_classes="name-row"):
            self.named = keep(
                gr.Textbox(
                    label=say("voice_name", "zh"), max_length=60, min_width=140, elem_id=f"{name}-voice-name"
                ),
                label="voice_name",
                placeholder="voice_name_hint",
            )
            self._save = keep(
                gr.Button(say("save", "zh"), size="md", scale=0, min_width=96, elem_id=f"{name}-voice-save"),
                value="save",
            )
        self.told = self._context.keep_sentence(
            gr.HTML(padding=False, elem_id=f"{name}-voice-told", elem_classes="announced")
        )

    async def _keep(
        self, name: str, audio: str | None, transcript: str | None, language: str
    ) -> tuple[Any, str]:
        """(the box of the name, a sentence)."""
        studio = self._context.studio
        try:
            if not audio:
                raise reference_missing()
            if studio.voices is None:
                return gr.skip(), ""
            clip = Reference(Path(audio), transcript or "")
            entry = await save_clip(studio.pool, studio.voices, name or "", clip)
        except SynthesisError as error:
            return gr.skip(), sentence_html(f"⚠️ {explain(error, language)}", "bad")
        except Exception:
            logger.exception("a voice could not be saved")
            return gr.skip(), sentence_html(f"⚠️ {say('unexpected_short', language)}", "bad")
        return "", sentence_html(say("voice_saved", language).format(name=entry.name), "good")

"""The tab of saved voices: listen, rename, delete, export; add one from a clip or a file."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradio as gr

from inference.types import SynthesisError
from inference.voices import SavedVoice, VoiceLibrary
from webui.outputs import file_word, hand_out
from webui.page.context import QUIET, PageContext
from webui.page.look import waveform
from webui.page.reference import ReferencePicker
from webui.page.texts import explain, say
from webui.page.verdict import sentence_html
from webui.page.voice_saving import VoiceSaver

logger = logging.getLogger(__name__)

ENDING = ".voice.safetensors"
Steps = list[Any]


class VoicesTab:
    """Builds the tab (inside the current Tabs); needs a studio with a library."""

    def __init__(self, context: PageContext) -> None:
        library = context.studio.voices
        if library is None:
            raise ValueError("a studio without a library of voices has no tab for it")
        self._context = context
        self._library: VoiceLibrary = library
        keep = context.keep
        with gr.Tab(say("tab_voices", "zh"), id="voices", elem_id="tab-voices") as tab:
            keep(tab, label="tab_voices")
            about = "about_voices_locked" if library.locked else "about_voices"
            keep(gr.Markdown(say(about, "zh"), elem_classes="about"), value=about)
            with gr.Row(elem_classes="columns"):
                with gr.Column(min_width=320, scale=6, elem_classes="card"):
                    self._build_list()
                    self._build_details()
                if not library.locked:
                    with gr.Column(min_width=320, scale=5, elem_classes="card"):
                        self._build_adding()
        self._connect()

    # ------------------------------------------------------------------------------------------------ controls
    def _build_list(self) -> None:
        keep = self._context.keep
        self.list = keep(
            gr.Radio(
                [],
                label=say("voices_mine", "zh"),
                elem_id="voices-list",
                elem_classes="voice-list",
                buttons=[],
            ),
            label="voices_mine",
        )
        self._empty = gr.HTML(padding=False, elem_id="voices-empty")
        if self._library.locked:
            keep(gr.Markdown(say("voices_locked_note", "zh")), value="voices_locked_note")

    def _build_details(self) -> None:
        keep, changeable = self._context.keep, not self._library.locked
        with gr.Column(visible=False, elem_classes="voice-details") as self._details:
            self._player = keep(
                gr.Audio(
                    waveform_options=waveform(),
                    label=say("voice_listen", "zh"),
                    interactive=False,
                    buttons=[],
                    elem_id="voices-player",
                    elem_classes="player",
                ),
                label="voice_listen",
            )
            self._facts = gr.HTML(padding=False, elem_id="voices-facts")
            self._rename = keep(
                gr.Textbox(
                    label=say("voice_name", "zh"), max_length=60, visible=changeable, elem_id="voices-name"
                ),
                label="voice_name",
            )
            self._transcript = keep(
                gr.Textbox(
                    label=say("transcript", "zh"), lines=2, interactive=changeable, elem_id="voices-said"
                ),
                label="transcript",
            )
            with gr.Row(elem_classes="small-row", visible=changeable) as self._asking:
                self._apply = self._button("voice_rename", "voices-apply")
                self._export = keep(
                    gr.DownloadButton(
                        say("voice_export", "zh"), size="md", min_width=90, elem_id="voices-export"
                    ),
                    label="voice_export",
                )
                self._delete = self._button("voice_delete", "voices-delete")
            with gr.Row(elem_classes="small-row", visible=False) as self._sure:
                self._really = self._button("voice_delete_sure", "voices-delete-sure", variant="stop")
                self._not = self._button("voice_delete_not", "voices-delete-not")
        self._told = self._context.keep_sentence(
            gr.HTML(padding=False, elem_id="voices-told", elem_classes="announced")
        )

    def _button(self, key: str, elem_id: str, **properties: Any) -> Any:
        button = gr.Button(say(key, "zh"), size="md", min_width=90, elem_id=elem_id, **properties)
        return self._context.keep(button, value=key)

    def _build_adding(self) -> None:
        keep, context = self._context.keep, self._context
        keep(gr.Markdown(say("voices_add_heading", "zh")), value="voices_add_heading")
        clip = ReferencePicker(context, "new-voice", saved=False)
        self._saver = VoiceSaver(context, "new", clip.audio, clip.transcript, folded=False)
        keep(gr.Markdown(say("voice_consent", "zh"), elem_classes="hint"), value="voice_consent")
        with gr.Row(elem_classes="small-row"):
            self._import = keep(
                gr.UploadButton(
                    say("voice_import", "zh"),
                    file_types=[".safetensors"],
                    type="filepath",
                    size="sm",
                    elem_id="voices-import",
                ),
                label="voice_import",
            )

    # ------------------------------------------------------------------------------------------------- events
    def _connect(self) -> None:
        language, context = self._context.language, self._context
        shown = [self._details, self._player, self._facts, self._rename, self._transcript, self._export]
        context.voice_lists.append(self.list)
        self.list.change(self._show, [self.list, language], [*shown, self._asking, self._sure], **QUIET)
        context.on_show(self._facts_again, [self.list], [self._facts, self._empty])
        if self._library.locked:
            return
        told = [self.list, self._told]
        changed = gr.on(
            [self._apply.click, self._rename.submit],
            self._change,
            [self.list, self._rename, self._transcript, language],
            told,
            **QUIET,
        )
        removed = self._really.click(self._remove, [self.list, language], told, **QUIET)
        imported = self._import.upload(
            self._take_in, [self._import, language], told, api_visibility="private", show_progress="hidden"
        )
        context.voice_changes.extend([changed, removed, imported])
        rows = [self._asking, self._sure]
        hide, reveal = gr.update(visible=False), gr.update(visible=True)
        self._delete.click(lambda: (hide, reveal), None, rows, **QUIET)
        gr.on([self._not.click, self._really.click], lambda: (reveal, hide), None, rows, **QUIET)

    # ------------------------------------------------------------------------------------------------ handlers
    def _show(self, voice: str | None, language: str) -> Steps:
        """Updates of the details of the chosen voice."""
        try:
            entry = self._library.find(voice or "")
            pcm, rate = self._library.sound(entry.id)
            file = None if self._library.locked else self._exported(entry)
        except SynthesisError as error:
            words = sentence_html(f"⚠️ {explain(error, language)}", "bad") if voice else ""
            nothing = gr.skip()
            return [gr.update(visible=False), None, words, nothing, nothing, nothing, nothing, nothing]
        rows = [gr.update(visible=not self._library.locked), gr.update(visible=False)]
        return [
            gr.update(visible=True),
            (rate, pcm),
            self._facts_html(entry, language),
            entry.name,
            entry.transcript,
            gr.update(value=file),
            *rows,
        ]

    def _facts_again(self, voice: str | None, language: str) -> Steps:
        none = "voices_none_locked" if self._library.locked else "voices_none"
        empty = "" if self._library.voices() else sentence_html(say(none, language))
        try:
            facts = self._facts_html(self._library.find(voice), language) if voice else ""
        except SynthesisError:
            facts = ""
        return [facts, empty]

    def _facts_html(self, entry: SavedVoice, language: str) -> str:
        facts = say("voice_facts", language).format(
            seconds=entry.seconds, rate=entry.sample_rate / 1000, day=entry.created[:10]
        )
        return f'<p class="hint">{facts}</p>'

    def _exported(self, entry: SavedVoice) -> str:
        with tempfile.TemporaryDirectory(prefix="cosyvoice-voice-") as folder:
            file = Path(folder) / f"{file_word(entry.name) or entry.id}{ENDING}"
            file.write_bytes(self._library.export(entry.id))
            return hand_out(file)

    async def _change(self, voice: str | None, name: str, transcript: str, language: str) -> Steps:
        def change() -> SavedVoice:
            entry = self._library.find(voice or "")
            if name.strip() != entry.name:
                entry = self._library.rename(entry.id, name)
            return self._library.set_transcript(entry.id, transcript)

        return await self._done(change, "voice_renamed", language)

    async def _remove(self, voice: str | None, language: str) -> Steps:
        def remove() -> SavedVoice:
            entry = self._library.find(voice or "")
            self._library.delete(entry.id)
            return entry

        return await self._done(remove, "voice_deleted", language, keep=False)

    async def _take_in(self, path: str | None, language: str) -> Steps:
        def restore() -> SavedVoice:
            return self._library.restore(Path(path or "").read_bytes())

        return await self._done(restore, "voice_imported", language)

    async def _done(
        self, action: Callable[[], SavedVoice], told: str, language: str, *, keep: bool = True
    ) -> Steps:
        """(choice in the list, sentence) after a change; `keep`: its voice is still there to be chosen."""
        try:
            entry = await asyncio.to_thread(action)
        except SynthesisError as error:
            return [gr.skip(), sentence_html(f"⚠️ {explain(error, language)}", "bad")]
        except Exception:
            logger.exception("a saved voice could not be changed")
            return [gr.skip(), sentence_html(f"⚠️ {say('unexpected_short', language)}", "bad")]
        words = sentence_html(say(told, language).format(name=entry.name), "good")
        choices = voice_choices(self._library)
        return [gr.update(choices=choices, value=entry.id if keep else None), words]


def voice_choices(library: VoiceLibrary | None) -> list[tuple[str, str]]:
    """(name, id) of every saved voice."""
    return [(entry.name, entry.id) for entry in library.voices()] if library else []

"""Choosing whose voice speaks: a clip (uploaded, recorded, out of a video) or a saved voice, and what it is worth."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path
from typing import Any

import gradio as gr
import numpy as np

from inference.frontend.audio import decode_audio
from inference.frontend.reference import PreparedClip, prepare_clip
from inference.frontend.transcript import doubtful_beside
from inference.types import Reference, SynthesisError
from inference.voices import SavedVoice
from webui.outputs import hand_out
from webui.page.context import QUIET, PageContext
from webui.page.examples import VOICE, example_transcript
from webui.page.look import waveform
from webui.page.texts import explain, say
from webui.page.verdict import is_cut, sentence_html, verdict_html
from webui.page.video import playable, sound_of_video, video_button
from webui.page.voice_saving import VoiceSaver
from webui.studio import SpeechPool

logger = logging.getLogger(__name__)


class ReferencePicker:
    """Builds the controls in the current block. `inputs` are what `voice_of` makes a request's voice of."""

    def __init__(
        self, context: PageContext, name: str, *, transcript: bool = True, saved: bool = True
    ) -> None:
        """`name` begins the ids of its elements; `transcript`: ask what the clip says; `saved`: offer saved voices."""
        self._context = context
        self._name = name
        self._wants_transcript = transcript
        self._tasks: set[asyncio.Task[None]] = set()  # else they could be garbage before they are done
        self._transcriber = context.studio.transcriber
        library = context.studio.voices
        self.voice = gr.Dropdown(
            choices=[(say("voice_new", "zh"), "")],
            value="",
            label=say("voice", "zh"),
            allow_custom_value=True,  # else a voice deleted meanwhile is an English error; and the API takes names
            visible=saved and library is not None,
            elem_id=f"{name}-voice",
        )
        context.keep(self.voice, label="voice")
        if saved and library is not None:
            context.voice_lists.append(self.voice)
        with gr.Column(elem_classes="clip-part") as self._clip_part:
            self._build_clip()
        self.verdict = gr.HTML(padding=False, elem_id=f"{name}-verdict", elem_classes="announced")
        self.heard = gr.Audio(
            waveform_options=waveform(),
            label=say("heard", "zh"),
            interactive=False,
            visible=False,
            buttons=[],
            elem_id=f"{name}-heard",
            elem_classes=["player", "slim-audio"],
        )
        context.keep(self.heard, label="heard")
        self.inputs = [self.voice, self.audio, self.transcript]
        self._saver: VoiceSaver | None = None
        if saved and library is not None and not library.locked:
            self._saver = VoiceSaver(context, name, self.audio, self.transcript)
        self._connect()

    def _build_clip(self) -> None:
        keep, name = self._context.keep, self._name
        self.audio = keep(
            gr.Audio(
                waveform_options=waveform(),
                sources=["upload", "microphone"],
                type="filepath",
                label=say("reference", "zh"),
                buttons=[],
                elem_id=f"{name}-reference",
                elem_classes="player",
            ),
            label="reference",
        )
        with gr.Row(elem_classes="small-row"):
            self.example = gr.Button(
                say("example_voice", "zh"), size="sm", visible=VOICE.is_file(), elem_id=f"{name}-example"
            )
            keep(self.example, value="example_voice")
            self._video = keep(video_button(f"{name}-video"), label="from_video")
            self._transcribe = gr.Button(
                say("transcribe", "zh"),
                size="sm",
                visible=self._wants_transcript and self._transcriber is not None,
                elem_id=f"{name}-transcribe",
            )
            keep(self._transcribe, value="transcribe")
        self.transcript = gr.Textbox(
            "",
            label=say("transcript", "zh"),
            lines=2,
            visible=self._wants_transcript,
            elem_id=f"{name}-transcript",
        )
        keep(self.transcript, label="transcript", placeholder="transcript_hint")

    def _connect(self) -> None:
        language = self._context.language
        told: list[Any] = [self.verdict, self.heard]
        if self._saver is not None and self._saver.fold is not None:
            told.append(self._saver.fold)
        everything = [self.voice, self.audio, self.transcript, language]
        self.audio.change(self._tell, everything, told, **QUIET)
        self.audio.upload(playable, self.audio, self.audio, **QUIET)
        self.transcript.blur(self._tell, everything, told, **QUIET)
        self.voice.change(self._choose, everything, [self._clip_part, *told], **QUIET)
        self.example.click(self._take_example, None, [self.audio, self.transcript], **QUIET)
        self._video.upload(sound_of_video, [self._video, language], self.audio, api_visibility="private")
        self._transcribe.click(
            self._fill_in,
            [self.voice, self.audio, language],
            [self.transcript, *told],
            api_visibility="private",
        )
        self._context.on_show(self._retell, [self.voice, self.audio, self.transcript], [self.verdict])

    # ------------------------------------------------------------------------------------------------ requests
    def voice_of(
        self, voice: str | None, audio: str | None, transcript: str | None
    ) -> tuple[Reference | str | None, str]:
        """(a request's voice, what it is called in the name of a file)."""
        library = self._context.studio.voices
        if voice and library is not None:
            return voice, library.find(voice).name
        if not audio:
            return None, ""
        said = (transcript or "") if self._wants_transcript else ""
        return Reference(Path(audio), said), Path(audio).stem

    # ------------------------------------------------------------------------------------------------- handlers
    def _take_example(self) -> tuple[Any, Any]:
        """(clip, its words): the example voice, in a copy for this visitor."""
        return hand_out(VOICE), example_transcript() if self._wants_transcript else gr.skip()

    async def _choose(
        self, voice: str | None, audio: str | None, transcript: str | None, language: str
    ) -> list[Any]:
        """The saved voice's sound and facts in the place of the clip, or the clip again."""
        return [gr.update(visible=not voice), *(await self._tell(voice, audio, transcript, language))]

    async def _tell(
        self, voice: str | None, audio: str | None, transcript: str | None, language: str
    ) -> list[Any]:
        """(verdict, player of what is heard, the offer to save the clip where there is one)."""
        told: list[Any] = list(await self._examine(voice, audio, transcript, language))
        if self._saver is not None:
            told.append(gr.update(visible=bool(audio) and not voice))
        return told

    async def _examine(
        self, voice: str | None, audio: str | None, transcript: str | None, language: str
    ) -> tuple[str, Any]:
        """(verdict, player of what is heard), the player only where that is not the whole clip."""
        told = await asyncio.to_thread(self._examined, voice, audio, transcript, language)
        self._get_ready(voice, audio, transcript)
        return told

    def _get_ready(self, voice: str | None, audio: str | None, transcript: str | None) -> None:
        """Let a worker prepare the clip while its owner is still typing; it keeps it, so the sound starts sooner."""
        if voice or not audio:
            return
        said = (transcript or "") if self._wants_transcript else ""
        task = asyncio.create_task(_prepared(self._context.studio.pool, Reference(Path(audio), said)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _retell(
        self, voice: str | None, audio: str | None, transcript: str | None, language: str
    ) -> list[Any]:
        if not voice and not audio:  # and leave alone what is said of a clip that was given a moment later
            return [gr.skip()]
        return [self._examined(voice, audio, transcript, language)[0]]

    def _examined(
        self, voice: str | None, audio: str | None, transcript: str | None, language: str
    ) -> tuple[str, Any]:
        try:
            if voice:
                return self._saved(voice, language)
            return self._clip(audio, transcript or "", language) if audio else ("", gr.update(visible=False))
        except SynthesisError as error:
            return sentence_html(f"⚠️ {explain(error, language)}", "bad"), gr.update(visible=False)
        except Exception:
            logger.exception("a clip could not be examined")
            return sentence_html(f"⚠️ {say('unexpected_short', language)}", "bad"), gr.update(visible=False)

    def _clip(self, audio: str, transcript: str, language: str) -> tuple[str, Any]:
        said = transcript.strip() if self._wants_transcript else ""
        clip = prepare_clip(decode_audio(Path(audio)), bool(said))
        report = clip.report
        notes = []
        if self._wants_transcript and not said:
            notes.append(say("without_transcript", language))
        if doubtful_beside(report, said):
            notes.append(say("doubtful", language))
        player = (
            gr.update(value=_playable(clip), visible=True) if is_cut(report) else gr.update(visible=False)
        )
        return verdict_html(report, language, notes), player

    def _saved(self, voice: str, language: str) -> tuple[str, Any]:
        library = self._context.studio.voices
        if library is None:
            return "", gr.update(visible=False)
        entry = library.find(voice)
        pcm, rate = library.sound(entry.id)
        return sentence_html(self._facts(entry, language)), gr.update(value=(rate, pcm), visible=True)

    def _facts(self, entry: SavedVoice, language: str) -> str:
        facts = say("saved_facts", language).format(name=entry.name, seconds=entry.seconds)
        if not self._wants_transcript:
            return facts
        if entry.transcript:
            return f"{facts} {say('saved_says', language).format(transcript=entry.transcript)}"
        return f"{facts} {say('without_transcript', language)}"

    async def _fill_in(self, voice: str | None, audio: str | None, language: str) -> list[Any]:
        """(transcript, what `_tell` gives); why there is no transcript in the place of the verdict."""
        said, sentence = await self._write_down(audio, language)
        if isinstance(said, str):
            return [said, *(await self._tell(voice, audio, said, language))]
        return [said, sentence, gr.skip(), *([gr.skip()] if self._saver is not None else [])]

    async def _write_down(self, audio: str | None, language: str) -> tuple[Any, Any]:
        if not audio or self._transcriber is None:
            return gr.skip(), sentence_html(say("nothing_to_transcribe", language), "bad")
        try:
            return await asyncio.to_thread(self._transcriber, Path(audio)), gr.skip()
        except SynthesisError as error:
            return gr.skip(), sentence_html(f"⚠️ {explain(error, language)}", "bad")


async def _prepared(pool: SpeechPool, clip: Reference) -> None:
    with contextlib.suppress(SynthesisError):  # told when it is to speak, if it still matters then
        await pool.voice(clip)


def _playable(clip: PreparedClip) -> tuple[int, Any]:
    """As int16: Gradio would bring float sound to full scale."""
    return clip.sample_rate, (np.clip(clip.samples, -1.0, 1.0) * 32767).astype(np.int16)

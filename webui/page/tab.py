"""One synthesis tab: the same controls for every mode, with the field that mode needs."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import gradio as gr

from inference.types import AudioChunk, Mode, Reference, SynthesisError, SynthesisRequest
from webui.page.context import QUIET, PageContext
from webui.page.examples import example_text
from webui.page.instruction_part import InstructionPart
from webui.page.output_part import OutputPart, finished, place_words, seconds_of, wav_of
from webui.page.reference import ReferencePicker
from webui.page.settings_part import SettingsPart, new_seed
from webui.page.text_part import TextPart
from webui.page.texts import explain, say
from webui.studio import Take, Waiting
from webui.visitors import caller_of

logger = logging.getLogger(__name__)

ENGINE_QUEUE = "engine"
Step = tuple[
    Any, Any, Any, Any, Any, Any
]  # updates of live sound, finished file, download, status, stop, seed


@dataclass(frozen=True)
class Wish:
    """What a visitor has filled in."""

    text: str
    voice: Any  # Reference, name of a saved voice or None
    voice_name: str
    extra: str  # the instruction, in the tab that has one
    speed: float
    seed: int
    streaming: bool
    audio_format: str


class SynthesisTab:
    """Builds the tab's controls (inside the current Tabs) and connects them to the studio."""

    def __init__(self, context: PageContext, mode: Mode) -> None:
        self._context = context
        self._mode = mode
        name = mode.value
        keep = context.keep
        with gr.Tab(say(f"tab_{name}", "zh"), id=name, elem_id=f"tab-{name}") as tab:
            keep(tab, label=f"tab_{name}")
            keep(gr.Markdown(say(f"about_{name}", "zh"), elem_classes="about"), value=f"about_{name}")
            with gr.Row(elem_classes="columns"):
                with gr.Column(min_width=320, scale=6, elem_classes="card"):
                    self._text = TextPart(context, name)
                    self._reference = ReferencePicker(context, name, transcript=mode is Mode.CLONE)
                    self._instruction = InstructionPart(context, name, visible=mode is Mode.INSTRUCT)
                with gr.Column(min_width=320, scale=5, elem_classes="card"):
                    self._settings = SettingsPart(context, name)
                    self._output = OutputPart(context, name)
        self._connect()

    # ------------------------------------------------------------------------------------------------- history
    @property
    def settings_components(self) -> list[Any]:
        """What `settings_updates` fills in."""
        settings = self._settings
        return [
            self._text.text,
            self._extra,
            settings.speed,
            settings.seed,
            settings.streaming,
            settings.format,
            self._reference.voice,
            self._reference.audio,
        ]

    @property
    def _extra(self) -> Any:
        """The box that this mode needs beside text and clip (hidden where it needs none)."""
        return self._instruction.instruction if self._mode is Mode.INSTRUCT else self._reference.transcript

    def settings_updates(self, settings: Mapping[str, Any]) -> list[Any]:
        """Updates of `settings_components` from what `speak` was given as `settings`; what is missing stays."""
        keys = ("text", "extra", "speed", "seed", "stream", "format", "voice", "clip")
        return [gr.update(value=settings[key]) if key in settings else gr.skip() for key in keys]

    # ------------------------------------------------------------------------------------------------ handlers
    def _connect(self) -> None:
        language, settings, output = self._context.language, self._settings, self._output
        self._reference.example.click(self._suggest, [self._text.text, language], self._text.text, **QUIET)
        self.ended = run = gr.on(
            [output.generate.click, self._text.text.submit],
            self._speak,
            inputs=[
                self._text.text,
                self._reference.audio,
                self._extra,
                settings.speed,
                settings.seed,
                settings.streaming,
                language,
                self._reference.voice,
                settings.keep_seed,
                settings.format,
            ],
            outputs=[output.live, output.result, output.download, output.status, output.stop, settings.seed],
            concurrency_id=ENGINE_QUEUE,
            api_name=self._mode.value,
            show_progress="hidden",  # the status line tells more, and in the visitor's language
        )
        output.stop.click(
            lambda chosen: (gr.update(value=None), say("stopped", chosen), gr.update(interactive=False)),
            inputs=language,
            outputs=[output.live, output.status, output.stop],
            cancels=run,
            queue=False,
            api_visibility="private",
            show_progress="hidden",
        )

    def _suggest(self, text: str | None, language: str) -> Any:
        """Something to say for who tries the example voice and has written nothing yet."""
        return gr.skip() if (text or "").strip() else example_text(self._context.example_text, language)

    async def _speak(
        self,
        text: str,
        reference: str | None,
        extra: str,
        speed: float,
        seed: float | None,
        streaming: bool,
        language: str,
        voice: str | None = "",
        keep_seed: bool = True,
        audio_format: str = "wav",
        request: gr.Request = None,  # type: ignore[assignment]
    ) -> AsyncGenerator[Step, None]:
        """Handler: widgets in; live sound, finished file, download, status, stop button and seed out."""
        off, nothing = gr.update(interactive=False), gr.skip()
        told = say("working", language)
        chosen = int(seed or 0) if keep_seed else new_seed()
        # An update, not None: that would open a stream, whose player asks without end for a sound that never comes.
        yield (
            gr.update(value=None),
            None,
            off,
            told,
            gr.update(interactive=True),
            _shown_seed(chosen, keep_seed),
        )
        made = 0.0  # seconds of sound
        try:
            wish = self._wish(text, reference, extra, speed, chosen, streaming, voice, audio_format)
            note = self._note(wish, language)
            async with aclosing(self._spoken(wish, request)) as parts:
                async for part in parts:
                    if isinstance(part, Take):
                        yield (
                            nothing,
                            *finished(part, language, autoplay=not streaming, note=note),
                            off,
                            nothing,
                        )
                        continue
                    live = wav_of(part) if streaming and isinstance(part, AudioChunk) else nothing
                    made += seconds_of(part)
                    words = (
                        say("made", language).format(seconds=made) if made else place_words(part, language)
                    )
                    yield live, nothing, nothing, nothing if words == told else words, nothing, nothing
                    told = words
        except SynthesisError as error:
            logger.info("%s request refused: %s (%s)", self._mode.value, error.message, error.code)
            yield nothing, None, off, f"⚠️ {explain(error, language)}", off, nothing
        except Exception:
            logger.exception("%s request failed", self._mode.value)
            yield nothing, None, off, f"⚠️ {say('unexpected', language)}", off, nothing

    def _spoken(
        self, wish: Wish, request: gr.Request | None
    ) -> AsyncGenerator[Waiting | AudioChunk | Take, None]:
        caller = caller_of(request)
        return self._context.studio.speak(
            self._request(wish),
            audio_format=wish.audio_format,
            voice_name=wish.voice_name,
            visitor=caller.visitor,
            caller=caller.key,
            settings=self._remembered(wish),
        )

    def _wish(
        self,
        text: str,
        reference: str | None,
        extra: str,
        speed: float,
        seed: int,
        streaming: bool,
        voice: str | None,
        audio_format: str,
    ) -> Wish:
        """Raises RequestError("voice_unknown")."""
        transcript = extra if self._mode is Mode.CLONE else ""
        chosen, name = self._reference.voice_of(voice, reference, transcript)
        return Wish(text or "", chosen, name, extra or "", float(speed), seed, streaming, audio_format)

    def _request(self, wish: Wish) -> SynthesisRequest:
        return SynthesisRequest(
            mode=self._mode,
            text=wish.text,
            voice=wish.voice,
            instruction=wish.extra if self._mode is Mode.INSTRUCT else "",
            speed=wish.speed,
            seed=wish.seed,
            stream=wish.streaming,
        )

    def _remembered(self, wish: Wish) -> dict[str, Any]:
        """What the history keeps to be used again, beside the clip itself."""
        return {
            "mode": self._mode.value,
            "text": wish.text,
            "extra": wish.extra,
            "speed": wish.speed,
            "seed": wish.seed,
            "stream": wish.streaming,
            "format": wish.audio_format,
            "voice": wish.voice if isinstance(wish.voice, str) else "",
        }

    def _note(self, wish: Wish, language: str) -> str:
        """What the visitor should know about how it was spoken."""
        if self._mode is not Mode.CLONE or wish.voice is None:
            return ""
        if isinstance(wish.voice, Reference):
            said = wish.voice.transcript
        else:
            library = self._context.studio.voices
            said = library.find(wish.voice).transcript if library is not None else ""
        return "" if said.strip() else say("spoken_without_transcript", language)


def _shown_seed(seed: int, kept: bool) -> Any:
    return gr.skip() if kept else seed

"""One synthesis tab: the same controls for every mode, with the field that mode needs."""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr

from inference.frontend.encode import encode_audio
from inference.types import (
    MAX_SPEED,
    MIN_SPEED,
    AudioChunk,
    Mode,
    Reference,
    SynthesisError,
    SynthesisRequest,
)
from webui.page.texts import explain, say, warn
from webui.page.video import sound_of_video, video_button
from webui.studio import Studio, Take, Waiting

logger = logging.getLogger(__name__)

ENGINE_QUEUE = "engine"
SEED_LIMIT = 2**31 - 1
Step = tuple[Any, Any, Any, Any, Any]  # updates of live sound, finished file, download, status, stop button


@dataclass(frozen=True)
class Translated:
    """A component and the texts of its properties, for switching the language."""

    component: Any
    properties: dict[str, str]  # property name → text key


class SynthesisTab:
    """Builds the tab's controls (inside the current Blocks) and connects them to the studio."""

    def __init__(self, studio: Studio, mode: Mode, language: gr.Radio, *, can_stream: bool) -> None:
        self._studio = studio
        self._mode = mode
        self._can_stream = can_stream
        self.translated: list[Translated] = []
        with gr.Tab(say(f"tab_{mode.value}", "zh"), id=mode.value, elem_id=f"tab-{mode.value}") as tab:
            self._keep(tab, label=f"tab_{mode.value}")
            about = gr.Markdown(say(f"about_{mode.value}", "zh"))
            self._keep(about, value=f"about_{mode.value}")
            with gr.Row():
                with gr.Column(min_width=320):
                    self._build_inputs()
                with gr.Column(min_width=320):
                    self._build_settings()
                    self._build_outputs()
        self._connect(language)

    def _keep(self, component: Any, **properties: str) -> None:
        self.translated.append(Translated(component, properties))

    def _name(self, part: str) -> str:
        return f"{self._mode.value}-{part}"

    def _build_inputs(self) -> None:
        self._text = gr.Textbox(label=say("text", "zh"), lines=5, max_lines=12, elem_id=self._name("text"))
        self._keep(self._text, label="text", placeholder="text_hint")
        self._reference = gr.Audio(
            sources=["upload", "microphone"],
            type="filepath",
            label=say("reference", "zh"),
            buttons=[],
            elem_id=self._name("reference"),
        )
        self._keep(self._reference, label="reference")
        self._video = video_button(self._name("video"))
        self._keep(self._video, label="from_video")
        field = "instruction" if self._mode is Mode.INSTRUCT else "transcript"
        # The cross-lingual tab has no such field; a hidden one keeps the handlers alike.
        self._extra = gr.Textbox(
            label=say(field, "zh"),
            lines=2,
            visible=self._mode is not Mode.CROSS_LINGUAL,
            elem_id=self._name(field),
        )
        self._keep(self._extra, label=field, placeholder=f"{field}_hint")

    def _build_settings(self) -> None:
        self._speed = gr.Slider(
            MIN_SPEED, MAX_SPEED, 1.0, step=0.05, label=say("speed", "zh"), elem_id=self._name("speed")
        )
        self._keep(self._speed, label="speed")
        with gr.Row(elem_classes="seed-row"):
            # No bounds here: Gradio would tell of a wrong number in English only.
            self._seed = gr.Number(
                0, precision=0, label=say("seed", "zh"), min_width=120, elem_id=self._name("seed")
            )
            self._keep(self._seed, label="seed")
            self._dice = gr.Button(
                say("dice", "zh"), size="md", scale=0, min_width=110, elem_id=self._name("dice")
            )
            self._keep(self._dice, value="dice")
        self._streaming = gr.Checkbox(
            self._can_stream,
            label=say("streaming", "zh"),
            interactive=self._can_stream,
            container=False,
            elem_id=self._name("streaming"),
        )
        self._keep(self._streaming, label="streaming")
        with gr.Row():
            self._generate = gr.Button(
                say("generate", "zh"), variant="primary", scale=3, elem_id=self._name("generate")
            )
            self._keep(self._generate, value="generate")
            self._stop = gr.Button(
                say("stop", "zh"), interactive=False, min_width=110, elem_id=self._name("stop")
            )
            self._keep(self._stop, value="stop")
        self._status = gr.Markdown(elem_id=self._name("status"), elem_classes="status")

    def _build_outputs(self) -> None:
        self._live = gr.Audio(
            label=say("live", "zh"),
            streaming=True,
            autoplay=True,
            interactive=False,
            visible=self._can_stream,
            buttons=[],
            elem_id=self._name("live"),
        )
        self._keep(self._live, label="live")
        self._result = gr.Audio(
            label=say("result", "zh"),
            type="filepath",
            interactive=False,
            buttons=[],
            elem_id=self._name("result"),
        )
        self._keep(self._result, label="result")
        self._download = gr.DownloadButton(
            say("download", "zh"), interactive=False, elem_id=self._name("download")
        )
        self._keep(self._download, label="download")

    def _connect(self, language: gr.Radio) -> None:
        self._dice.click(
            lambda: random.randint(0, SEED_LIMIT), outputs=self._seed, queue=False, api_visibility="private"
        )
        self._video.upload(
            sound_of_video,
            [self._video, language],
            [self._reference, self._status],
            api_visibility="private",
        )
        run = gr.on(
            [self._generate.click, self._text.submit],
            self._speak,
            inputs=[
                self._text,
                self._reference,
                self._extra,
                self._speed,
                self._seed,
                self._streaming,
                language,
            ],
            outputs=[self._live, self._result, self._download, self._status, self._stop],
            concurrency_id=ENGINE_QUEUE,
            api_name=self._mode.value,
            show_progress="hidden",  # the status line tells more, and in the visitor's language
        )
        self._stop.click(
            lambda chosen: (gr.update(value=None), say("stopped", chosen), gr.update(interactive=False)),
            inputs=language,
            outputs=[self._live, self._status, self._stop],
            cancels=run,
            queue=False,
            api_visibility="private",
            show_progress="hidden",
        )

    async def _speak(
        self,
        text: str,
        reference: str | None,
        extra: str,
        speed: float,
        seed: float | None,
        streaming: bool,
        language: str,
    ) -> AsyncGenerator[Step, None]:
        """Handler: widgets in; live sound, finished file, download, status and stop button out."""
        off, nothing = gr.update(interactive=False), gr.skip()
        told = say("working", language)
        # An update, not None: that would open a stream, whose player asks without end for a sound that never comes.
        yield gr.update(value=None), None, off, told, gr.update(interactive=True)
        try:
            request = self._request(text, reference, extra, speed, seed, streaming)
            async with aclosing(self._studio.speak(request)) as parts:
                async for part in parts:
                    if isinstance(part, Waiting):
                        place = _place(part, language)
                        yield nothing, nothing, nothing, nothing if place == told else place, nothing
                        told = place
                    elif isinstance(part, Take):
                        yield nothing, *_finished(part, language, autoplay=not streaming), off
                    elif streaming:
                        yield _wav(part), nothing, nothing, nothing, nothing
        except SynthesisError as error:
            logger.info("%s request refused: %s (%s)", self._mode.value, error.message, error.code)
            yield nothing, None, off, f"⚠️ {explain(error, language)}", off
        except Exception:
            logger.exception("%s request failed", self._mode.value)
            yield nothing, None, off, f"⚠️ {say('unexpected', language)}", off

    def _request(
        self, text: str, reference: str | None, extra: str, speed: float, seed: float | None, streaming: bool
    ) -> SynthesisRequest:
        instruct = self._mode is Mode.INSTRUCT
        transcript = extra if self._mode is Mode.CLONE else ""
        return SynthesisRequest(
            mode=self._mode,
            text=text or "",
            voice=Reference(Path(reference), transcript or "") if reference else None,
            instruction=(extra or "") if instruct else "",
            speed=float(speed),
            seed=int(seed or 0),
            stream=streaming,
        )


def _wav(chunk: AudioChunk) -> bytes:
    # Bytes, not arrays: Gradio names array files by content, so equal chunks of two visitors would collide.
    return encode_audio(chunk.pcm, chunk.sample_rate, "wav")


def _place(waiting: Waiting, language: str) -> str:
    if waiting.position <= 0:
        return say("working", language)
    return say("queued", language).format(place=waiting.position)


def _finished(take: Take, language: str, *, autoplay: bool) -> tuple[Any, Any, str]:
    """Finished file, download and status."""
    path = str(take.path)
    return (
        gr.update(value=path, autoplay=autoplay),
        gr.update(value=path, interactive=True),
        _facts(take, language),
    )


def _facts(take: Take, language: str) -> str:
    facts = say("facts", language).format(
        first=take.first_audio, duration=take.duration, rtf=take.real_time_factor, seed=take.seed
    )
    note = warn(take.warnings, language)
    return f"{facts}\n\n{note}" if note else facts

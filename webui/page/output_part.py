"""What comes back: status, the sound while it is made, the finished file and its download."""

from __future__ import annotations

from typing import Any

import gradio as gr

from inference.frontend.encode import encode_audio
from inference.types import AudioChunk
from webui.page.context import PageContext
from webui.page.look import waveform
from webui.page.texts import say, warn
from webui.studio import Take, Waiting


class OutputPart:
    """Builds the controls in the current block."""

    def __init__(self, context: PageContext, name: str) -> None:
        keep = context.keep
        with gr.Row(elem_classes="action-row"):
            self.generate = keep(
                gr.Button(
                    say("generate", "zh"),
                    variant="primary",
                    size="lg",
                    scale=3,
                    elem_id=f"{name}-generate",
                    elem_classes="main-button",
                ),
                value="generate",
            )
            self.stop = keep(
                gr.Button(
                    say("stop", "zh"), size="lg", interactive=False, min_width=96, elem_id=f"{name}-stop"
                ),
                value="stop",
            )
        self.status = context.keep_sentence(
            gr.Markdown(elem_id=f"{name}-status", elem_classes=["status", "announced"])
        )
        self.live = keep(
            gr.Audio(
                waveform_options=waveform(),
                label=say("live", "zh"),
                streaming=True,
                autoplay=True,
                interactive=False,
                visible=context.can_stream,
                buttons=[],
                elem_id=f"{name}-live",
                elem_classes=["player", "slim-audio"],
            ),
            label="live",
        )
        self.result = keep(
            gr.Audio(
                waveform_options=waveform(),
                label=say("result", "zh"),
                type="filepath",
                interactive=False,
                buttons=[],
                elem_id=f"{name}-result",
                elem_classes="player",
            ),
            label="result",
        )
        self.download = keep(
            gr.DownloadButton(say("download", "zh"), interactive=False, elem_id=f"{name}-download"),
            label="download",
        )


def wav_of(chunk: AudioChunk) -> bytes:
    """A chunk for the live player.

    Bytes, not arrays: Gradio names array files by content, so equal chunks of two visitors would collide.
    """
    return encode_audio(chunk.pcm, chunk.sample_rate, "wav")


def seconds_of(part: Waiting | AudioChunk) -> float:
    """How much sound came with it."""
    return len(part.pcm) / part.sample_rate if isinstance(part, AudioChunk) else 0.0


def place_words(part: Waiting | AudioChunk, language: str) -> str:
    """Where a request stands that has made no sound yet."""
    if isinstance(part, AudioChunk) or part.position <= 0:
        return say("working", language)
    if part.loading:
        return say("loading", language)
    return say("queued", language).format(place=part.position)


def finished(take: Take, language: str, *, autoplay: bool, note: str = "") -> tuple[Any, Any, str]:
    """Finished file, download and status."""
    path = take.shown
    return (
        gr.update(value=path, autoplay=autoplay),
        gr.update(value=path, interactive=True),
        _facts(take, language, note),
    )


def _facts(take: Take, language: str, note: str) -> str:
    facts = say("facts", language).format(
        wait=take.wait,
        first=take.first_audio,
        duration=take.duration,
        rtf=take.real_time_factor,
        seed=take.seed,
    )
    return "\n\n".join(line for line in (facts, note, warn(take.warnings, language)) if line)

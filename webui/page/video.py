"""A button that takes the reference clip out of a video; and clips that no browser plays, made playable."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

import gradio as gr
import numpy as np

from inference.frontend.audio import decode_audio
from inference.types import SynthesisError
from webui.page.texts import explain, say

# By kind for phones, by ending for systems that know no kind of a file; some hold sound only.
FILE_TYPES = [
    "video",
    ".mp4",
    ".m4v",
    ".mov",
    ".webm",
    ".mkv",
    ".avi",
    ".3gp",
    ".ts",
    ".wmv",
    ".aif",
    ".amr",
    ".caf",
]


# What current browsers play by themselves; of a video they would be sent the pictures too.
PLAYED = {".wav", ".mp3", ".m4a", ".aac", ".ogg", ".oga", ".opus", ".flac"}


OWN_TOAST = "⚠️"  # begins the studio's own messages, which page.js leaves as they are


def video_button(elem_id: str) -> gr.UploadButton:
    """The button; connect its `upload` to `sound_of_video`."""
    return gr.UploadButton(
        say("from_video", "zh"), file_types=FILE_TYPES, type="filepath", size="sm", elem_id=elem_id
    )


def sound_of_video(path: str | None, language: str) -> Any:
    """Value of the audio box: its sound as 16-bit mono. What is wrong is told in passing, and the clip before stays."""
    try:
        return _sound_of(Path(path or ""))
    except SynthesisError as error:
        gr.Warning(f"{OWN_TOAST} {escape(explain(error, language))}")
        return gr.skip()


def playable(path: str | None) -> Any:
    """Value of the audio box for what was uploaded there: left alone where a browser can play it, or nobody can."""
    if not path or Path(path).suffix.lower() in PLAYED:
        return gr.skip()
    try:
        return _sound_of(Path(path))
    except SynthesisError:  # told in the place of the verdict
        return gr.skip()


def _sound_of(path: Path) -> Any:
    clip = decode_audio(path)
    pcm = (np.clip(clip.samples, -1.0, 1.0) * 32767).astype(np.int16)
    return gr.update(value=(clip.sample_rate, pcm))

"""Gradio's audio streams need a program `ffmpeg` on the PATH, and, on a busy machine, patience with it."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from pathlib import Path

logger = logging.getLogger(__name__)


def ensure_ffmpeg() -> bool:
    """Put the ffmpeg that comes in the `imageio-ffmpeg` wheel on this process's PATH unless one is there.

    Returns False (and logs one line) when neither is available; sound is then delivered as whole files.
    """
    if shutil.which("ffmpeg"):
        return True
    try:
        import imageio_ffmpeg

        program = Path(imageio_ffmpeg.get_ffmpeg_exe())
    except (ImportError, RuntimeError) as error:
        logger.warning("No ffmpeg found, so sound cannot be streamed to the page: %s", error)
        return False
    # The wheel's file carries its version in its name; the folder is ours alone, so nobody can swap the link.
    folder = Path(tempfile.mkdtemp(prefix="cosyvoice-ffmpeg-"))
    (folder / "ffmpeg").symlink_to(program)
    os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ.get('PATH', '')}"
    return True


def be_patient_with_encoder(seconds: float = 3.0) -> bool:
    """Let Gradio wait longer for a stream's encoder to come up; it returns as soon as that has.

    After its 0.1 s it sends the player off to an empty playlist, which is an error there and costs the early first
    sound; while the workers use all cores, starting a process takes longer. False if this Gradio has no such setting.
    """
    try:
        from gradio import audio_stream_encoder
    except ImportError:
        return False
    if not hasattr(audio_stream_encoder, "STARTUP_WAIT"):
        return False
    audio_stream_encoder.STARTUP_WAIT = seconds
    return True

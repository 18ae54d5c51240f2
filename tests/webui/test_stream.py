"""What Gradio makes of a stream, sample by sample: nothing is left out, put in, or made louder."""

from __future__ import annotations

import io
import json
import os
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.webui.fake_pool import CHUNK, RATE, FakePool, spoken
from tests.webui.serving import serving
from tests.webui.test_server import clip  # noqa: F401  (a fixture)
from webui.ffmpeg import ensure_ffmpeg

av = pytest.importorskip("av")
pytest.importorskip("gradio")

pytestmark = pytest.mark.unit

CHUNKS = 12
FRAME = 1024  # an AAC encoder begins with one frame of silence, and fills up its last one


def delivered(url: str, recording: Path) -> bytes:
    """All that the live player of a call is sent: ADTS frames."""
    with httpx.Client(base_url=url, timeout=60) as client:
        (uploaded,) = client.post("/gradio_api/upload", files={"files": recording.read_bytes()}).json()
        reference = {"path": uploaded, "meta": {"_type": "gradio.FileData"}}
        data = ["Hello.", reference, "", 1.0, 4, True, "en", "", True, "wav"]
        number = client.post("/gradio_api/call/cross_lingual", json={"data": data}).json()["event_id"]
        events = client.get(f"/gradio_api/call/cross_lingual/{number}").text
        playlist = next(address for line in events.splitlines() if (address := playlist_in(line)))
        deadline = time.monotonic() + 30
        while "#EXT-X-ENDLIST" not in (text := client.get(playlist).text):
            assert time.monotonic() < deadline, f"the stream does not end: {text}"
            time.sleep(0.05)
        names = [line for line in text.splitlines() if line and not line.startswith("#")]
        return b"".join(client.get(f"{playlist.rsplit('/', 1)[0]}/{name}").content for name in names)


def playlist_in(line: str) -> str:
    """The address of the stream that an event tells of, without its host."""
    values: Any = json.loads(line[6:]) if line.startswith("data: [") else []
    for value in values:
        if isinstance(value, dict) and str(value.get("url") or value.get("path")).endswith(".m3u8"):
            path = str(value.get("url") or value["path"])
            return path[path.index("/gradio_api/") :]
    return ""


def test_a_stream_is_the_sound_that_was_made(
    tmp_path: Path,
    clip: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", os.environ["PATH"])  # given back afterwards
    if not ensure_ffmpeg():
        pytest.skip("Gradio's streams need the program ffmpeg")
    with serving(tmp_path, FakePool(chunks=CHUNKS, pause=0.02), can_stream=True) as studio:
        data = delivered(studio.url, clip)
    with av.open(io.BytesIO(data), format="aac") as stream:
        frames = list(stream.decode(audio=0))
    assert {frame.sample_rate for frame in frames} == {RATE}
    live = np.concatenate([frame.to_ndarray()[0] for frame in frames])
    made = spoken(4, CHUNKS) / 32768.0
    assert 0 <= len(live) - len(made) <= 3 * FRAME
    heard = live[FRAME : FRAME + len(made)]
    error = np.abs(heard - made)
    edge = 2 * FRAME  # the codec fades in and out
    assert error[edge:-edge].max() < 0.05 * np.abs(made).max()
    for join in range(CHUNK, len(made) - CHUNK, CHUNK):  # no gap, click or change of level between chunks
        before, after = heard[join - CHUNK // 2 : join], heard[join : join + CHUNK // 2]
        assert np.std(after) == pytest.approx(np.std(before), rel=0.05)
        assert np.abs(np.diff(heard[join - 5 : join + 5])).max() < 2 * np.abs(np.diff(made)).max()

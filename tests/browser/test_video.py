"""A reference clip out of a video, in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from tests.browser.conftest import why_not
from tests.browser.visitor import USABLE_MS, Visitor
from tests.make_clips import speech

pytestmark = [pytest.mark.browser, pytest.mark.skipif(bool(why_not()), reason=why_not())]
Visit = Callable[..., Visitor]
RATE = 44100


def write_video(path: Path, seconds: float = 5.0) -> None:
    """A small picture and speech-like sound in the container that the ending names."""
    av = pytest.importorskip("av")
    pcm = (speech(seconds, RATE) * 32767).astype(np.int16)
    picture, sound = ("mpeg4", "aac") if path.suffix == ".mp4" else ("libvpx", "libopus")
    rate = RATE if sound == "aac" else 48000
    with av.open(str(path), "w") as output:
        video = output.add_stream(picture, rate=5)
        video.width, video.height, video.pix_fmt = 64, 48, "yuv420p"
        audio = output.add_stream(sound, rate=rate, layout="mono")
        for number in range(int(5 * seconds)):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 40, np.uint8), format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, 5)
            output.mux(video.encode(frame))
        output.mux(video.encode(None))
        for start in range(0, len(pcm), 4096):
            block = av.AudioFrame.from_ndarray(pcm[None, start : start + 4096], format="s16", layout="mono")
            block.sample_rate, block.pts = rate, start
            output.mux(audio.encode(block))
        output.mux(audio.encode(None))


def test_a_video_becomes_the_reference(visit: Visit, tmp_path: Path) -> None:
    visitor = visit()
    visitor.fill("cross_lingual", "Good morning, how are you?")
    clear = visitor.page.locator("#cross_lingual-reference").get_by_role("button", name="Clear").first
    for ending in ("webm", "mp4"):
        path = tmp_path / f"phone.{ending}"
        write_video(path)
        if clear.is_visible():
            clear.click()
            clear.wait_for(state="hidden", timeout=USABLE_MS)
        with visitor.page.expect_file_chooser() as chooser:
            visitor.page.locator("#cross_lingual-video").click()
        chooser.value.set_files(path)
        clear.wait_for(timeout=USABLE_MS)
    visitor.generate("cross_lingual")
    visitor.wait_for_facts("cross_lingual")
    assert visitor.download("cross_lingual").rate == 24000
    assert visitor.problems == []


@pytest.mark.parametrize("way", ["chosen", "dropped"])
def test_the_box_for_a_clip_takes_a_video(visit: Visit, tmp_path: Path, way: str) -> None:
    path = tmp_path / "phone.webm"
    write_video(path)
    visitor = visit(new=True)
    visitor.fill("cross_lingual", "Good morning.")
    if way == "chosen":
        visitor.page.locator("#cross_lingual-reference input[type=file]").set_input_files(path)
    else:
        data = visitor.page.evaluate_handle(
            """(bytes) => { const given = new DataTransfer();
            given.items.add(new File([new Uint8Array(bytes)], "phone.webm", {type: "video/webm"}));
            return given; }""",
            list(path.read_bytes()),
        )
        target = visitor.page.locator("#cross_lingual-reference .upload-container, "
                                      "#cross_lingual-reference button").first  # fmt: skip
        target.dispatch_event("drop", {"dataTransfer": data})
    visitor.page.locator("#cross_lingual-verdict").get_by_text("s usable").wait_for(timeout=USABLE_MS)
    visitor.generate("cross_lingual")
    visitor.wait_for_facts("cross_lingual")
    assert visitor.page.get_by_test_id("toast-body").count() == 0
    assert visitor.problems == []


def test_a_video_without_sound_is_told_in_a_sentence(visit: Visit, clips: list[Path], tmp_path: Path) -> None:
    path = tmp_path / "broken.mp4"
    path.write_bytes(b"no film at all" * 100)
    visitor = visit(new=True)
    visitor.fill("cross_lingual", "Good morning.", clips[0])
    verdict = visitor.page.locator("#cross_lingual-verdict")
    verdict.locator(".findings").wait_for(timeout=USABLE_MS)
    before = verdict.inner_text()
    with visitor.page.expect_file_chooser() as chooser:
        visitor.page.locator("#cross_lingual-video").click()
    chooser.value.set_files(path)
    told = visitor.page.get_by_test_id("toast-body").get_by_text("not audio")
    told.wait_for(timeout=USABLE_MS)
    assert told.inner_text().startswith("⚠️")
    assert visitor.page.get_by_test_id("toast-body").locator(".toast-title").inner_text().strip() == "Note"
    assert verdict.inner_text() == before  # that clip is still the one that speaks
    visitor.generate("cross_lingual")
    visitor.wait_for_facts("cross_lingual")
    assert visitor.problems == []

"""What a person does on the page, and what their browser sees of it."""

from __future__ import annotations

import re
import time
import wave
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

CLEAR = re.compile("Clear|清除")  # Gradio's own button, in the browser's language
USABLE_MS = 10_000
SYNTHESIS_MS = 60_000
TABS = {"clone": ("3s Clone", "3s极速复刻"), "cross_lingual": ("Cross-lingual", "跨语种复刻"),
        "instruct": ("Instruct", "自然语言控制")}  # fmt: skip


@dataclass(frozen=True)
class Download:
    """A file that the page gave to a visitor."""

    name: str
    pcm: np.ndarray  # (n,) int16
    rate: int


class Visitor:
    """One browser window with the page open, in the language of its browser."""

    def __init__(self, page: Any, url: str) -> None:
        self.page = page
        self.url = url
        self.problems: list[str] = []  # console errors and requests that leave the machine
        self.playlists: list[str] = []
        self.first_piece: float | None = None  # when the first piece of streamed sound arrived
        page.on("console", lambda message: self._note(message.text, message.type == "error"))
        page.on("pageerror", lambda error: self._note(str(error), True))
        page.on("request", lambda request: self._note_request(request.url))
        page.on("response", lambda response: self._note_response(response.url))
        page.goto(url)
        page.get_by_role("tab", name=re.compile("3s")).wait_for(timeout=USABLE_MS)
        page.locator("#clone-text textarea").wait_for(timeout=USABLE_MS)

    def _note(self, text: str, bad: bool) -> None:
        if bad:
            self.problems.append(text)

    def _note_request(self, url: str) -> None:
        self._note(f"asked for {url}", url.startswith("http") and not url.startswith(self.url))
        if url.endswith(".m3u8") and url not in self.playlists:
            self.playlists.append(url)

    def _note_response(self, url: str) -> None:
        if url.endswith(".aac") and self.first_piece is None:
            self.first_piece = time.monotonic()

    def wait_for_tab(self, mode: str, language: str) -> Any:
        """The tab's handle, once it is named in that language."""
        tab = self.page.get_by_role("tab", name=TABS[mode][language == "zh"], exact=True)
        tab.wait_for(timeout=USABLE_MS)
        return tab

    def fill(self, mode: str, text: str, clip: Path | None = None, language: str = "en") -> None:
        """Go to a tab and fill in the text and the clip."""
        self.wait_for_tab(mode, language).click()
        self.page.locator(f"#{mode}-text textarea").fill(text)
        if clip is not None:
            self.page.locator(f"#{mode}-reference input[type=file]").set_input_files(clip)
            self.page.locator(f"#{mode}-reference").get_by_role("button", name=CLEAR).first.wait_for()

    def generate(self, mode: str) -> None:
        self.page.locator(f"#{mode}-generate").click()

    def wait_for_sound(self) -> None:
        """Until the first piece of streamed sound has arrived."""
        deadline = time.monotonic() + SYNTHESIS_MS / 1000
        while self.first_piece is None:
            assert time.monotonic() < deadline, "no sound came"
            self.page.wait_for_timeout(50)  # lets the page's messages in

    def wait_for_facts(self, mode: str) -> str:
        """The line under a finished result."""
        status = self.page.locator(f"#{mode}-status")
        status.get_by_text("RTF").wait_for(timeout=SYNTHESIS_MS)
        return str(status.inner_text())

    def wait_for_refusal(self, mode: str, words: str) -> str:
        status = self.page.locator(f"#{mode}-status")
        status.get_by_text(words).wait_for(timeout=USABLE_MS)
        return str(status.inner_text())

    def download(self, mode: str) -> Download:
        with self.page.expect_download() as waiting:
            self.page.locator(f"#{mode}-download").click()
        with wave.open(str(waiting.value.path())) as sound:
            pcm = np.frombuffer(sound.readframes(sound.getnframes()), np.int16)
            return Download(waiting.value.suggested_filename, pcm, sound.getframerate())

    def streamed(self) -> bytes:
        """All that the last live stream holds, once it has ended: ADTS frames."""
        playlist = self.playlists[-1]
        deadline = time.monotonic() + 10
        while "#EXT-X-ENDLIST" not in (text := self.page.request.get(playlist).text()):
            assert time.monotonic() < deadline, f"the stream does not end: {text}"
            time.sleep(0.2)
        names = [line for line in text.splitlines() if line and not line.startswith("#")]
        folder = playlist.rsplit("/", 1)[0]
        return b"".join(self.page.request.get(f"{folder}/{name}").body() for name in names)

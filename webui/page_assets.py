"""Middleware: Gradio's own scripts and styles from memory, compressed once, for browsers to keep.

A page asks for a hundred of them. Gradio compresses each one anew and has browsers ask again at every visit.
"""

from __future__ import annotations

import gzip
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

PREFIX = "/assets/"
# Names with a hash of the content: what has such a name never changes.
_LASTING = re.compile(r"[\w.+]+(?:-[\w.+]+)*-[\w-]{8}[\w-]*\.(js|css)")
_TYPES = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8"}
_YEAR = 365 * 24 * 3600
_LEVEL = 6


def assets_folder() -> Path | None:
    """Where this Gradio keeps what its page is made of, if it is where it usually is."""
    import gradio

    folder = Path(gradio.__file__).parent / "templates" / "frontend" / "assets"
    return folder if folder.is_dir() else None


@dataclass(frozen=True)
class _File:
    kind: str
    plain: bytes
    packed: bytes


class PageAssets:
    """Answers for the files in `folder` whose names tell their content; everything else is for the application."""

    def __init__(self, app: ASGIApp, folder: Path) -> None:
        self._app = app
        self._folder = folder
        self._kept: dict[str, _File] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = None
        if scope["type"] == "http" and scope["method"] == "GET" and scope["path"].startswith(PREFIX):
            found = self._find(scope["path"][len(PREFIX) :])
        if found is None:
            await self._app(scope, receive, send)
            return
        packed = any(name == b"accept-encoding" and b"gzip" in value for name, value in scope["headers"])
        content = found.packed if packed else found.plain
        headers = [
            (b"content-type", found.kind.encode()),
            (b"content-length", str(len(content)).encode()),
            (b"cache-control", f"public, max-age={_YEAR}, immutable".encode()),
            (b"vary", b"Accept-Encoding"),
            (b"x-content-type-options", b"nosniff"),
        ]
        if packed:
            headers.append((b"content-encoding", b"gzip"))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    def _find(self, name: str) -> _File | None:
        """The file of that name, read and compressed the first time; a name never leads out of the folder."""
        known = self._kept.get(name)
        match = None if known else _LASTING.fullmatch(name)
        if match is None:
            return known
        try:
            plain = (self._folder / name).read_bytes()
        except OSError:
            return None
        found = _File(_TYPES[match[1]], plain, gzip.compress(plain, _LEVEL, mtime=0))
        self._kept[name] = found
        return found

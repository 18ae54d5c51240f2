"""Reference clips that the history keeps, so that a result can be made once more with the voice it had."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Set
from pathlib import Path

LARGEST = 10 * 10**6  # bytes; a longer recording is not kept, and has to be given again
MOST = 2 * 10**9  # bytes of all clips together; beyond it those go that were not used for the longest time


class ClipStore:
    """A folder that only the studio's own user can read; a clip of one visitor is kept once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._unmeasured = MOST  # bytes that may have come since the folder was last measured

    def keep(self, visitor: str, clip: Path) -> str:
        """Keep a copy; the name to find it by, "" when there is nothing that can be kept."""
        try:
            if not 0 < clip.stat().st_size <= LARGEST:
                return ""
            digest = hashlib.sha256(visitor.encode() + b"\n" + clip.read_bytes()).hexdigest()[:32]
            name = f"{digest}/{clip.name}"
            kept = self._folder / name
            if not kept.is_file():
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                kept.parent.mkdir(exist_ok=True)
                partial = kept.with_name(f".{kept.name}.part")
                shutil.copyfile(clip, partial)
                os.replace(partial, kept)
                self._bound(kept.stat().st_size)
            os.utime(kept.parent)
        except OSError:
            return ""
        return name

    def _bound(self, added: int) -> None:
        """Remove the oldest clips beyond the bound; the folder is measured only now and then."""
        self._unmeasured += added
        if self._unmeasured < MOST // 20:
            return
        self._unmeasured = 0
        folders = sorted(self._folder.iterdir(), key=lambda folder: folder.stat().st_mtime, reverse=True)
        total = 0
        for folder in folders:
            total += sum(file.stat().st_size for file in folder.iterdir())
            if total > MOST:
                shutil.rmtree(folder, ignore_errors=True)

    def path(self, name: str) -> Path | None:
        """Where the clip lies; None when it is not (or no longer) there."""
        path = self._folder / name
        return path if name and path.is_file() else None

    def sweep(self, used: Set[str]) -> None:
        """Remove every clip that is not among the `used` names."""
        if not self._folder.is_dir():
            return
        kept = {name.split("/")[0] for name in used if name}
        for folder in self._folder.iterdir():
            if folder.name not in kept:
                with contextlib.suppress(OSError):
                    shutil.rmtree(folder)

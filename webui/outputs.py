"""Finished sound on disk: names that tell what it is, files that are whole or not there, and an end to them."""

from __future__ import annotations

import os
import re
import secrets
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from inference.frontend.encode import FORMATS, encode_audio
from inference.types import EngineError, Int16Audio, Mode

DAY = 24 * 3600.0
GIGABYTE = 10**9
STATE = ".studio"  # history and batches, inside the output folder
_NAME = re.compile(rf"\d{{8}}-\d{{6}}_[a-z-]+(_[^_]+)?_\d+(-\d+)?\.({'|'.join(FORMATS)})")
_LONGEST_VOICE = 24


@dataclass(frozen=True)
class Retention:
    """When finished sound goes; 0 is never."""

    seconds: float = 0.0
    bytes: int = 0


class Outputs:
    """The folder that everybody's finished sound goes to. It is not served: each visitor is handed their own files."""

    def __init__(self, folder: Path, retention: Retention | None = None) -> None:
        """Raises `EngineError("output_not_writable")`."""
        self.folder = folder
        self.retention = retention or Retention()
        self._lock = threading.Lock()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self.not_writable(error) from error

    def save(
        self,
        pcm: Int16Audio,
        sample_rate: int,
        *,
        mode: Mode,
        seed: int,
        voice: str = "",
        audio_format: str = "wav",
    ) -> Path:
        """Write (n,) int16 samples as one file.

        Raises `RequestError("audio_format_unknown")`; `EngineError` encoding_failed or output_not_writable.
        """
        data = encode_audio(pcm, sample_rate, audio_format)
        return self.write(data, output_stem(mode, seed, voice), audio_format)

    def write(self, data: bytes, stem: str, ending: str) -> Path:
        """Write one file whose name is `stem.ending`, or with a number if there is one by that name.

        Raises `EngineError("output_not_writable")`.
        """
        partial = self.folder / f".{secrets.token_hex(8)}.part"
        try:
            partial.write_bytes(data)
            with self._lock:
                for path in _names(self.folder, stem, ending):
                    if _put(partial, path):
                        return path
        except OSError as error:
            raise self.not_writable(error) from error
        finally:
            partial.unlink(missing_ok=True)
        raise AssertionError("names do not run out")

    def clean(self, now: float | None = None, spare: Iterable[Path] = ()) -> list[Path]:
        """Remove what is older than the retention says, then the oldest beyond its size; which files went.

        Only files that bear the studio's own names are touched; `spare` stays.
        """
        now = time.time() if now is None else now
        kept = {path.name for path in spare}
        files = sorted(
            (entry for entry in self._files() if entry[2].name not in kept), key=lambda entry: entry[0]
        )
        total = sum(size for _, size, _ in files)
        gone = []
        for modified, size, path in files:
            old = self.retention.seconds and modified < now - self.retention.seconds
            if not old and not (self.retention.bytes and total > self.retention.bytes):
                continue
            path.unlink(missing_ok=True)
            total -= size
            gone.append(path)
        self._clean_partials(now)
        return gone

    def _files(self) -> list[tuple[float, int, Path]]:
        found = []
        for path in self.folder.iterdir():
            if _NAME.fullmatch(path.name):
                try:
                    facts = path.stat()
                except OSError:
                    continue
                found.append((facts.st_mtime, facts.st_size, path))
        return found

    def _clean_partials(self, now: float) -> None:
        """What a studio that was killed in the middle of writing left behind."""
        for path in self.folder.glob(".*.part"):
            try:
                if path.stat().st_mtime < now - DAY:
                    path.unlink()
            except OSError:
                continue

    def not_writable(self, error: Exception) -> EngineError:
        """What is raised when nothing can be written here."""
        reason = getattr(error, "strerror", None) or error
        return EngineError(
            "output_not_writable",
            f"Sound cannot be saved in {self.folder} ({reason}); check permissions and free space.",
            folder=str(self.folder),
        )


def output_stem(mode: Mode, seed: int, voice: str = "", now: float | None = None) -> str:
    """ "20261130-031500_clone_anna_7": local time, mode, saved voice (if any), seed."""
    parts = [time.strftime("%Y%m%d-%H%M%S", time.localtime(now)), mode.value.replace("_", "-")]
    parts += [name] if (name := file_word(voice)) else []
    return "_".join([*parts, str(seed)])


def file_word(text: str) -> str:
    """Letters and digits of any script, with hyphens between: safe in a file's name on every system."""
    return re.sub(r"[\W_]+", "-", text).strip("-")[:_LONGEST_VOICE].strip("-")


def _names(folder: Path, stem: str, ending: str) -> Iterable[Path]:
    yield folder / f"{stem}.{ending}"
    number = 2
    while True:
        yield folder / f"{stem}-{number}.{ending}"
        number += 1


def _put(partial: Path, path: Path) -> bool:
    """Give the file its name unless that is taken, also by another program in the same moment."""
    try:
        os.link(partial, path)
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links
        if path.exists():
            return False
        partial.replace(path)
    return True


def hand_out(path: Path) -> str:
    """A copy for one visitor, in Gradio's cache: its address holds a hash that nobody else can guess."""
    from gradio.processing_utils import save_file_to_cache
    from gradio.utils import get_upload_folder

    return str(save_file_to_cache(path, get_upload_folder()))


def take_back(path: Path) -> None:
    """Remove the copy that `hand_out` made of a file which is about to be deleted."""
    from gradio.processing_utils import hash_file
    from gradio.utils import get_upload_folder

    if path.is_file():
        copy = Path(get_upload_folder()) / hash_file(path) / path.name
        copy.unlink(missing_ok=True)

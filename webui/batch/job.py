"""One batch on disk: what was asked for, what has become of each row, and the archive of its sound.

A folder holds `job.json` (never changed), `reference` (the clip, if any), `results.jsonl` (a line for each row that
ended), `sound/` and, while nobody wants it to go on, an empty file `stopped`. So a batch outlives any crash.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from inference.types import Mode, SynthesisError, SynthesisRequest
from webui.batch.archive import file_names, write_archive
from webui.batch.files import (
    BatchSettings,
    RowResult,
    not_writable,
    result_line,
    result_lines,
    row_to,
    settings_from,
    settings_to,
    with_own_clip,
    write_whole,
)
from webui.batch.rows import Row
from webui.outputs import file_word


class Job:
    """A batch that is in memory. Its results may be added from any thread."""

    def __init__(
        self,
        folder: Path,
        owner: str,
        name: str,
        created: float,
        settings: BatchSettings,
        rows: Sequence[Row],
    ) -> None:
        self.folder = folder
        self.owner = owner
        self.name = name
        self.created = created
        self.settings = settings
        self.rows = tuple(rows)
        self.results: dict[int, RowResult] = {}
        self._files = file_names(self.rows, settings.audio_format)
        self._lock = threading.Lock()
        self._halted = False

    # ------------------------------------------------------------------------------------------------- on disk
    @classmethod
    def create(cls, folder: Path, owner: str, name: str, settings: BatchSettings, rows: Sequence[Row]) -> Job:
        """Write a new one. Raises `EngineError("output_not_writable")`."""
        try:
            (folder / "sound").mkdir(parents=True)
            settings = with_own_clip(settings, folder)
            job = cls(folder, owner, name, time.time(), settings, rows)
            asked = {"owner": owner, "name": name, "created": job.created, "settings": settings_to(settings)}
            asked["rows"] = [row_to(row) for row in rows]
            write_whole(folder / "job.json", json.dumps(asked, ensure_ascii=False).encode())
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise not_writable(folder, error) from error
        return job

    @classmethod
    def load(cls, folder: Path) -> Job:
        """Read one that was written before. Raises `ValueError`, `KeyError` or `OSError` for a broken one."""
        asked = json.loads((folder / "job.json").read_text(encoding="utf-8"))
        rows = [Row(**{"text": "", **row}) for row in asked["rows"]]
        settings = settings_from(asked["settings"], folder)
        job = cls(folder, asked["owner"], asked["name"], asked["created"], settings, rows)
        for line in result_lines(folder / "results.jsonl"):
            result = RowResult(**line)
            if not result.file or (folder / "sound" / result.file).is_file():
                job.results[result.row] = result
        return job

    @property
    def id(self) -> str:
        return self.folder.name

    @property
    def stopped(self) -> bool:
        return self._halted or (self.folder / "stopped").exists()

    def set_stopped(self, stopped: bool) -> None:
        """Raises `EngineError("output_not_writable")`; until the program ends it is as wished all the same."""
        self._halted = stopped
        try:
            if stopped:
                (self.folder / "stopped").touch()
            else:
                (self.folder / "stopped").unlink(missing_ok=True)
        except OSError as error:
            raise not_writable(self.folder, error) from error

    def size(self) -> int:
        """Bytes on disk."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())

    def forget_failures(self) -> None:
        """Let the rows that failed be tried again."""
        with self._lock:
            self.results = {row: result for row, result in self.results.items() if result.file}
            lines = "".join(result_line(result) for result in self.results.values())
            write_whole(self.folder / "results.jsonl", lines.encode())

    # -------------------------------------------------------------------------------------------------- rows
    @property
    def complete(self) -> bool:
        return len(self.results) == len(self.rows)

    def request(self, index: int) -> SynthesisRequest:
        """What to ask the engine for."""
        row, common = self.rows[index], self.settings
        return SynthesisRequest(
            mode=Mode(row.mode) if row.mode else common.mode,
            text=row.text,
            voice=row.voice or common.voice,
            instruction=row.instruction or common.instruction,
            speed=common.speed if row.speed is None else row.speed,
            seed=common.seed if row.seed is None else row.seed,
            language=common.language,
        )

    def add_sound(self, index: int, data: bytes, seconds: float) -> None:
        """Keep a row's finished file. Raises `EngineError("output_not_writable")`."""
        path = self.folder / "sound" / self._files[index]
        try:
            write_whole(path, data)
        except OSError as error:
            raise not_writable(self.folder, error) from error
        self._add(RowResult(index, file=path.name, seconds=round(seconds, 3)))

    def add_failure(self, index: int, error: SynthesisError) -> None:
        self._add(RowResult(index, code=error.code, message=error.message, details=dict(error.details)))

    def _add(self, result: RowResult) -> None:
        """Raises `EngineError("output_not_writable")`."""
        with self._lock:
            try:
                with (self.folder / "results.jsonl").open("a", encoding="utf-8") as file:
                    file.write(result_line(result))
            except OSError as error:
                raise not_writable(self.folder, error) from error
            self.results[result.row] = result

    # ----------------------------------------------------------------------------------------------- archive
    def archive(self) -> Path:
        """A zip of the sound so far, `report.csv` and, of subtitles, one track with all lines at their times.

        Raises `EngineError("output_not_writable")`.
        """
        with self._lock:
            results = dict(self.results)
        stem = file_word(Path(self.name).stem) or "batch"
        stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(self.created))
        path = self.folder / f"{stamp}_batch_{stem}.zip"
        try:
            write_archive(path, self.folder / "sound", self.rows, results, self.settings.audio_format)
        except OSError as error:
            raise not_writable(self.folder, error) from error
        return path


__all__ = ["BatchSettings", "Job", "RowResult"]

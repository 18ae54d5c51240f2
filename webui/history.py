"""What each browser has had made: kept on the server under an id that only that browser has."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference.types import RequestError
from webui.clips import ClipStore

MOST_SHOWN = 50

# Applied in order, each once; `PRAGMA user_version` counts them. Never change one that was released: add another.
_MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE takes (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        visitor TEXT NOT NULL,
        created REAL NOT NULL,
        mode TEXT NOT NULL,
        voice TEXT NOT NULL,
        text TEXT NOT NULL,
        seed INTEGER NOT NULL,
        duration REAL NOT NULL,
        file TEXT NOT NULL UNIQUE,
        settings TEXT NOT NULL
    );
    CREATE INDEX takes_of_visitor ON takes (visitor, id);
    """,
    "ALTER TABLE takes ADD COLUMN clip TEXT NOT NULL DEFAULT ''",
)


@dataclass(frozen=True)
class PastTake:
    """One finished piece of speech of a visitor."""

    id: int
    created: float  # seconds since 1970
    mode: str
    voice: str  # name of the saved voice, "" for a clip
    text: str
    seed: int
    duration: float  # seconds
    path: Path
    settings: Mapping[str, Any]
    clip: Path | None = None  # the reference clip it was made with, if it was a clip and is still there


class History:
    """A table of takes in one file. May be used from any thread; a visitor sees and deletes only their own."""

    def __init__(self, file: Path, folder: Path) -> None:
        """`file`: the database, beside which the reference clips are kept; `folder`: where the sound lies."""
        self._folder = folder
        self._clips = ClipStore(file.parent / "clips")
        file.parent.mkdir(parents=True, exist_ok=True)
        # One connection for all threads, taken in turn: the work is microseconds, and seeds may exceed no 64 bits.
        self._connection = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
        self._lock = threading.Lock()
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._migrate()

    def _migrate(self) -> None:
        (done,) = self._connection.execute("PRAGMA user_version").fetchone()
        for number, script in enumerate(_MIGRATIONS[done:], done + 1):
            self._connection.executescript(f"BEGIN; {script}; PRAGMA user_version = {number}; COMMIT;")

    @contextmanager
    def _cursor(self) -> Iterator[sqlite3.Cursor]:
        with self._lock:
            yield self._connection.cursor()

    def add(
        self,
        visitor: str,
        path: Path,
        *,
        mode: str,
        text: str,
        seed: int,
        duration: float,
        voice: str = "",
        settings: Mapping[str, Any] | None = None,
        clip: Path | None = None,
    ) -> int:
        """Note a take, and keep a copy of its reference clip; its id."""
        values = (visitor, time.time(), mode, voice, text, seed, duration, path.name)
        with self._cursor() as cursor:  # no sweep may come between the copy and the line that names it
            kept = self._clips.keep(visitor, clip) if clip is not None else ""
            cursor.execute(
                "INSERT INTO takes (visitor, created, mode, voice, text, seed, duration, file, settings, clip)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*values, json.dumps(dict(settings or {}), ensure_ascii=False, default=str), kept),
            )
            return int(cursor.lastrowid or 0)

    def takes(self, visitor: str, most: int = MOST_SHOWN) -> list[PastTake]:
        """The visitor's takes whose sound is still there, the newest first. None for a visitor without an id."""
        if not visitor:
            return []
        with self._cursor() as cursor:
            rows = cursor.execute(
                f"SELECT {_COLUMNS} FROM takes WHERE visitor = ? ORDER BY id DESC", (visitor,)
            ).fetchall()
        found = (self._take(row) for row in rows)
        return [take for take in found if take.path.is_file()][:most]

    def find(self, visitor: str, number: int) -> PastTake:
        """One take of the visitor. Raises `RequestError("take_unknown")`, also for another's."""
        with self._cursor() as cursor:
            row = cursor.execute(
                f"SELECT {_COLUMNS} FROM takes WHERE visitor = ? AND id = ?", (visitor, number)
            ).fetchone()
        if not visitor or row is None or not (take := self._take(row)).path.is_file():
            raise RequestError("take_unknown", "This result is no longer there.")
        return take

    def delete(self, visitor: str, number: int) -> None:
        """Remove a take and its sound. Raises `RequestError("take_unknown")`."""
        take = self.find(visitor, number)
        take.path.unlink(missing_ok=True)
        with self._cursor() as cursor:
            cursor.execute("DELETE FROM takes WHERE id = ?", (number,))
            self._sweep(cursor)

    def clear(self, visitor: str) -> int:
        """Remove all that the visitor has; how many takes it were."""
        takes = self.takes(visitor, most=1 << 30)
        for take in takes:
            take.path.unlink(missing_ok=True)
        with self._cursor() as cursor:
            cursor.execute("DELETE FROM takes WHERE visitor = ?", (visitor,))
            self._sweep(cursor)
        return len(takes)

    def forget(self, missing: Callable[[Path], bool] = lambda path: not path.exists()) -> int:
        """Drop the lines of files that are gone; how many."""
        with self._cursor() as cursor:
            files = cursor.execute("SELECT id, file FROM takes").fetchall()
            gone = [(number,) for number, name in files if missing(self._folder / name)]
            cursor.executemany("DELETE FROM takes WHERE id = ?", gone)
            self._sweep(cursor)
        return len(gone)

    def _sweep(self, cursor: sqlite3.Cursor) -> None:
        """Remove the clips that no take names any more."""
        self._clips.sweep({str(name) for (name,) in cursor.execute("SELECT DISTINCT clip FROM takes")})

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _take(self, row: tuple[Any, ...]) -> PastTake:
        number, created, mode, voice, text, seed, duration, file, settings, clip = row
        path = self._folder / file
        return PastTake(
            number,
            created,
            mode,
            voice,
            text,
            seed,
            duration,
            path,
            json.loads(settings),
            self._clips.path(clip),
        )


_COLUMNS = "id, created, mode, voice, text, seed, duration, file, settings, clip"

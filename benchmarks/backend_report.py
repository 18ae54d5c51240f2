"""Rows of `benchmarks.backends`: printed as they come, written after each, the chosen ones marked."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from inference.runtime.graph_files import keep

# part, items, seconds → times faster than float32, largest error (issue 3)
TARGETS = {("vocoder", 8, 10.0): (4.0, 3e-3), ("flow", 1, 10.0): (3.0, 2e-2), ("flow", 16, 10.0): (5.0, 2e-2)}


@dataclass(frozen=True)
class Row:
    """One measurement; `ms` and `graph_ms` are medians, `prepare_s` is what came before: export, compile, build."""

    part: str
    backend: str
    items: int
    seconds: float
    ms: float
    graph_ms: float | None
    times_faster: float
    error: float
    memory_mb: float
    prepare_s: float


class Report:
    """`machine`: what a reader of the numbers needs. `path`: a JSON file, kept up to date, or None."""

    def __init__(self, machine: Mapping[str, Any], path: Path | None) -> None:
        self.rows: list[Row] = []
        self._machine, self._path = machine, path
        self._failures: list[dict[str, object]] = []
        self._chosen: Mapping[str, str] = {}
        print(json.dumps(machine), flush=True)
        print(" ".join(f"{name:>15}" for name in Row.__dataclass_fields__), flush=True)

    def add(self, row: Row) -> None:
        """One more."""
        self.rows.append(row)
        print(" ".join(f"{_text(value):>15}" for value in asdict(row).values()), flush=True)
        self._write()

    def fail(self, part: str, name: str, size: Sequence[float], error: Exception) -> None:
        """`size`: items and seconds."""
        words = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        entry: dict[str, object] = {"part": part, "backend": name, "size": list(size), "error": words}
        self._failures.append(entry)
        print(" ".join([part, name, *map(str, size)]) + f": {words}", flush=True)
        self._write()

    def conclude(self, chosen: Mapping[str, str]) -> None:
        """Say what `auto` takes and how that stands to the targets. `chosen`: part → this benchmark's name."""
        self._chosen = chosen
        for part, name in chosen.items():
            print(f"{part}: auto takes {name}")
        for row in self.rows if "gpu" in self._machine else ():
            target = TARGETS.get((row.part, row.items, row.seconds))
            if target is not None and chosen.get(row.part) == row.backend:
                faster, error = target
                print(
                    f"{row.part}, {row.items} of {row.seconds:g} s: {row.backend} is {row.times_faster:.1f} times"
                    f" faster (wanted on an H200: {faster:g}), error {row.error:.2g} (at most {error:g})"
                )
        self._write()

    def _write(self) -> None:
        """What there is so far; a run that is cut off leaves it."""
        if self._path is None:
            return
        rows = [asdict(row) | {"chosen": self._chosen.get(row.part) == row.backend} for row in self.rows]
        found = {"machine": self._machine, "chosen": self._chosen, "rows": rows, "failures": self._failures}
        keep(self._path, json.dumps(found, indent=1).encode())


def _text(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)

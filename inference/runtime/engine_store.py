"""Engines on disk: named by everything that decides whether they can be used, checked before they are read."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from inference.runtime.graph_files import keep, short_hash
from inference.runtime.shape_ranges import ShapeRange

logger = logging.getLogger(__name__)

_MAGIC = b"cosyvoice-engine 1\n"


@dataclass(frozen=True)
class EngineKey:
    """`graph`: hash of sizes, weights and format (`graph_files.graph_key`); `gpu`: name and compute capability;
    `runtime`: TensorRT's name and version; `precision`: "fp16" or "fp32"."""

    kind: str
    graph: str
    gpu: str
    runtime: str
    precision: str
    ranges: tuple[ShapeRange, ...]

    @property
    def file_name(self) -> str:
        return f"{self.kind}-{self.precision}-{short_hash(self)}.engine"

    @property
    def timings_name(self) -> str:
        """Timings are of a GPU and a version, whatever the graph."""
        return f"timings-{short_hash(self.gpu, self.runtime)}.cache"


class EngineStore:
    """A folder of engines. Files appear whole or not at all; any number of processes may share it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, key: EngineKey) -> Path:
        return self.folder / key.file_name

    def read(self, key: EngineKey) -> bytes | None:
        """The plan, or None where there is none that is whole and of this very key (it is removed then)."""
        path = self.path(key)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        plan = _unpack(content, key)
        if plan is None:
            logger.warning("The engine %s is damaged or not of this machine; it is built anew.", path.name)
            self.remove(key)
        return plan

    def write(self, key: EngineKey, plan: bytes) -> None:
        head = {"key": _plain(key), "bytes": len(plan), "sha256": hashlib.sha256(plan).hexdigest()}
        keep(self.path(key), _MAGIC + json.dumps(head).encode() + b"\n" + plan)

    def remove(self, key: EngineKey) -> None:
        self.path(key).unlink(missing_ok=True)

    def timings(self, key: EngineKey) -> bytes:
        """What earlier builds measured, b"" if nothing."""
        try:
            return (self.folder / key.timings_name).read_bytes()
        except OSError:
            return b""

    def keep_timings(self, key: EngineKey, content: bytes) -> None:
        if content:
            keep(self.folder / key.timings_name, content)


def _plain(key: EngineKey) -> object:
    return json.loads(json.dumps(asdict(key)))


def _unpack(content: bytes, key: EngineKey) -> bytes | None:
    """A damaged plan must not reach the library, which may crash on it."""
    if not content.startswith(_MAGIC):
        return None
    head, _, plan = content[len(_MAGIC) :].partition(b"\n")
    try:
        facts = json.loads(head)
    except ValueError:
        return None
    sound = (
        facts.get("key") == _plain(key)
        and facts.get("bytes") == len(plan)
        and facts.get("sha256") == hashlib.sha256(plan).hexdigest()
    )
    return plan if sound else None


def describe(ranges: Sequence[ShapeRange]) -> str:
    """For people: the largest shape of each profile."""
    return ", ".join(f"{shapes.batch[2]} x {shapes.frames[2]} frames" for shapes in ranges)

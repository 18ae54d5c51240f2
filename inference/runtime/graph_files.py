"""Files that are made once and kept: exported graphs, engines, timing caches, choices."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp

import torch
from torch import nn

GRAPH_FORMAT = 2  # of what `network_graphs` computes; raise it when that changes


def default_cache_dir() -> Path:
    """Where graphs, engines and choices are kept: `$COSYVOICE_GRAPHS`, else in the user's cache folder."""
    chosen = os.environ.get("COSYVOICE_GRAPHS")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "cosyvoice-graphs"


def graph_key(kind: str, module: nn.Module, config: object) -> str:
    """Of a graph's kind, sizes and weights, and of what writes it: 32 hexadecimal digits."""
    found = hashlib.sha256(repr((kind, GRAPH_FORMAT, torch.__version__, config)).encode())
    for name, tensor in sorted(module.state_dict().items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return found.hexdigest()[:32]


def short_hash(*parts: object) -> str:
    """16 hexadecimal digits of any plain values."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def kept_file(folder: Path, name: str, write: Callable[[Path], None]) -> Path:
    """`folder/name`, made by `write` if it is not there. Others never see a half-written file."""
    path = folder / name
    if path.is_file():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    scratch = Path(mkdtemp(prefix=".making-", dir=folder))
    try:
        unfinished = scratch / name
        write(unfinished)
        unfinished.replace(path)
    finally:
        for rest in scratch.iterdir():
            rest.unlink()
        scratch.rmdir()
    return path


def keep(path: Path, content: bytes) -> None:
    """Write or replace a file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(mkdtemp(prefix=".making-", dir=path.parent))
    try:
        unfinished = scratch / path.name
        unfinished.write_bytes(content)
        unfinished.replace(path)
    finally:
        for rest in scratch.iterdir():
            rest.unlink()
        scratch.rmdir()

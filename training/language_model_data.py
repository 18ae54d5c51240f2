"""The language-model trainer's data: text ids and speech tokens of all utterances with features, on the host.

It is small (25 tokens a second): worker processes each keep their own copy and nothing is shared.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from inference.frontend.tokenizer import TextTokenizer

SHORTEST = 6  # speech tokens; shorter utterances are left out
_SILENT_SHARE = 0.01  # of all last tokens, from which an id counts as silence

Ids = npt.NDArray[np.int32]
Encode = Callable[[str], list[int]]


def load_encoder(folder: Path) -> tuple[Encode, int]:
    """Text → ids exactly as inference makes them, and the id of `<|endofprompt|>`."""
    tokenizer = TextTokenizer(folder)
    return tokenizer.encode, tokenizer.end_of_prompt


@dataclass(frozen=True, eq=False)
class Line:
    """One utterance."""

    text: Ids
    following: Ids  # the text as it continues another: English with a space before it
    instruction: Ids  # `<|endofprompt|>` included; empty = spoken at its normal pace
    speech: Ids
    speaker: str


class Corpus:
    """Every shard of the folders that has its features. `scan` may be called again at any time."""

    def __init__(self, folders: Path | Sequence[Path], tokenizer: Path) -> None:
        self.folders = (folders,) if isinstance(folders, Path) else tuple(folders)
        self.lines: dict[str, list[Line]] = {"train": [], "dev": []}
        self.used: Ids = np.zeros(0, np.int32)  # speech ids that occur in lines to train on, sorted
        self.silent: Ids = np.zeros(0, np.int32)  # speech ids that commonly end an utterance, sorted
        self._encode, self._end_of_prompt = load_encoder(tokenizer)
        self._seen: set[str] = set()

    def hours(self) -> float:
        return sum(len(line.speech) for line in self.lines["train"]) / 25 / 3600

    def scan(self, limit: int = 0) -> int:
        """Append shards not yet read, at most `limit` (0 = all); returns the number of new utterances."""
        before, read = self._count(), 0
        for path in sorted(path for folder in self.folders for path in folder.glob("features-*.npz")):
            shard = path.with_name(path.name.replace("features-", "shard-", 1))
            if str(path) in self._seen or not shard.exists():
                continue
            if limit and read == limit:
                break
            self._seen.add(str(path))
            read += 1
            self._read(shard, path)
        found = self._count() - before
        if found:
            self._survey()
        return found

    def _count(self) -> int:
        return sum(map(len, self.lines.values()))

    def _read(self, shard_path: Path, features_path: Path) -> None:
        with np.load(shard_path) as shard, np.load(features_path) as features:
            meta = json.loads(str(shard["meta"]))
            tokens: Ids = features["tokens"].astype(np.int32)
            offsets = features["token_offsets"].astype(np.int64)
        for number, entry in enumerate(meta):
            speech = tokens[offsets[number] : offsets[number + 1]]
            if entry["split"] in self.lines and len(speech) >= SHORTEST and entry["text"].strip():
                self.lines[entry["split"]].append(self._line(entry, speech))

    def _line(self, entry: dict[str, str], speech: Ids) -> Line:
        text = entry["text"].strip()
        instruct = entry.get("instruct", "")
        instruction = [*self._encode(instruct), self._end_of_prompt] if instruct else []
        return Line(
            text=np.array(self._encode(text), np.int32),
            following=np.array(self._encode(text if entry["lang"] == "zh" else " " + text), np.int32),
            instruction=np.array(instruction, np.int32),
            speech=speech,
            speaker=entry["speaker"],
        )

    def _survey(self) -> None:
        lines = self.lines["train"]
        if not lines:
            return
        self.used = np.unique(np.concatenate([line.speech for line in lines])).astype(np.int32)
        last, counts = np.unique([line.speech[-1] for line in lines], return_counts=True)
        self.silent = last[counts >= max(2, _SILENT_SHARE * len(lines))].astype(np.int32)

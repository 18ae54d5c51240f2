"""What the language model is fed: symbols of three tables in one sequence, as plain arrays (SPEC 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from inference.models.language_model import PAD, SERVICE, SPEECH, START_OF_SEQUENCE, TASK, TEXT

IntArray = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Feed:
    """A run of input symbols: `kinds` names each one's embedding table, `ids` its row. Both (T,) int32."""

    kinds: IntArray
    ids: IntArray

    def __len__(self) -> int:
        return len(self.ids)


def of_kind(kind: int, ids: Sequence[int] | npt.NDArray[np.integer]) -> Feed:
    """A feed of one kind."""
    rows = np.asarray(ids, dtype=np.int32).reshape(-1)
    return Feed(np.full(len(rows), kind, dtype=np.int32), rows)


def text_feed(ids: Sequence[int] | npt.NDArray[np.integer]) -> Feed:
    return of_kind(TEXT, ids)


def speech_feed(ids: Sequence[int] | npt.NDArray[np.integer]) -> Feed:
    return of_kind(SPEECH, ids)


START_FEED = of_kind(SERVICE, [START_OF_SEQUENCE])
TASK_FEED = of_kind(SERVICE, [TASK])


def join(feeds: Sequence[Feed]) -> Feed:
    """One after another."""
    return Feed(np.concatenate([feed.kinds for feed in feeds]), np.concatenate([feed.ids for feed in feeds]))


@dataclass(frozen=True)
class SpeechPrompt:
    """One request to the language model (SPEC 2.7): what to say, and optionally the prompt to continue from.

    `text`, `prompt_text`: text ids; `prompt_speech`: speech ids of the prompt; `seed` alone decides the randomness.
    """

    text: IntArray
    prompt_text: IntArray
    prompt_speech: IntArray
    seed: int = 0
    exact: bool = (
        False  # the original's quirks: ids that mean nothing here may end the speech (`sample_step`)
    )

    @property
    def min_len(self) -> int:
        """Speech tokens before which the end cannot come."""
        return 2 * len(self.text)

    @property
    def max_len(self) -> int:
        """Speech tokens at which generation just ends."""
        return 20 * len(self.text)

    def feed(self) -> Feed:
        """`[sos] prompt text, text [task] prompt speech`."""
        return join(
            [
                START_FEED,
                text_feed(self.prompt_text),
                text_feed(self.text),
                TASK_FEED,
                speech_feed(self.prompt_speech),
            ]
        )


def pad_feeds(feeds: Sequence[Feed], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Right-padded kinds (B, T), ids (B, T) and lengths (B,), int64 on `device`."""
    size = max(len(feed) for feed in feeds)
    table = np.zeros((2, len(feeds), size), dtype=np.int64)
    table[0] = PAD
    for row, feed in enumerate(feeds):
        table[0, row, : len(feed)] = feed.kinds
        table[1, row, : len(feed)] = feed.ids
    on_device = torch.from_numpy(table).to(device)
    lengths = torch.tensor([len(feed) for feed in feeds], dtype=torch.int64).to(device)
    return on_device[0], on_device[1], lengths

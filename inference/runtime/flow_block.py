"""What the incremental flow computes at a time: a chunk of a stream, and where its memory lies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from inference.runtime.flow_pages import PageStore
from inference.runtime.flow_solver import fixed_noise


@dataclass(frozen=True)
class Stream:
    """What the chunks of one stream are made from, on the device."""

    tokens: Tensor  # (N,) all ids known so far, prompt first
    prompt_mel: Tensor  # (F, 80) float32
    speaker: Tensor  # (80,) projected
    pages: Sequence[int]  # of chunk 0, 1, …


class Chunk(NamedTuple):
    """A chunk of a stream. `end`: positions of the stream up to its end; the last chunk may be incomplete."""

    stream: Stream
    number: int
    end: int


class BlockInputs(NamedTuple):
    """What a block is made from."""

    tokens: Tensor  # (C, n + look-ahead)
    real: Tensor  # (C, n + look-ahead, 1) bool: False behind a stream's last token
    noise: Tensor  # (C, 2n, 80) float32
    prompt_mel: Tensor  # (C, 2n, 80) float32, zeros behind the prompt
    speaker: Tensor  # (C, 80)


@dataclass(frozen=True)
class Block:
    """A chunk of n positions (2n frames), and where its memory lies. C = 1 everywhere."""

    inputs: BlockInputs
    size: int  # n
    chunk: int  # positions of a whole chunk
    first: int  # position
    written: int  # the chunk's page
    pages: Tensor  # (1, W) the pages that the chunk sees, its own included
    run: int | None  # the first page where the pages follow one another: nothing to gather then
    most: int  # positions that the chunk sees
    tail_before: Tensor  # (1,) row of tails to start from
    tail_after: Tensor | None  # (1,) row of tails to write; None: the chunk is incomplete

    def moved(self, page: int, tail: int) -> Block:
        """The block in a memory whose first page and tail lie at `page` and `tail`."""
        return replace(
            self,
            written=self.written + page,
            pages=self.pages + page,
            run=None if self.run is None else self.run + page,
            tail_before=self.tail_before + tail,
            tail_after=None if self.tail_after is None else self.tail_after + tail,
        )


def upload(values: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """A matrix of integers on the device, without waiting for it."""
    return send(torch.tensor(values, dtype=torch.int64), device)


def send(values: Tensor, device: torch.device) -> Tensor:
    """A host tensor on the device, without waiting for it; one that is there already stays."""
    if values.device.type == "cpu" and device.type == "cuda":
        values = values.pin_memory()
    return values.to(device, non_blocking=True)


def single_block(chunk: Chunk, store: PageStore, lookahead: int) -> Block:
    """A block of one chunk, unpadded: its arithmetic depends on nothing but the chunk."""
    stream, number, end = chunk
    full = store.sizes.chunk_tokens
    first = number * full
    pages = list(stream.pages[: number + 1])
    before = pages[-2] if number else store.zero_tail
    device = stream.tokens.device
    tails = upload([[before, pages[-1]]], device)
    return Block(
        inputs=_inputs(chunk, end - first, store, lookahead),
        size=end - first,
        chunk=full,
        first=first,
        written=pages[-1],
        pages=upload([pages], device),
        run=pages[0] if pages == list(range(pages[0], pages[0] + len(pages))) else None,
        most=end,
        tail_before=tails[:, 0],
        tail_after=tails[:, 1] if end - first == full else None,
    )


def _inputs(chunk: Chunk, size: int, store: PageStore, lookahead: int) -> BlockInputs:
    """What the chunk's stream holds for it."""
    ratio, stream = store.sizes.ratio, chunk.stream
    device = stream.tokens.device
    first = chunk.number * store.sizes.chunk_tokens
    noise = fixed_noise(device, stream.prompt_mel.shape[1])[0].t()
    places = torch.arange(size + lookahead, device=device)
    return BlockInputs(
        tokens=_cut(stream.tokens, first, size + lookahead)[None],
        real=(places < len(stream.tokens) - first)[None, :, None],
        noise=_cut(noise, first * ratio, size * ratio)[None],
        prompt_mel=_cut(stream.prompt_mel, first * ratio, size * ratio)[None],
        speaker=stream.speaker[None],
    )


def _cut(source: Tensor, start: int, count: int) -> Tensor:
    """`count` rows from `start` on, zeros where the source has ended."""
    found = source[min(start, len(source)) : start + count]
    missing = count - len(found)
    return F.pad(found, (0, 0) * (source.dim() - 1) + (0, missing)) if missing else found

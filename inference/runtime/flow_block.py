"""What the incremental flow computes at a time: chunks of one or several streams, and where their memory lies."""

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
    """C chunks of n positions (2n frames) each; those behind a stream's end are padding.

    Chunks of one stream lie in order behind each other. Every tensor lies on the device, with a shape that follows
    from C, n and W, the most pages of a chunk.
    """

    inputs: BlockInputs
    size: int  # n
    chunk: int  # positions of a whole chunk
    first: Tensor  # (C,) first position
    only_first: int | None  # the same on the host when C = 1
    written: Tensor  # (C,) the pages of the chunks
    only_written: int | None  # the same on the host when C = 1
    pages: Tensor  # (C, W) the pages that a chunk sees, its own included, then padding
    run: int | None  # the first page where C = 1 and the pages follow one another: nothing to gather then
    counts: Tensor  # (C,) positions that a chunk sees
    most: int  # the largest of them on the host, or an upper bound
    alike: bool  # all counts are `most`
    tail_before: Tensor  # (C,) rows of tails to start from
    follows: Tensor | None  # (C,) bool: the chunk before it is the one before it in the block; None: never
    tail_after: Tensor | None  # (C,) rows of tails to write; None: no chunk is complete

    def moved(self, page: int | Tensor, tail: int | Tensor) -> Block:
        """The block in a memory whose first page and tail lie at `page` and `tail` (ints, or (1,) on the device)."""
        host_page = page if isinstance(page, int) else None

        def move(place: int | None) -> int | None:
            return None if place is None or host_page is None else place + host_page

        return replace(
            self,
            written=self.written + page,
            only_written=move(self.only_written),
            pages=self.pages + page,
            run=move(self.run),
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
    numbers = upload([[first, pages[-1], end, before]], device)
    return Block(
        inputs=_inputs([chunk], end - first, store, lookahead),
        size=end - first,
        chunk=full,
        first=numbers[:, 0],
        only_first=first,
        written=numbers[:, 1],
        only_written=pages[-1],
        pages=upload([pages], device),
        run=pages[0] if pages == list(range(pages[0], pages[0] + len(pages))) else None,
        counts=numbers[:, 2],
        most=end,
        alike=True,
        tail_before=numbers[:, 3],
        follows=None,
        tail_after=numbers[:, 1] if end - first == full else None,
    )


def joint_block(chunks: Sequence[Chunk], store: PageStore, lookahead: int, padding: int = 0) -> Block:
    """A block of any chunks, padded to whole ones, and of `padding` more that nobody needs."""
    full = store.sizes.chunk_tokens
    device = chunks[0].stream.tokens.device
    wide = max(chunk.number for chunk in chunks) + 1
    spare = store.spare_page
    table, last = [], None
    for chunk in chunks:
        stream, number, end = chunk
        follows = last is not None and last.stream is stream and last.number == number - 1
        before = stream.pages[number - 1] if number else store.zero_tail
        after = stream.pages[number] if end == (number + 1) * full else spare
        # Padding reads a page of the same stream, so that nobody's stale numbers come near.
        read = list(stream.pages[: number + 1]) + [stream.pages[0]] * (wide - number - 1)
        table.append([number * full, stream.pages[number], end, before, after, int(follows), *read])
        last = chunk
    table += [[0, spare, 1, store.zero_tail, spare, 0, *[spare] * wide]] * padding
    numbers = upload(table, device)
    first, written, counts, before_rows, after_rows, joined = numbers[:, :6].unbind(1)
    return Block(
        inputs=_inputs([*chunks, *[chunks[-1]] * padding], full, store, lookahead),
        size=full,
        chunk=full,
        first=first,
        only_first=None,
        written=written,
        only_written=None,
        pages=numbers[:, 6:],
        run=None,
        counts=counts.contiguous(),
        most=wide * full,
        alike=padding == 0 and all(chunk.end == wide * full for chunk in chunks),
        tail_before=before_rows,
        follows=joined > 0,
        tail_after=after_rows,
    )


def numbered_block(
    pages: Sequence[Sequence[int]], counts: Sequence[int], chunk: int, device: torch.device
) -> Block:
    """A block without content, to try attention with: the pages and the number of positions that each chunk sees."""
    wide = max(len(row) for row in pages)
    table = [[count, *row, *[row[0]] * (wide - len(row))] for row, count in zip(pages, counts)]
    numbers = upload(table, device)
    nothing, zeros = torch.empty(0, device=device), torch.zeros(len(pages), dtype=torch.int64, device=device)
    return Block(
        inputs=BlockInputs(nothing, nothing, nothing, nothing, nothing),
        size=chunk,
        chunk=chunk,
        first=zeros,
        only_first=None,
        written=zeros,
        only_written=None,
        pages=numbers[:, 1:],
        run=None,
        counts=numbers[:, 0],
        most=wide * chunk,
        alike=False,
        tail_before=zeros,
        follows=None,
        tail_after=zeros,
    )


def _inputs(chunks: Sequence[Chunk], size: int, store: PageStore, lookahead: int) -> BlockInputs:
    """What the chunks' streams hold for them, padded to `size` positions."""
    full, ratio = store.sizes.chunk_tokens, store.sizes.ratio
    streams = [chunk.stream for chunk in chunks]
    device = streams[0].tokens.device
    firsts = [chunk.number * full for chunk in chunks]
    noise = fixed_noise(device, streams[0].prompt_mel.shape[1])[0].t()
    left = upload([[len(stream.tokens) - first for stream, first in zip(streams, firsts)]], device)
    places = torch.arange(size + lookahead, device=device)
    return BlockInputs(
        tokens=_stack([_cut(s.tokens, first, size + lookahead) for s, first in zip(streams, firsts)]),
        real=(places < left[0, :, None])[..., None],
        noise=_stack([_cut(noise, first * ratio, size * ratio) for first in firsts]),
        prompt_mel=_stack(
            [_cut(s.prompt_mel, first * ratio, size * ratio) for s, first in zip(streams, firsts)]
        ),
        speaker=_stack([stream.speaker for stream in streams]),
    )


def _cut(source: Tensor, start: int, count: int) -> Tensor:
    """`count` rows from `start` on, zeros where the source has ended."""
    found = source[min(start, len(source)) : start + count]
    missing = count - len(found)
    return F.pad(found, (0, 0) * (source.dim() - 1) + (0, missing)) if missing else found


def _stack(items: list[Tensor]) -> Tensor:
    return items[0][None] if len(items) == 1 else torch.stack(items)

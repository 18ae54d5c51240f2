"""The incremental flow: each chunk of a stream is computed once, whatever the length of what went before (SPEC 5.4).

Under the block-causal mask (chunks of 25 tokens, 50 frames, counted from the prompt's first token) nothing before a
chunk border changes when tokens are added. A stream's `FlowCache` therefore keeps, for each complete chunk, a page
of keys, values and convolution inputs (`flow_pages`); `IncrementalFlow.extend` computes what is new and gives what
`FlowModel.inference(streaming=True)` gives from frame 0, up to float32 rounding. Tokens behind the last
border are computed again in the next call.

Memory a mel frame: (40,960 + 2,112) values = 172 kB for assets/nano in float32, (1,146,880 + 7,168) values = 2.31 MB
for the public size in half precision: 8.6 and 115 MB a second of sound, prompt included. All of it is inside
`budget_bytes`; a prompt's pages are kept for the next stream of the same voice until others need the place.

When the budget is used up a stream is `lost`: its later calls are computed from frame 0. That costs time and the
memory of one Euler step, and gives the very same bits: every chunk is computed alone, one after the other, so that
neither the neighbours, nor the calls' sizes, nor the budget can show in the sound. `paged_flow` does the same for many
streams at once on a GPU.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from inference.models.flow import FlowModel
from inference.runtime.flow_block import Chunk, Stream, send
from inference.runtime.flow_chunk_solver import ChunkSolver
from inference.runtime.flow_page_book import PageBook
from inference.runtime.flow_pages import PageSizes
from inference.types import EngineError

# Bytes: two minutes of nano's sound. The system gives them page by page, as they are used.
CPU_BUDGET = 1 << 30


@dataclass(eq=False)
class FlowCache:
    """What the incremental flow keeps of one stream. Made by `IncrementalFlow.open`; used by one thread at a time."""

    tokens: Tensor  # (P + N,) prompt and all tokens given so far, on the device
    prompt_tokens: int  # P
    prompt_mel: Tensor  # (F, 80) float32
    speaker: Tensor  # (80,) projected
    voice: bytes  # names the prompt's content
    shared: int  # chunks that depend on the prompt alone: all streams of the voice have them in common
    pages: list[int] = field(default_factory=list)  # of chunk 0, 1, …; the last may be incomplete
    done_chunks: int = 0  # complete ones, never computed again
    made: int = 0  # encoder positions that sound was made from, prompt included
    lost: bool = False  # over budget: every further call is computed from frame 0

    @property
    def given(self) -> int:
        """Generated tokens handed over so far, look-ahead included."""
        return len(self.tokens) - self.prompt_tokens


class IncrementalFlow:
    """Streams of one flow model within one memory budget, chunk by chunk: for the CPU. Threads may share an object,
    but not a cache."""

    @torch.inference_mode()
    def __init__(self, flow: FlowModel, budget_bytes: int) -> None:
        self.flow = flow
        self._ratio = flow.cfg.token_mel_ratio
        self._lookahead = flow.cfg.pre_lookahead
        self._sizes = PageSizes.of(flow.cfg)
        pages = max(0, budget_bytes) // self.page_bytes
        self._book = PageBook(pages)
        self._solver = ChunkSolver(flow, pages)

    @property
    def device(self) -> torch.device:
        return self.flow.encoder_proj.weight.device

    @property
    def page_bytes(self) -> int:
        """Bytes of one chunk (50 frames, one second)."""
        return self._sizes.page_values * self.flow.encoder_proj.weight.dtype.itemsize

    @property
    def memory_bytes(self) -> int:
        """Bytes in use by streams and kept prompts."""
        return self._book.held * self.page_bytes

    @torch.inference_mode()
    def open(self, prompt_tokens: object, prompt_mel: object, speaker: object) -> FlowCache:
        """A new stream. prompt_tokens (P,), prompt_mel (F, 80), speaker (192,), arrays or tensors, a leading axis of
        1 allowed; best on the CPU (elsewhere this waits for the device). F ≤ 2P, and 0 is allowed for both.

        When not even the prompt and a first second fit into the budget the stream is `lost` from the start.
        Raises `EngineError("prompt_mel_too_long")`.
        """
        ids = torch.as_tensor(prompt_tokens).reshape(-1).long().cpu().contiguous()
        mel = torch.as_tensor(prompt_mel).reshape(-1, self.flow.cfg.mel_bins).float().cpu().contiguous()
        vector = torch.as_tensor(speaker).reshape(1, -1).float().cpu().contiguous()
        if len(mel) > self._ratio * len(ids):
            raise EngineError(
                "prompt_mel_too_long", "The reference's spectrogram is longer than its speech tokens allow."
            )
        voice = _digest(ids, mel, vector)
        cache = FlowCache(
            tokens=send(ids, self.device),
            prompt_tokens=len(ids),
            prompt_mel=send(mel, self.device),
            speaker=self.flow.project_speaker(send(vector, self.device))[0].float(),
            voice=voice,
            shared=self._shareable(len(ids), len(mel)),
        )
        cache.pages += self._book.prompt_pages(voice)
        weakref.finalize(cache, self._book.abandon, cache.pages).atexit = False  # `close` leaves it nothing
        cache.done_chunks = len(cache.pages)
        needed = self._count(len(ids)) + 1 - len(cache.pages)
        if self._book.available < needed:
            self.close(cache)
        return cache

    def close(self, cache: FlowCache) -> None:
        """Give the stream's memory back (it is `lost` then); closing twice does no harm."""
        self._book.give_back(cache.pages)
        cache.pages.clear()
        cache.done_chunks, cache.lost = 0, True

    @torch.inference_mode()
    def extend(
        self, caches: Sequence[FlowCache], new_tokens: Sequence[object], final: Sequence[bool]
    ) -> list[Tensor]:
        """Add tokens (n,), n ≥ 0, to each stream: returns the mel frames (1, 80, M) that it had not been given yet.

        The last 3 tokens of a stream wait as look-ahead unless `final`, after which only `close` makes sense.
        Frames given before stay as they are heard, even where a call ended between two borders and they would now
        come out differently. A stream that runs out of budget becomes `lost` and still gets its frames.
        Raises what `FlowModel.plan` raises, and nothing has changed then. Results are not checked for overflow.
        """
        added = [torch.as_tensor(tokens).reshape(-1).long() for tokens in new_tokens]
        ends = self._check(caches, added, final)
        for cache, tokens in zip(caches, added):
            if len(tokens):
                cache.tokens = torch.cat((cache.tokens, send(tokens, self.device)))
        for cache, end in zip(caches, ends):
            if not cache.lost and not self._make_room(cache, end):
                self.close(cache)
        mels = self._compute(caches, ends)
        return [self._hand_over(*stream) for stream in zip(caches, mels, ends, final)]

    # ------------------------------------------------------------------------------------------- planning
    def _check(
        self, caches: Sequence[FlowCache], added: Sequence[Tensor], final: Sequence[bool]
    ) -> list[int]:
        """Encoder positions of each stream after this call."""
        ends = []
        for cache, tokens, last in zip(caches, added, final):
            lengths = cache.given + len(tokens), cache.prompt_tokens, len(cache.prompt_mel)
            plan = self.flow.plan(*(torch.tensor([length]) for length in lengths), finalize=last)
            ends.append(int(plan.frames[0]) // self._ratio)
        return ends

    def _make_room(self, cache: FlowCache, end: int) -> bool:
        missing = self._count(end) - len(cache.pages)
        pages = self._book.take(missing) if missing > 0 else []
        cache.pages += pages or []
        return pages is not None

    def _count(self, positions: int) -> int:
        return -(-positions // self._sizes.chunk_tokens)

    def _shareable(self, tokens: int, frames: int) -> int:
        """Chunks that see nothing but the prompt, and none of whose frames is ever given out."""
        complete = max(0, tokens - self._lookahead) // self._sizes.chunk_tokens
        return min(complete, frames // self._sizes.chunk_frames)

    def _compute(self, caches: Sequence[FlowCache], ends: Sequence[int]) -> list[Tensor]:
        """Frames (n, 80) of each stream from its first chunk that is not done, or from frame 0 when lost."""
        mels = []
        for cache, end in zip(caches, ends):
            chunks = self._plan(cache, end)
            if cache.lost:
                mels.append(self._solver.solve_without_pages(chunks))
            else:
                mels.append(self._solver.solve(chunks) if chunks else cache.prompt_mel[:0])
        return mels

    def _plan(self, cache: FlowCache, end: int) -> list[Chunk]:
        count, size = self._count(end), self._sizes.chunk_tokens
        pages = tuple(range(count) if cache.lost else cache.pages)
        stream = Stream(cache.tokens, cache.prompt_mel, cache.speaker, pages)
        return [
            Chunk(stream, number, min(end, (number + 1) * size)) for number in range(cache.done_chunks, count)
        ]

    def _hand_over(self, cache: FlowCache, mel: Tensor, end: int, final: bool) -> Tensor:
        """Note what is done and cut what is new."""
        size = self._sizes.chunk_tokens
        known = cache.done_chunks * size * self._ratio  # `mel` starts here
        start = max(cache.made * self._ratio, len(cache.prompt_mel))
        cache.made = end
        if not cache.lost:
            cache.done_chunks = cache.shared if final else end // size
            self._book.keep_prompt(cache.voice, cache.pages[: cache.shared])
        return mel[start - known : end * self._ratio - known].t()[None]


def _digest(*tensors: Tensor) -> bytes:
    """Names the content of host tensors."""
    digest = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        digest.update(str(tuple(tensor.shape)).encode())
        digest.update(tensor.numpy().tobytes())
    return digest.digest()

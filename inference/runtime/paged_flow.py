"""The incremental flow for many streams at once on a GPU: the new frames of all in one row (SPEC 5.4).

Under the block-causal mask nothing before a chunk border changes when tokens are added. What later chunks need of a
complete one is a page (`paged_memory`): 2.31 MB a mel frame at the public size in half precision, 115 MB a second.
Pages of a voice's prompt are shared by all its streams, and kept for coming ones. A stream without further pages is
simply computed again from its last page on, in the same row and by the same arithmetic; streams of one voice whose
prompt is computed just now read it off each other. The encoder, which costs next to nothing, always starts at frame 0.
"""

from __future__ import annotations

import hashlib
import logging
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from inference.models.flow import FlowModel
from inference.runtime.flow_block import send
from inference.runtime.flow_page_book import PageBook
from inference.runtime.frame_pack import Ints
from inference.runtime.packed_flow import FlowJob, PackedFlow
from inference.runtime.paged_layout import RowItem
from inference.runtime.paged_memory import PageMemory, PageShape
from inference.runtime.paged_ops import choose_ops
from inference.runtime.paged_solver import PagedSolver
from inference.types import EngineError

logger = logging.getLogger(__name__)

_VOICES = 256  # whose prompts stay on the device: 0.2 MB each
# A prompt that was wanted so recently does not make way for streams' own chunks.
_VOICE_SECONDS = 60.0


@dataclass(frozen=True)
class PromptVoice:
    """What all streams of a voice have in common."""

    name: bytes  # of the content
    tokens: Ints  # (P,)
    mel: Tensor  # (F, 80) float32 on the device
    speaker: Tensor  # (80,) projected, float32, on the device
    shared: int  # chunks that depend on the prompt alone and none of whose frames is ever given out

    @property
    def frames(self) -> int:
        return len(self.mel)


@dataclass(eq=False)
class PagedStream:
    """What is kept of one stream. Made by `PagedFlow.open`; used by one thread."""

    home: PagedFlow
    voice: PromptVoice
    tokens: list[int] = field(default_factory=list)  # generated ones given so far, look-ahead included
    pages: list[int] = field(default_factory=list)  # of its first chunks, complete ones
    made: int = 0  # encoder positions that sound was made from, prompt included

    @property
    def given(self) -> int:
        """Generated tokens handed over so far, look-ahead included."""
        return len(self.tokens)


@dataclass
class _Plan:
    """One stream's part of a call."""

    stream: PagedStream
    tokens: list[int]  # all, those of this call included
    end: int  # encoder positions afterwards
    final: bool
    first: int = 0  # chunk that the row begins with
    leader: int | None = None
    fresh: list[int] = field(default_factory=list)  # pages taken for this call, of the chunks from `own` on
    own: int = 0


class PagedFlow:
    """Streams of one flow model. Used from one thread, on one stream.

    `packed`: lends its encoder; `budget_bytes`: at most so much memory for pages, taken as it is needed.
    Raises `EngineError("paged_flow_unavailable")` where the device's kernels cannot be used.
    """

    def __init__(
        self, flow: FlowModel, packed: PackedFlow, budget_bytes: int, most_items: int, *, graphs: bool = False
    ) -> None:
        self.flow, self._packed = flow, packed
        self._device, dtype = flow.encoder_proj.weight.device, flow.encoder_proj.weight.dtype
        self._shape = PageShape.of(flow.cfg)
        pages = max(0, budget_bytes) // (self._shape.values * dtype.itemsize)
        with torch.inference_mode():
            self._memory = PageMemory(self._shape, pages, dtype, self._device)
            ops = choose_ops(self._memory, dtype)
            if ops is None:
                raise EngineError("paged_flow_unavailable", "The kernels of streaming cannot be used here.")
            self.solver = PagedSolver(
                flow,
                ops,
                most_items,
                graphs=graphs,
                kernels=packed.velocity_name == "kernels",
                weights=packed.weights,
            )
        self._book = PageBook(pages)
        self._voices: OrderedDict[bytes, PromptVoice] = OrderedDict()
        self._ratio = flow.cfg.token_mel_ratio
        self._chunk = flow.cfg.encoder.chunk_tokens
        self._lookahead = flow.cfg.pre_lookahead

    @property
    def page_bytes(self) -> int:
        """Bytes of one chunk (50 frames, one second)."""
        return self._memory.page_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes of the pages that hold something."""
        return self._book.held * self.page_bytes

    @property
    def memory_bytes(self) -> int:
        """Bytes of pages that were set aside so far, of graphs and buffers."""
        return self.page_memory_bytes + self.solver.programs.bytes()

    @property
    def page_memory_bytes(self) -> int:
        """Bytes of pages that were set aside so far."""
        return self._memory.bytes if self._device.type == "cuda" else self.used_bytes

    # --------------------------------------------------------------------------------------------- streams
    @torch.inference_mode()
    def open(self, prompt_tokens: object, prompt_mel: object, speaker: object) -> PagedStream:
        """A new stream. prompt_tokens (P,), prompt_mel (F, 80), speaker (192,), arrays or host tensors, a leading axis
        of 1 allowed. F ≤ 2P, and 0 is allowed for both. Raises `EngineError("prompt_mel_too_long")`."""
        ids = torch.as_tensor(prompt_tokens).reshape(-1).long().contiguous().numpy()
        mel = torch.as_tensor(prompt_mel).reshape(-1, self.flow.cfg.mel_bins).float().contiguous()
        vector = torch.as_tensor(speaker).reshape(1, -1).float().contiguous()
        if len(mel) > self._ratio * len(ids):
            raise EngineError(
                "prompt_mel_too_long", "The reference's spectrogram is longer than its speech tokens allow."
            )
        stream = PagedStream(self, self._voice(ids, mel, vector))
        weakref.finalize(stream, self._book.abandon, stream.pages).atexit = False  # `close` leaves it nothing
        return stream

    def close(self, stream: PagedStream) -> None:
        """Give the stream's memory back; closing twice does no harm."""
        stream.home._book.give_back(stream.pages)
        stream.pages.clear()

    def frames_made(self, stream: PagedStream) -> int:
        """Frames that were given out so far."""
        return max(0, stream.made * self._ratio - stream.voice.frames)

    def rows(self, stream: PagedStream, tokens: int, final: bool) -> int:
        """Frames that the row gets from a call after which `tokens` tokens were given."""
        done = len(stream.pages)
        if not done and self._book.knows(stream.voice.name):
            done = stream.voice.shared
        end = len(stream.voice.tokens) + tokens - (0 if final else self._lookahead)
        return max(0, end - done * self._chunk) * self._ratio

    def _voice(self, ids: Ints, mel: Tensor, speaker: Tensor) -> PromptVoice:
        digest = hashlib.blake2b(digest_size=16)
        for part in (ids, mel.numpy(), speaker.numpy()):
            digest.update(str(part.shape).encode())
            digest.update(part.tobytes())
        name = digest.digest()
        voice = self._voices.pop(name, None)
        if voice is None:
            complete = max(0, len(ids) - self._lookahead) // self._chunk
            voice = PromptVoice(
                name,
                ids,
                send(mel, self._device),
                self.flow.project_speaker(send(speaker, self._device))[0].float(),
                min(complete, len(mel) // (self._chunk * self._ratio)),
            )
        self._voices[name] = voice
        while len(self._voices) > _VOICES:
            self._voices.popitem(last=False)
        return voice

    # ----------------------------------------------------------------------------------------------- calls
    @torch.inference_mode()
    def extend(
        self, streams: Sequence[PagedStream], new_tokens: Sequence[Sequence[int]], final: Sequence[bool]
    ) -> tuple[list[Tensor], Tensor]:
        """Add tokens to each stream: the mel frames (M, 80) float32 that it had not been given yet, and (n,) int32:
        above 0 where a mel is not finite. Nothing waits for the device.

        The last 3 tokens of a stream wait as look-ahead unless `final`, after which only `close` makes sense. Frames
        given before stay as they are heard. Raises what `FlowModel.plan` raises; then, and when memory runs out,
        nothing has changed.
        """
        plans = [self._plan(*call) for call in zip(streams, new_tokens, final)]
        try:
            self._allot(plans)
            mels, unsound = self._solve(plans)
        except BaseException:
            for plan in plans:
                self._book.give_back(plan.fresh)
            raise
        for plan in plans:
            self._commit(plan)
        return mels, unsound

    def _plan(self, stream: PagedStream, new: Sequence[int], final: bool) -> _Plan:
        tokens = [*stream.tokens, *(int(token) for token in new)]
        voice = stream.voice
        frames = self.flow.check(len(tokens), len(voice.tokens), voice.frames, finalize=final)
        return _Plan(stream, tokens, frames // self._ratio, final)

    def _allot(self, plans: Sequence[_Plan]) -> None:
        """Say what each stream computes and which pages it writes. A voice's prompt is computed by its first stream."""
        leaders: dict[bytes, int] = {}
        for number, plan in enumerate(plans):
            stream, voice = plan.stream, plan.stream.voice
            if not stream.pages and voice.shared:
                stream.pages += self._book.prompt_pages(voice.name)
            plan.first = plan.own = len(stream.pages)
            if not stream.pages and voice.shared:
                plan.leader = leaders.setdefault(voice.name, number)
                if plan.leader == number:
                    plan.leader = None
                    plan.fresh = self._secured(self._book.take(voice.shared) or [])
                    if not plan.fresh:
                        continue  # nothing of it can be kept
                else:
                    plan.first = plan.own = voice.shared
                    if not plans[leaders[voice.name]].fresh:
                        continue
            if not plan.final:
                self._allot_own(plan)

    def _allot_own(self, plan: _Plan) -> None:
        missing = plan.end // self._chunk - plan.own - len(plan.fresh)
        if missing > 0:
            plan.fresh += self._secured(self._book.take_some(missing, _VOICE_SECONDS))

    def _secured(self, pages: list[int]) -> list[int]:
        """The pages once there is memory for them, none where that fails."""
        try:
            self._memory.ensure(max(pages, default=-1))
        except torch.OutOfMemoryError:
            self._book.give_back(pages)
            self._book.limit(self._memory.made)
            logger.warning("No memory for more of the streams' chunks; they are computed again.")
            return []
        return pages

    def _commit(self, plan: _Plan) -> None:
        stream, voice, book = plan.stream, plan.stream.voice, self._book
        stream.tokens, stream.made = plan.tokens, plan.end
        if plan.leader is not None:  # the leader has given the prompt to the book by now
            stream.pages += book.prompt_pages(voice.name)
            if not stream.pages:
                return
        stream.pages += plan.fresh
        if len(stream.pages) >= voice.shared:
            book.keep_prompt(voice.name, stream.pages[: voice.shared])

    def _solve(self, plans: Sequence[_Plan]) -> tuple[list[Tensor], Tensor]:
        places = [i for i, plan in enumerate(plans) if plan.end > plan.first * self._chunk]
        number = {place: i for i, place in enumerate(places)}
        mels = [plan.stream.voice.mel[:0] for plan in plans]
        unsound = torch.zeros(len(plans), dtype=torch.int32, device=self._device)
        if places:
            items = [self._item(plans[i], number) for i in places]
            jobs = [self._job(plans[i]) for i in places]
            found, counts = self.solver.run(items, jobs, self._packed.encode(jobs))
            for i, mel in zip(places, found):
                mels[i] = mel
            unsound = counts if len(places) == len(plans) else unsound.index_copy(
                0, send(torch.tensor(places), self._device), counts
            )  # fmt: skip
        return mels, unsound

    def _item(self, plan: _Plan, number: dict[int, int]) -> RowItem:
        address = self._memory.address
        leader = None if plan.leader is None else number[plan.leader]
        pages = [] if leader is not None else [address(page) for page in plan.stream.pages]
        kept = [address(page) for page in plan.fresh]
        return RowItem(plan.first, plan.end * self._ratio, pages, kept, leader)

    def _job(self, plan: _Plan) -> FlowJob:
        voice = plan.stream.voice
        tokens = np.concatenate((voice.tokens, np.array(plan.tokens, dtype=np.int64)))
        first = max(plan.stream.made * self._ratio, voice.frames)
        return FlowJob(tokens, True, plan.final, voice.mel, voice.speaker, first)

    # ---------------------------------------------------------------------------------------------- memory
    def clear(self) -> None:
        """Give back what can be made again: graphs, buffers, prompts that nobody uses. Streams keep their pages."""
        self.solver.programs.clear()
        self.forget()

    def rest(self) -> None:
        """Nobody speaks just now: give back the memory behind what is kept, and voices that nobody wanted for a while.

        The device must have done with what was asked of it.
        """
        self._book.forget_unused(_VOICE_SECONDS)
        self._memory.shrink(self._book.end)

    def forget(self) -> None:
        """Give back the prompts that nobody uses. The device must have done with what was asked of it."""
        self._voices.clear()
        self._book.forget_unused()
        self._memory.shrink(self._book.end)

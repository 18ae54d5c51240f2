"""Speech tokens from prompts, step by step: the plain path, for one request or a fixed batch (SPEC 3)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from inference.models.language_model import LanguageModel
from inference.runtime import bistream
from inference.runtime.feed import Feed, IntArray, SpeechPrompt, pad_feeds
from inference.runtime.kv_cache import KvCache
from inference.runtime.language_model_step import decode, extend, prefill, round_prefix
from inference.runtime.sampling import NOT_FINITE, SamplerState, repetition_aware, sample_step
from inference.runtime.uniforms import step_uniforms
from inference.types import EngineError, RequestError

MAX_CONTEXT = 32768  # positions the model was made for
_FIRST_ROOM = 512  # positions a stream of unknown length starts with
_MAX_PER_TEXT = 20  # speech tokens per text token at which a stream ends (SPEC 2.7)


class SpeechTokenGenerator:
    """Draws speech tokens. Holds no state between calls; iterators may run side by side.

    Closing an iterator cancels: nothing is computed past the step that is under way.
    """

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._cfg = model.cfg

    def stream(self, prompt: SpeechPrompt) -> Iterator[int]:
        """Speech ids (each < 6561) of one prompt as they are drawn. Raises as `stream_batch`."""
        for (token,) in self.stream_batch([prompt]):
            if token is not None:
                yield token

    def generate(self, prompts: Sequence[SpeechPrompt]) -> list[list[int]]:
        """All speech ids of every prompt; what one gets does not depend on the others."""
        found: list[list[int]] = [[] for _ in prompts]
        for step in self.stream_batch(prompts):
            for tokens, token in zip(found, step):
                if token is not None:
                    tokens.append(token)
        return found

    def stream_batch(self, prompts: Sequence[SpeechPrompt]) -> Iterator[list[int | None]]:
        """One list a step: the id drawn for each prompt, None for those that have ended.

        Raises `EngineError("non_finite")` when the model's output is NaN or infinite, and
        `RequestError("text_too_long")` when a prompt alone exceeds the model's context.
        """
        batch = _Batch(self._model, prompts)
        done = [prompt.max_len == 0 for prompt in prompts]
        while not all(done):
            ids = batch.step()
            step: list[int | None] = [None] * len(done)
            for row, token in enumerate(ids):
                if done[row]:
                    continue
                _check_finite(token)
                done[row] = token >= self._cfg.end_of_speech or batch.drawn >= batch.limits[row]
                if token < self._cfg.end_of_speech:
                    step[row] = token
            if any(token is not None for token in step):
                yield step

    def stream_text(
        self,
        pieces: Iterable[IntArray],
        prompt_text: IntArray,
        prompt_speech: IntArray,
        seed: int = 0,
        exact: bool = False,
    ) -> Iterator[int]:
        """Speech ids for text that arrives in pieces of text ids; speech begins before the text is complete.

        `exact` keeps the original's quirks: the last token fed twice, reserved ids possible (an
        `EngineError("unexpected_token")`), no maximum length. Raises `EngineError("non_finite")` as well.
        """
        run = _BistreamRun(self._model, prompt_text.tolist(), prompt_speech.tolist(), seed, exact)
        for piece in pieces:
            for text_id in piece.tolist():
                run.text_count += 1
                bistream.push_text(run.state, text_id)
                yield from run.decode()
        if run.text_count or len(prompt_text):
            bistream.end_text(run.state)
            yield from run.decode()


def _check_finite(token: int) -> None:
    if token == NOT_FINITE:
        raise EngineError("non_finite", "The language model's output is not finite; try another precision.")


class _Batch:
    """Cache, sampler state and next input of a fixed set of prompts."""

    def __init__(self, model: LanguageModel, prompts: Sequence[SpeechPrompt]) -> None:
        self._model = model
        self._feeds = [prompt.feed() for prompt in prompts]
        self._longest = max(map(len, self._feeds), default=0)
        self.limits = [
            min(prompt.max_len, MAX_CONTEXT - len(feed)) for prompt, feed in zip(prompts, self._feeds)
        ]
        if min(self.limits, default=0) < 0:
            raise RequestError(
                "text_too_long",
                f"The text and its prompt exceed the model's {MAX_CONTEXT} positions; shorten the text.",
                limit=MAX_CONTEXT,
            )
        self._exact = any(prompt.exact for prompt in prompts)
        self.drawn = 0
        room = max((len(feed) + limit for feed, limit in zip(self._feeds, self.limits)), default=1)
        self._cache = KvCache(model.cfg, len(prompts), max(room, self._longest), model.device, model.dtype)
        self._state = SamplerState.create(
            model.cfg.sampling,
            [prompt.seed for prompt in prompts],
            [prompt.min_len for prompt in prompts],
            self.limits,
            model.device,
        )
        self._ids: Tensor | None = None

    @torch.inference_mode()
    def step(self) -> list[int]:
        """Draw one id for each row."""
        if self._ids is None:
            hidden = prefill(self._model, self._cache, *pad_feeds(self._feeds, self._model.device))
        else:
            prefix = round_prefix(self._longest + self.drawn, self._cache.max_len)
            # Rows that have ended feed what they drew last, which may be no embedding's row at all (-1).
            hidden = decode(self._model, self._cache, self._ids.clamp_min(0), self._state.active, prefix)
        self._ids = sample_step(self._model.logits(hidden), self._state, self._model.cfg, self._exact)
        self.drawn += 1
        drawn: list[int] = self._ids.tolist()
        return drawn


class _BistreamRun:
    """The model, cache and randomness of one request whose text arrives in pieces."""

    def __init__(
        self, model: LanguageModel, prompt_text: list[int], prompt_speech: list[int], seed: int, exact: bool
    ) -> None:
        self._model = model
        self._exact = exact
        self.state = bistream.start(model.cfg, prompt_text, prompt_speech, exact)
        self.text_count = 0
        self._length = 0
        self._draws = 0
        self._seeds = torch.tensor([seed], dtype=torch.int64).to(model.device)
        self._cache = KvCache(model.cfg, 1, _FIRST_ROOM, model.device, model.dtype)

    def decode(self) -> Iterator[int]:
        """Emit speech until more text is needed or the end has come."""
        while self.state.decoding:
            if not self._exact and self._too_long():
                return
            token = bistream.accept(self.state, self._next_id(self.state.feed))
            if token is not None:
                yield token

    def _too_long(self) -> bool:
        return self.state.text_ended and len(self.state.generated) >= _MAX_PER_TEXT * max(self.text_count, 1)

    @torch.inference_mode()
    def _next_id(self, feed: Feed) -> int:
        logits = self._model.logits(self._run(feed))
        cfg = self._model.cfg
        if bistream.fill_is_due(self.state):
            return cfg.fill_token
        logp = torch.log_softmax(logits, dim=1)
        for forbidden in self._forbidden():
            logp[:, forbidden] = -torch.inf
        token = repetition_aware(logp, self._recent(), self._uniforms(), cfg.sampling)
        self._draws += 1
        drawn = int(torch.where(torch.isfinite(logits.sum(1)), token, NOT_FINITE))
        _check_finite(drawn)
        return drawn

    def _run(self, feed: Feed) -> Tensor:
        needed = self._length + len(feed)
        if needed > self._cache.max_len:
            self._grow(needed)
        kinds, ids, lengths = pad_feeds([feed], self._model.device)
        prefix = round_prefix(needed, self._cache.max_len)
        self._length = needed
        return extend(self._model, self._cache, kinds, ids, lengths, prefix)

    def _grow(self, needed: int) -> None:
        """Room for the next while: text of unknown length has no bound to allocate for."""
        if needed > MAX_CONTEXT:
            raise RequestError(
                "text_too_long", f"The stream exceeds the model's {MAX_CONTEXT} positions.", limit=MAX_CONTEXT
            )
        room = min(MAX_CONTEXT, max(needed, 2 * self._cache.max_len))
        larger = KvCache(self._model.cfg, 1, room, self._model.device, self._model.dtype)
        larger.data[..., : self._cache.max_len, :] = self._cache.data
        larger.lengths.copy_(self._cache.lengths)
        self._cache = larger

    def _forbidden(self) -> tuple[int, ...]:
        cfg = self._model.cfg
        end, unused, fill = cfg.stop_ids
        if not self.state.text_ended:
            return (end,) if self._exact else (end, unused)
        return () if self._exact else (unused, fill)

    def _recent(self) -> Tensor:
        size = self._model.cfg.sampling.win_size
        recent = self.state.generated[-size:]
        padded = [NOT_FINITE] * (size - len(recent)) + recent
        return torch.tensor([padded], dtype=torch.int64).to(self._model.device)

    def _uniforms(self) -> Tensor:
        return step_uniforms(
            self._seeds, torch.tensor([self._draws], dtype=torch.int64).to(self._model.device)
        )

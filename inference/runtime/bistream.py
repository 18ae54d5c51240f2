"""Speech from text that is still being written: text and speech interleaved 5 to 15 (SPEC 3.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from inference.models.config import LanguageModelConfig
from inference.types import EngineError


class Kind(str, Enum):
    """What an item of a feed is embedded by."""

    SOS = "sos"
    TASK = "task"
    TEXT = "text"
    SPEECH = "speech"


Item = tuple[Kind, int]
# Feeds items to the model and picks the next id: (feed, ids generated so far, end of speech allowed) → id.
# A `None` for the history says that the id is already known and nothing need be picked.
Decoder = Callable[[Sequence[Item], Sequence[int] | None, bool], int]


@dataclass
class Interleaving:
    """State of one request."""

    cfg: LanguageModelConfig
    text: list[int]  # waiting text ids, the prompt's first
    speech: list[int]  # prompt speech not yet fed
    feed: list[Item] = field(default_factory=lambda: [(Kind.SOS, 0)])
    generated: list[int] = field(default_factory=list)  # fill tokens included
    next_fill: int = 0

    def __post_init__(self) -> None:
        per_turn = self.cfg.mix_ratio[1]
        self.next_fill = (len(self.speech) // per_turn + 1) * per_turn - len(self.speech)

    def add_text(self, token: int) -> bool:
        """Take one more text id; True when speech can be generated now."""
        text_turn, speech_turn = self.cfg.mix_ratio
        self.text.append(token)
        while self.speech and len(self.text) >= text_turn:
            self._feed_text(text_turn)
            self.feed += [(Kind.SPEECH, id_) for id_ in self.speech[:speech_turn]]
            del self.speech[:speech_turn]
        if self.speech:
            return False
        after_fill = bool(self.generated) and self.generated[-1] == self.cfg.fill_token
        at_start = not self.generated and len(self.feed) == 1
        if not (after_fill or at_start):
            return True
        if len(self.text) < text_turn:
            return False
        if after_fill:
            self.feed = []
        self._feed_text(text_turn)
        return True

    def finish_text(self) -> None:
        """No more text: the rest of it and the task id go in. Prompt speech still unused is dropped."""
        self._feed_text(len(self.text))
        self.feed.append((Kind.TASK, 0))

    def accept(self, token: int) -> None:
        """Remember a generated speech token and feed it next."""
        self.generated.append(token)
        self.feed = [(Kind.SPEECH, token)]

    def accept_fill(self) -> None:
        """The model waits for text. The fill token is never fed; the original feeds the token before it again."""
        self.next_fill = len(self.generated) + self.cfg.mix_ratio[1] + 1
        self.generated.append(self.cfg.fill_token)

    def _feed_text(self, count: int) -> None:
        self.feed += [(Kind.TEXT, id_) for id_ in self.text[:count]]
        del self.text[:count]


def interleave(
    text: Iterable[int],
    prompt_text: Sequence[int],
    prompt_speech: Sequence[int],
    decode: Decoder,
    cfg: LanguageModelConfig,
) -> Iterator[int]:
    """Speech tokens for text ids that arrive one at a time.

    Raises `EngineError("unexpected_token")` when the model ends where it must not.
    """
    state = Interleaving(cfg, list(prompt_text), list(prompt_speech))
    for token in text:
        if state.add_text(token):
            yield from _speech_turn(state, decode)
    state.finish_text()
    while True:
        found = decode(state.feed, state.generated, True)
        if found == cfg.end_of_speech:
            return
        _require_speech(found, cfg)
        state.accept(found)
        yield found


def _speech_turn(state: Interleaving, decode: Decoder) -> Iterator[int]:
    """Generate until the model (or the schedule) asks for more text."""
    cfg = state.cfg
    while True:
        forced = len(state.generated) == state.next_fill
        found = decode(state.feed, None if forced else state.generated, False)
        if forced or found == cfg.fill_token:
            state.accept_fill()
            return
        _require_speech(found, cfg)
        state.accept(found)
        yield found


def _require_speech(token: int, cfg: LanguageModelConfig) -> None:
    if token >= cfg.speech_token_size:
        raise EngineError("unexpected_token", f"The language model gave {token} in the middle of the speech.")

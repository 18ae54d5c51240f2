"""Speech from text that arrives in pieces: which symbols the language model is fed next (SPEC 3.2).

State and pure functions on it; running the model and sampling belong to `generate`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from inference.models.config import LanguageModelConfig
from inference.runtime.feed import START_FEED, TASK_FEED, Feed, join, speech_feed, text_feed
from inference.types import EngineError


@dataclass
class Bistream:
    """One request: text waiting to be fed, what was generated, what to feed next."""

    cfg: LanguageModelConfig
    pending: list[int]  # text ids not yet fed; begins as the prompt text
    prompt_speech: list[int]  # prompt speech ids not yet fed
    feed: Feed = START_FEED
    generated: list[int] = field(default_factory=list)  # fill tokens included
    next_fill: int = 0  # length of `generated` at which a fill is forced
    repeat_last: bool = False  # feed the last speech token twice at the end, as the original does
    text_ended: bool = False
    fed_speech: bool = False  # the feed is a speech token that the model has already seen
    decoding: bool = False  # the next thing to do is to run the feed


def start(
    cfg: LanguageModelConfig, prompt_text: list[int], prompt_speech: list[int], exact: bool = False
) -> Bistream:
    """A fresh state. `exact` reproduces the original's repeated last token (a quirk)."""
    speech = cfg.mix_ratio[1]
    next_fill = (len(prompt_speech) // speech + 1) * speech - len(prompt_speech)
    return Bistream(cfg, list(prompt_text), list(prompt_speech), next_fill=next_fill, repeat_last=exact)


def push_text(state: Bistream, text_id: int) -> None:
    """One more text token; `state.decoding` then says whether speech can go on."""
    text, speech = state.cfg.mix_ratio
    state.pending.append(text_id)
    while state.prompt_speech and len(state.pending) >= text:
        block = [text_feed(state.pending[:text]), speech_feed(state.prompt_speech[:speech])]
        state.feed = join([state.feed, *block])
        del state.pending[:text], state.prompt_speech[:speech]
    if state.prompt_speech:
        return
    after_fill = bool(state.generated) and state.generated[-1] == state.cfg.fill_token
    at_start = not state.generated and len(state.feed) == 1
    if after_fill or at_start:
        if len(state.pending) < text:
            return
        opening = text_feed(state.pending[:text])
        del state.pending[:text]
        state.feed = opening if after_fill else join([state.feed, opening])
        state.fed_speech = False
    state.decoding = True


def end_text(state: Bistream) -> None:
    """No more text will come: the rest and the task symbol are fed, and the end becomes possible."""
    feed = [] if state.fed_speech and not state.repeat_last else [state.feed]
    state.feed = join([*feed, text_feed(state.pending), TASK_FEED])
    state.pending.clear()
    state.text_ended = True
    state.decoding = True


def fill_is_due(state: Bistream) -> bool:
    """The next id is the fill token whatever the model says; nothing is drawn."""
    return not state.text_ended and len(state.generated) == state.next_fill


def accept(state: Bistream, speech_id: int) -> int | None:
    """Take the id drawn after running `state.feed`; returns the speech token to emit, if it is one.

    Afterwards `state.decoding` says whether to run the (new) feed. Raises `EngineError("unexpected_token")`.
    """
    cfg = state.cfg
    if state.text_ended and speech_id == cfg.end_of_speech:
        state.decoding = False
        return None
    if not state.text_ended and speech_id == cfg.fill_token:
        state.next_fill = len(state.generated) + cfg.mix_ratio[1] + 1
        state.generated.append(speech_id)
        state.fed_speech = True
        state.decoding = False
        return None
    if not 0 <= speech_id < cfg.speech_token_size:
        raise EngineError(
            "unexpected_token",
            f"The language model produced the unexpected token {speech_id}.",
            token=speech_id,
        )
    state.generated.append(speech_id)
    state.feed = speech_feed([speech_id])
    return speech_id

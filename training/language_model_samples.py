"""Sequences the language model is trained on, in the forms in which inference feeds it (SPEC 3.1, 3.2).

Inputs are rows of one joint table: 0 sos, 1 task id, then the text ids, then the speech ids. A target is
the speech id to predict at that place, -1 where nothing is learnt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from inference.models.config import LanguageModelConfig
from training.language_model_data import Ids, Line

SOS, TASK, FIRST_TEXT = 0, 1, 2
CODE_DIGITS, CODE_LEVELS = 6, 3  # of the shipped tokenizer's codes: 3^6 of the 6561 are in use
LONGEST = 700  # positions
NOTHING = -1


class Sample(NamedTuple):
    """Both (length,)."""

    inputs: Ids
    targets: Ids


class Cloned(NamedTuple):
    """Text and speech of a prompt and what follows it; `heard` is the speech with the prompt as the model hears it."""

    text: Ids
    speech: Ids
    heard: Ids


class Batch(NamedTuple):
    """`inputs` (B, S), padded with 0; `rows` (N,) flat places with a target; `labels` (N,) speech ids."""

    inputs: Ids
    rows: Ids
    labels: Ids


@dataclass(frozen=True)
class Mix:
    """Shares among utterances of a normal pace; the rest is plain."""

    clone: float = 0.46
    bistream: float = 0.14
    joined_plain: float = 0.15  # of the plain ones
    untrimmed: float = 1 / 3  # clone prompts that keep all of the silence at their end
    noise: float = 0.04  # speech inputs replaced by any other id
    unsure: float = 0.6  # of the prompts: heard through another ear, as recordings of real people are
    most_unsure: float = 0.5  # share of such a prompt's codes that may have moved to a neighbour


def neighbours(speech: Ids, share: float, random: np.random.Generator) -> Ids:
    """Codes of which a `share` have one or two digits moved by one level.

    Another microphone, a shift of 10 ms or another voice moves about half of a clip's codes, mostly to a code beside
    (measured on the tokenizer pilot); a prompt from a real person looks like that.
    """
    digits = speech[:, None] // CODE_LEVELS ** np.arange(CODE_DIGITS) % CODE_LEVELS
    moved = random.random(len(speech)) < share
    odds = random.choice((1, 2), size=(len(speech), 1)) / CODE_DIGITS
    steps = random.choice((-1, 1), size=digits.shape) * (random.random(digits.shape) < odds) * moved[:, None]
    # At an end of the scale the only neighbour lies inwards.
    inside = np.where((digits + steps < 0) | (digits + steps >= CODE_LEVELS), digits - steps, digits + steps)
    known = speech < CODE_LEVELS**CODE_DIGITS
    found = (inside * CODE_LEVELS ** np.arange(CODE_DIGITS)).sum(1)
    return np.where(known, found, speech).astype(np.int32)


def unistream(text: Ids, speech: Ids, cfg: LanguageModelConfig, heard: Ids | None = None) -> Sample:
    """`[sos] text [task] speech`, every speech token and the end learnt; `heard` is fed in place of the speech."""
    first_speech = FIRST_TEXT + cfg.vocab_size
    fed = speech if heard is None else heard
    inputs = np.concatenate(([SOS], text + FIRST_TEXT, [TASK], fed + first_speech))
    targets = np.concatenate((np.full(1 + len(text), NOTHING), speech, [cfg.end_of_speech]))
    return Sample(inputs.astype(np.int32), targets.astype(np.int32))


def bistream(text: Ids, speech: Ids, cfg: LanguageModelConfig, repeat_last: bool) -> Sample:
    """Text and speech in turns as `inference.runtime.bistream` feeds them.

    A full turn of speech ends by predicting the fill token, which is never fed. `repeat_last`: the last turn
    begins with the speech token before it once more, a quirk of the original that inference may leave out.
    Plain where the speech is too short for its text.
    """
    text_turn, speech_turn = cfg.mix_ratio
    turns = len(text) // text_turn
    if not turns or turns * speech_turn >= len(speech):
        return unistream(text, speech, cfg)
    first_speech = FIRST_TEXT + cfg.vocab_size
    words = text[: turns * text_turn].reshape(turns, text_turn) + FIRST_TEXT
    said = speech[: turns * speech_turn].reshape(turns, speech_turn)
    fill = np.full((turns, 1), cfg.fill_token)
    waiting = np.full((turns, text_turn - 1), NOTHING)
    again = int(repeat_last)
    rest, tail = text[turns * text_turn :], speech[turns * speech_turn :]
    inputs = (
        [SOS],
        np.concatenate((words, said + first_speech), axis=1).ravel(),
        said[-1, -1:][:again] + first_speech,
        rest + FIRST_TEXT,
        [TASK],
        tail + first_speech,
    )
    targets = (
        [NOTHING],
        np.concatenate((waiting, said, fill), axis=1).ravel(),
        np.full(again + len(rest), NOTHING),
        tail,
        [cfg.end_of_speech],
    )
    return Sample(np.concatenate(inputs).astype(np.int32), np.concatenate(targets).astype(np.int32))


def join(lines: Sequence[Line]) -> tuple[Ids, Ids]:
    """Text and speech of utterances said one after the other."""
    text = np.concatenate([lines[0].text, *(line.following for line in lines[1:])])
    return text, np.concatenate([line.speech for line in lines])


class SampleMaker:
    """Draws sequences from the utterances given, each utterance once before any comes again."""

    def __init__(
        self, lines: list[Line], silent: Ids, used: Ids, cfg: LanguageModelConfig, seed: int, mix: Mix = Mix()
    ) -> None:
        self._cfg, self._mix = cfg, mix
        self._silent, self._used = frozenset(silent.tolist()), used
        self._random = np.random.default_rng(seed)
        self._lines = [line for line in lines if len(line.text) + len(line.speech) < LONGEST - 40]
        self._by_speaker: dict[str, list[int]] = {}
        for number, line in enumerate(self._lines):
            if not len(line.instruction):
                self._by_speaker.setdefault(line.speaker, []).append(number)
        self._order: list[int] = []
        self._left: list[Sample] = []

    def __len__(self) -> int:
        return len(self._lines)

    def draw(self) -> Sample:
        """One sequence of at most `LONGEST` positions."""
        if not self._order:
            self._order = self._random.permutation(len(self._lines)).tolist()
        number = self._order.pop()
        line = self._lines[number]
        if len(line.instruction):
            return unistream(np.concatenate((line.instruction, line.text)), line.speech, self._cfg)
        kind = self._random.random()
        if kind < self._mix.clone:
            cloned = self._clone(number)
            return unistream(cloned.text, cloned.speech, self._cfg, cloned.heard)
        if kind < self._mix.clone + self._mix.bistream:
            text, speech = line.text, line.speech
            if self._random.random() < 0.5:
                text, speech, _ = self._clone(number)
            return bistream(text, speech, self._cfg, repeat_last=bool(self._random.random() < 0.5))
        if self._random.random() < self._mix.joined_plain:
            text, speech = join([line, *self._others(number, 1)])
        else:
            text, speech = line.text, line.speech
        return unistream(text, speech, self._cfg)

    def _others(self, number: int, count: int) -> list[Line]:
        """Up to `count` other utterances of the speaker that leave room for the utterance itself."""
        group = self._by_speaker[self._lines[number].speaker]
        line = self._lines[number]
        room = LONGEST - 40 - len(line.text) - len(line.speech)
        found: list[Line] = []
        for place in self._random.integers(0, len(group), count).tolist():
            other = self._lines[group[place]]
            size = len(other.following) + len(other.speech)
            if group[place] != number and size <= room and other not in found:
                found.append(other)
                room -= size
        return found

    def _clone(self, number: int) -> Cloned:
        """Prompt and utterance as zero-shot cloning joins them."""
        line = self._lines[number]
        prompt = self._others(number, 1 + int(self._random.random() < 0.4))
        if not prompt:
            return Cloned(line.text, line.speech, line.speech)
        text, speech = join(prompt)
        if self._random.random() >= self._mix.untrimmed:
            speech = self._trim(speech)
        heard = speech
        if self._random.random() < self._mix.unsure:
            heard = neighbours(speech, self._mix.most_unsure * self._random.random(), self._random)
        return Cloned(
            np.concatenate((text, line.text)),
            np.concatenate((speech, line.speech)),
            np.concatenate((heard, line.speech)),
        )

    def _trim(self, speech: Ids) -> Ids:
        """Without some of the silence at the end: clips are cut there as people like."""
        silence = 0
        while silence < len(speech) // 4 and int(speech[-1 - silence]) in self._silent:
            silence += 1
        return speech[: len(speech) - int(self._random.integers(0, silence + 1))]

    def batches(self, size: int, pool: int = 8, step: int = 32) -> list[Batch]:
        """About `pool` batches of at most `size` positions, padding included, of sequences of like length."""
        drawn, total = self._left, 0
        while total < size * pool:
            drawn.append(self.draw())
            total += len(drawn[-1].inputs)
        drawn.sort(key=lambda item: -len(item.inputs))
        found: list[Batch] = []
        while drawn:
            width = -(-len(drawn[0].inputs) // step) * step
            count = max(1, size // width)
            if found and len(drawn) < count:  # too few for a batch: they wait for the next pool
                break
            found.append(self._pad(drawn[:count], width))
            drawn = drawn[count:]
        self._left = drawn
        return [found[k] for k in self._random.permutation(len(found))]

    def _pad(self, group: list[Sample], width: int) -> Batch:
        inputs = np.zeros((len(group), width), np.int32)
        targets = np.full((len(group), width), NOTHING, np.int32)
        for row, item in enumerate(group):
            inputs[row, : len(item.inputs)] = item.inputs
            targets[row, : len(item.targets)] = item.targets
        if self._mix.noise and len(self._used):
            first_speech = FIRST_TEXT + self._cfg.vocab_size
            wrong = (inputs >= first_speech) & (self._random.random(inputs.shape) < self._mix.noise)
            choice = self._random.integers(0, len(self._used), int(wrong.sum()))
            inputs[wrong] = self._used[choice] + first_speech
        flat = targets.ravel()
        rows = np.flatnonzero(flat != NOTHING)
        return Batch(inputs, rows.astype(np.int32), flat[rows])

"""Endless streams of training utterances: which teacher speaks which sentence as which speaker."""

from __future__ import annotations

import gzip
import json
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from training.teachers import (
    RATE,
    Flite,
    Hibari,
    Kokoro,
    Spoken,
    english_phones,
    mandarin_phones,
    resample,
)
from training.warp import Speaker, draw_speaker, warp
from training.world import track_pitch

WARPED_SPEAKERS = 300
HELD_OUT_WARPED = 30  # the last of them: half dev, half test
MIXED_STYLES = 60
WARPS_PER_STYLE = 4
HELD_OUT_STYLE = "jm_kumo"
STYLES = ["jf_alpha", "jf_gongitsune", "jf_nezumi", "jf_tebukuro", HELD_OUT_STYLE]
HELD_OUT_FLITE = "rms"
ENGLISH_SHARES = {"warp": 0.62, "plain": 0.22, "flite": 0.16}  # of utterances
MANDARIN_SHARE = 0.6
INSTRUCT_SHARE = 0.08
FAST = ("Speak quickly.", "Speak faster.", "Say it fast.", "请说快一点。", "用快速的语气说。", "语速快一点。")
SLOW = (
    "Speak slowly.",
    "Speak slower.",
    "Say it slowly.",
    "请说慢一点。",
    "用缓慢的语气说。",
    "语速慢一点。",
)


@dataclass(frozen=True)
class Utterance:
    """What goes into a shard: sound plus the facts of its `meta` entry."""

    spoken: Spoken
    text: str
    language: str
    engine: str
    speaker: str
    split: str
    instruct: str = ""
    speed: float = 1.0


def warped_speakers() -> list[Speaker]:
    """The same made-up speakers in every process."""
    rng = np.random.default_rng(20261130)
    return [draw_speaker(rng) for _ in range(WARPED_SPEAKERS)]


def mixed_styles(names: list[str]) -> list[dict[str, float]]:
    """Mixtures of two or three Kokoro styles, some a little past the ends."""
    rng = np.random.default_rng(7)
    mixtures: list[dict[str, float]] = [{name: 1.0} for name in names]
    while len(mixtures) < MIXED_STYLES:
        chosen = rng.choice(len(names), size=rng.integers(2, 4), replace=False)
        weights = rng.dirichlet(np.ones(len(chosen))) * 1.4 - 0.4 / len(chosen)
        mixtures.append({names[i]: float(w) for i, w in zip(chosen, weights, strict=True)})
    return mixtures


def warped_styles(styles: list[dict[str, float]]) -> list[list[Speaker]]:
    """A few made-up speakers for every style."""
    rng = np.random.default_rng(99)
    return [
        [draw_speaker(rng, from_man=style.get(HELD_OUT_STYLE, 0.0) > 0.5) for _ in range(WARPS_PER_STYLE)]
        for style in styles
    ]


class Texts:
    """Sentences without end, in a shuffled order that differs between workers."""

    def __init__(self, file: Path, rng: np.random.Generator) -> None:
        with gzip.open(file, "rt", encoding="utf-8") as source:
            pack = json.load(source)
        self._groups: list[list[str]] = [group for group in pack["en"].values() if group]
        self._shares = np.array([pack["shares"][name] for name, group in pack["en"].items() if group])
        self._mandarin: list[tuple[str, str]] = [(text, phones) for text, phones in pack["zh"]]
        self._rng = rng

    def english(self) -> str:
        group = self._groups[self._rng.choice(len(self._groups), p=self._shares / self._shares.sum())]
        return group[self._rng.integers(len(group))]

    def mandarin(self) -> tuple[str, str]:
        return self._mandarin[self._rng.integers(len(self._mandarin))]


Stream = Callable[[Texts, np.random.Generator, Path], Iterator[Utterance]]


def speak_english(texts: Texts, rng: np.random.Generator, teachers: Path) -> Iterator[Utterance]:
    """The fast teachers, mixed so that the one undisguised voice does not drown the many speakers."""
    sources = {kind: SPEAK[kind](texts, rng, teachers) for kind in ENGLISH_SHARES}
    kinds, shares = list(ENGLISH_SHARES), list(ENGLISH_SHARES.values())
    while True:
        kind = str(rng.choice(kinds, p=shares))
        try:
            yield next(sources[kind])
        except Exception:
            traceback.print_exc()
            sources[kind] = SPEAK[kind](texts, rng, teachers)


def speak_plain(texts: Texts, rng: np.random.Generator, teachers: Path) -> Iterator[Utterance]:
    """hibari as it is, for coverage of words, and its fast and slow variants for the instruct mode."""
    hibari = Hibari()
    while True:
        text = texts.english()
        speed, instruct = _pace(rng)
        spoken = hibari.speak(text, speed, rng)
        yield Utterance(spoken, text, "en", "hibari_plain", "hibari", "train", instruct, speed)


def speak_warped(texts: Texts, rng: np.random.Generator, teachers: Path) -> Iterator[Utterance]:
    """Many speakers from one, several sentences each."""
    hibari, speakers = Hibari(), warped_speakers()
    while True:
        number = int(rng.integers(len(speakers)))
        held_out = number - (len(speakers) - HELD_OUT_WARPED)
        split = "train" if held_out < 0 else ("dev" if held_out % 2 else "test")
        speaker = speakers[number]
        for _ in range(3):
            text = texts.english()
            speed, instruct = _pace(rng)
            said = hibari.speak(text, speed * speaker.pace, rng)
            wave, f0 = warp(said.wave, said.f0, speaker)
            spoken = replace(said, wave=wave, f0=f0)
            yield Utterance(spoken, text, "en", "warp", f"warp{number}", split, instruct, speed)


def speak_kokoro(texts: Texts, rng: np.random.Generator, teachers: Path) -> Iterator[Utterance]:
    """English and Mandarin in pure and mixed styles, and the same again by warped speakers of each style."""
    hibari, kokoro = Hibari(), Kokoro(teachers / "kokoro")
    styles = mixed_styles(STYLES)
    families = warped_styles(styles)
    while True:
        number = int(rng.integers(len(styles)))
        split = "test" if styles[number] == {HELD_OUT_STYLE: 1.0} else "train"
        for _ in range(2):
            mandarin = rng.random() < MANDARIN_SHARE
            text, phonemes = (
                texts.mandarin() if mandarin else (text := texts.english(), hibari.phonemes(text))
            )
            wave, f0 = kokoro.speak(phonemes, styles[number], float(rng.uniform(0.9, 1.15)))
            phones = mandarin_phones(phonemes) if mandarin else english_phones(phonemes)
            spoken = Spoken(wave, f0, phones)
            language = "zh" if mandarin else "en"
            yield Utterance(spoken, text, language, "kokoro", f"kokoro{number}", split)
            for copy in rng.choice(len(families[number]), size=2 if mandarin else 1, replace=False):
                new_wave, new_f0 = warp(wave, f0, families[number][copy])
                spoken = Spoken(new_wave, new_f0, phones)
                yield Utterance(spoken, text, language, "kokoro_warp", f"kokoro{number}warp{copy}", split)


def speak_flite(texts: Texts, rng: np.random.Generator, teachers: Path) -> Iterator[Utterance]:
    """Three older voices, each also played faster or slower as further speakers."""
    hibari, flite = Hibari(), Flite(teachers / "flite")
    factors = [0.86, 0.93, 1.0, 1.08, 1.16]
    while True:
        voice = str(rng.choice(["awb", "slt", HELD_OUT_FLITE], p=[0.44, 0.44, 0.12]))
        number = 2 if voice == HELD_OUT_FLITE else int(rng.integers(len(factors)))
        text = texts.english()
        wave, rate = flite.speak(text, voice)
        wave = resample(wave, round(rate * factors[number] / 100) * 100, RATE)
        f0 = track_pitch(wave.astype(np.float64), RATE)
        spoken = Spoken(wave, f0, english_phones(hibari.phonemes(text)))
        split = "test" if voice == HELD_OUT_FLITE else "train"
        yield Utterance(spoken, text, "en", f"flite_{voice}", f"flite_{voice}{number}", split)


def speak_held_out(texts: Texts, rng: np.random.Generator, teachers: Path) -> Iterator[Utterance]:
    """Speakers of the split "test" only, in turn, two sentences each: references for the evaluation."""
    hibari, kokoro, flite = Hibari(), Kokoro(teachers / "kokoro"), Flite(teachers / "flite")
    speakers = warped_speakers()
    first = len(speakers) - HELD_OUT_WARPED
    styles = mixed_styles(STYLES)
    family = warped_styles(styles)[styles.index({HELD_OUT_STYLE: 1.0})]
    while True:
        for number in range(first, len(speakers), 2):
            for _ in range(2):
                text = texts.english()
                said = hibari.speak(text, speakers[number].pace, rng)
                wave, f0 = warp(said.wave, said.f0, speakers[number])
                spoken = replace(said, wave=wave, f0=f0)
                yield Utterance(spoken, text, "en", "warp", f"warp{number}", "test")
        for _ in range(2):
            text = texts.english()
            phones = english_phones(phonemes := hibari.phonemes(text))
            wave, f0 = kokoro.speak(phonemes, {HELD_OUT_STYLE: 1.0}, 1.0)
            yield Utterance(Spoken(wave, f0, phones), text, "en", "kokoro", "kokoro4", "test")
            for copy, speaker in enumerate(family):
                spoken = Spoken(*warp(wave, f0, speaker), phones)
                yield Utterance(spoken, text, "en", "kokoro_warp", f"kokoro4warp{copy}", "test")
            wave, rate = flite.speak(text, HELD_OUT_FLITE)
            wave = resample(wave, rate, RATE)
            f0 = track_pitch(wave.astype(np.float64), RATE)
            yield Utterance(Spoken(wave, f0, phones), text, "en", "flite_rms", "flite_rms2", "test")


SPEAK: dict[str, Stream] = {
    "plain": speak_plain,
    "warp": speak_warped,
    "kokoro": speak_kokoro,
    "flite": speak_flite,
}
STREAMS: dict[str, Stream] = {
    "english": speak_english,
    "kokoro": speak_kokoro,
    "plain": speak_plain,
    "held_out": speak_held_out,
}


def _pace(rng: np.random.Generator) -> tuple[float, str]:
    """Speed, and the instruction that asks for it when it is far from normal."""
    if rng.random() >= INSTRUCT_SHARE:
        return float(rng.uniform(0.92, 1.08)), ""
    if rng.random() < 0.5:
        return float(rng.uniform(1.4, 1.65)), str(rng.choice(FAST))
    return float(rng.uniform(0.6, 0.72)), str(rng.choice(SLOW))

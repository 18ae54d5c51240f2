"""Writes the training speech: many processes, each one teacher, each a shard file every so often.

    python -m training.generate --data DIR --teachers DIR --texts texts.json.gz --workers 11 --minutes 14
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import os
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

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
HELD_OUT_STYLE = "jm_kumo"
HELD_OUT_FLITE = "rms"
FIRST_FLUSH, FLUSH = 15.0, 45.0  # seconds of wall clock between shards
TOKEN = 960  # samples
MAX_SECONDS = 14.0
INSTRUCT_SHARE = 0.08
FAST = ("Speak quickly.", "Speak faster.", "Say it fast.", "请说快一点。", "用快速的语气说。", "语速快一点。")
SLOW = ("Speak slowly.", "Speak slower.", "Say it slowly.", "请说慢一点。", "用缓慢的语气说。", "语速慢一点。")
PATTERN = ("warp", "plain", "kokoro", "flite", "warp", "kokoro", "warp", "kokoro", "warp", "kokoro", "warp", "warp")


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
    """English and Mandarin in pure and mixed styles."""
    hibari, kokoro = Hibari(), Kokoro(teachers / "kokoro")
    styles = mixed_styles(["jf_alpha", "jf_gongitsune", "jf_nezumi", "jf_tebukuro", HELD_OUT_STYLE])
    while True:
        number = int(rng.integers(len(styles)))
        split = "test" if styles[number] == {HELD_OUT_STYLE: 1.0} else "train"
        for _ in range(2):
            mandarin = rng.random() < 0.4
            text, phonemes = texts.mandarin() if mandarin else (text := texts.english(), hibari.phonemes(text))
            wave, f0 = kokoro.speak(phonemes, styles[number], float(rng.uniform(0.9, 1.15)))
            phones = mandarin_phones(phonemes) if mandarin else english_phones(phonemes)
            spoken = Spoken(wave, f0, phones)
            language = "zh" if mandarin else "en"
            yield Utterance(spoken, text, language, "kokoro", f"kokoro{number}", split)


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


TEACHERS = {"plain": speak_plain, "warp": speak_warped, "kokoro": speak_kokoro, "flite": speak_flite}


def _pace(rng: np.random.Generator) -> tuple[float, str]:
    """Speed, and the instruction that asks for it when it is far from normal."""
    if rng.random() >= INSTRUCT_SHARE:
        return float(rng.uniform(0.92, 1.08)), ""
    if rng.random() < 0.5:
        return float(rng.uniform(1.4, 1.65)), str(rng.choice(FAST))
    return float(rng.uniform(0.6, 0.72)), str(rng.choice(SLOW))


def finish(spoken: Spoken, rng: np.random.Generator) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.float16]]:
    """Level, quiet ends and whole tokens: int16 sound and its pitch per mel frame (50 a second)."""
    lead, tail = (int(rng.uniform(0.08, 0.3) * RATE) for _ in range(2))
    total = lead + len(spoken.wave) + tail
    total += -total % TOKEN
    level = 10 ** (rng.normal(-23.0, 2.0) / 20)
    wave = spoken.wave * (level / max(float(np.sqrt(np.mean(spoken.wave**2))), 1e-4))
    padded = np.zeros(total, np.float32)
    padded[lead : lead + len(wave)] = wave
    padded += rng.standard_normal(total).astype(np.float32) * np.float32(10 ** (rng.uniform(-85, -62) / 20))
    padded *= min(1.0, 0.97 / float(np.abs(padded).max()))
    centres = (np.arange(total // 480) + 0.5) * 4.0 - lead * 200.0 / RATE  # in 5 ms steps of the track
    index = np.round(centres).astype(np.int64)
    inside = (index >= 0) & (index < len(spoken.f0))
    f0 = np.where(inside, spoken.f0[np.clip(index, 0, len(spoken.f0) - 1)], 0.0)
    return (padded * 32767.0).astype(np.int16), f0.astype(np.float16)


def write_shard(path: Path, utterances: list[tuple[Any, Any, dict[str, Any]]]) -> None:
    """Write to a temporary name, then rename: readers never see half a shard."""
    audio, pitch, meta = zip(*utterances, strict=True)
    partial = path.with_name(f".{path.name}.part")
    with partial.open("wb") as file:
        np.savez(
            file,
            audio=np.concatenate(audio),
            audio_offsets=np.cumsum([0, *map(len, audio)], dtype=np.int64),
            f0=np.concatenate(pitch),
            f0_offsets=np.cumsum([0, *map(len, pitch)], dtype=np.int64),
            meta=np.array(json.dumps(meta, ensure_ascii=False)),
        )
    partial.rename(path)


def work(worker: int, kind: str, args: argparse.Namespace, deadline: float) -> None:
    """One process: speak until the deadline, write a shard now and then."""
    rng = np.random.default_rng(args.seed * 1000 + worker)
    utterances: list[tuple[Any, Any, dict[str, Any]]] = []
    count, flushed, seconds, begun = 0, time.time(), 0.0, time.time()
    for utterance in _without_failures(kind, Texts(args.texts, rng), rng, args.teachers):
        if len(utterance.spoken.wave) <= MAX_SECONDS * RATE and utterance.spoken.phones:
            sound, pitch = finish(utterance.spoken, rng)
            seconds += len(sound) / RATE
            utterances.append((sound, pitch, _meta(utterance)))
        if utterances and (time.time() > deadline or time.time() - flushed > (FLUSH if count else FIRST_FLUSH)):
            write_shard(args.data / f"shard-{worker:02d}-{count:04d}.npz", utterances)
            utterances, count, flushed = [], count + 1, time.time()
        if time.time() > deadline:
            break
    print(f"worker {worker} {kind}: {seconds / 3600:.2f} h, {seconds / (time.time() - begun):.1f} x real time", flush=True)


def _without_failures(
    kind: str, texts: Texts, rng: np.random.Generator, teachers: Path, patience: int = 20
) -> Iterator[Utterance]:
    """A teacher's utterances; one it fails on is logged and skipped."""
    for _ in range(patience):
        try:
            yield from TEACHERS[kind](texts, rng, teachers)
        except Exception:
            traceback.print_exc()


def _meta(utterance: Utterance) -> dict[str, Any]:
    return {
        "text": utterance.text,
        "lang": utterance.language,
        "engine": utterance.engine,
        "speaker": utterance.speaker,
        "split": utterance.split,
        "phones": " ".join(utterance.spoken.phones),
        "instruct": utterance.instruct,
        "speed": utterance.speed,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--teachers", type=Path, required=True, help="folder with kokoro/ and flite/")
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=11)
    parser.add_argument("--minutes", type=float, default=14.0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    args.data.mkdir(parents=True, exist_ok=True)
    deadline = time.time() + 60 * args.minutes
    context = multiprocessing.get_context("spawn")
    workers = [
        context.Process(target=work, args=(number, PATTERN[number % len(PATTERN)], args, deadline))
        for number in range(args.workers)
    ]
    for process in workers:
        process.start()
    for process in workers:
        process.join()


if __name__ == "__main__":
    main()

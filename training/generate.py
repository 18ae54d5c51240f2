"""Writes the training speech: many processes, each a shard file of mixed teachers every so often.

python -m training.generate --data DIR --teachers DIR --texts texts.json.gz --workers 11 --minutes 14
python -m training.generate … --mix english=6,kokoro=2,plain=4 --plain-data DIR/words
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from training.streams import STREAMS, Texts, Utterance
from training.teachers import RATE, Spoken

FIRST_FLUSH, FLUSH = 15.0, 45.0  # seconds of wall clock between shards
TOKEN = 960  # samples
MAX_SECONDS = 14.0
# Kokoro is by far the slowest, so it gets many processes; the fast teachers share theirs by utterance. One process
# of the fastest alone brings the language model more different sentences than all others together.
PATTERN = (
    "english",
    "kokoro",
    "english",
    "kokoro",
    "english",
    "plain",
    "kokoro",
    "english",
    "kokoro",
    "english",
    "kokoro",
)


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


def kinds_of(mix: str, workers: int) -> list[str]:
    """What each process speaks: `mix` like "english=6,kokoro=2", or without one `PATTERN` round and round.

    Raises ValueError for a kind that is not known.
    """
    if not mix:
        return [PATTERN[number % len(PATTERN)] for number in range(workers)]
    kinds: list[str] = []
    for part in mix.split(","):
        kind, _, count = part.partition("=")
        if kind not in STREAMS:
            raise ValueError(f"no teacher stream {kind!r}; there are {', '.join(STREAMS)}")
        kinds += [kind] * int(count or 1)
    return kinds


def work(worker: int, kind: str, args: argparse.Namespace, deadline: float) -> None:
    """One process: speak until the deadline, write a shard now and then."""
    folder = args.plain_data if kind == "plain" and args.plain_data else args.data
    rng = np.random.default_rng(args.seed * 1000 + worker)
    utterances: list[tuple[Any, Any, dict[str, Any]]] = []
    count, flushed, seconds, begun = 0, time.time(), 0.0, time.time()
    for utterance in _without_failures(kind, Texts(args.texts, rng), rng, args.teachers):
        if len(utterance.spoken.wave) <= MAX_SECONDS * RATE and utterance.spoken.phones:
            sound, pitch = finish(utterance.spoken, rng)
            seconds += len(sound) / RATE
            utterances.append((sound, pitch, _meta(utterance)))
        if utterances and (
            time.time() > deadline or time.time() - flushed > (FLUSH if count else FIRST_FLUSH)
        ):
            write_shard(folder / f"shard-{worker:02d}-{count:04d}.npz", utterances)
            utterances, count, flushed = [], count + 1, time.time()
        if time.time() > deadline:
            break
    pace = seconds / (time.time() - begun)
    print(f"worker {worker} {kind}: {seconds / 3600:.2f} h, {pace:.1f} x real time", flush=True)


def _without_failures(
    kind: str, texts: Texts, rng: np.random.Generator, teachers: Path, patience: int = 20
) -> Iterator[Utterance]:
    """A teacher's utterances; one it fails on is logged and skipped."""
    for _ in range(patience):
        try:
            yield from STREAMS[kind](texts, rng, teachers)
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--teachers", type=Path, required=True, help="folder with kokoro/ and flite/")
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=11)
    parser.add_argument("--mix", default="", help="processes of each kind, say english=6,kokoro=2,plain=4")
    parser.add_argument(
        "--plain-data", type=Path, help="where the undisguised voice goes: for words, not for sound"
    )
    parser.add_argument("--minutes", type=float, default=14.0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    for folder in filter(None, (args.data, args.plain_data)):
        folder.mkdir(parents=True, exist_ok=True)
    deadline = time.time() + 60 * args.minutes
    context = multiprocessing.get_context("spawn")
    workers = [
        context.Process(target=work, args=(number, kind, args, deadline))
        for number, kind in enumerate(kinds_of(args.mix, args.workers))
    ]
    for process in workers:
        process.start()
    for process in workers:
        process.join()


if __name__ == "__main__":
    main()

"""Does anybody get what belongs to somebody else? Many different requests alone, then all of them at once.

    python3 -m benchmarks.crosstalk --model-dir assets/nano --requests 200

Every request has a text, a voice and a seed of its own. On the CPU each answer must be the same samples as alone; on
CUDA, where rounding depends on the size of a batch, its own solo answer must be the nearest of all in spectrum. Exit
status 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.machine import worker_devices
from benchmarks.material import TRANSCRIPT, WORDS, clip
from inference.pool import WorkerPool
from inference.settings import PoolSettings
from inference.types import Int16Audio, Mode, Reference, SynthesisError, SynthesisRequest

Floats = npt.NDArray[np.float32]
_FFT, _HOP, _BANDS = 1024, 480, 40
_SECONDS_ALONE = 60.0  # a request that takes longer is stuck


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.crosstalk",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model-dir", type=Path, required=True)
    add("--requests", type=int, default=200)
    add("--voices", type=int, default=12)
    add("--words", type=int, default=5, help="of each text")
    add("--device", default="auto")
    add("--precision", default="auto")
    add("--workers", type=int, default=1)
    add("--out", type=Path, default=None, help="JSON file to write")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(arguments)
    report = check(args)
    print(json.dumps(report, indent=1))
    if args.out:
        args.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 1 if report["problems"] else 0


def requests_of(count: int, voices: int, words: int) -> list[SynthesisRequest]:
    """Every second one streamed; no two alike."""
    references = [Reference(clip(3.0 + 0.25 * number, number), TRANSCRIPT) for number in range(voices)]
    drawn = np.random.default_rng(7)
    return [
        SynthesisRequest(
            (Mode.CLONE, Mode.CROSS_LINGUAL)[number // 2 % 2],
            " ".join(drawn.choice(WORDS, words)) + ".",
            references[number % voices],
            seed=number,
            stream=number % 2 == 1,
        )
        for number in range(count)
    ]


def check(args: argparse.Namespace) -> dict[str, Any]:
    """The report; its `problems` says in words what is off."""
    requests = requests_of(args.requests, args.voices, args.words)
    pool = WorkerPool(
        PoolSettings(
            model_dir=args.model_dir,
            devices=worker_devices(args.device, args.workers),
            precision=args.precision,
            max_workers=args.workers,
            queue_size=2 * args.requests,
        )
    )
    pool.start_blocking()
    try:
        began = time.perf_counter()
        alone = [_speak(pool, request) for request in requests]
        middle = time.perf_counter()
        together = _all_at_once(pool, requests)
        ended = time.perf_counter()
    finally:
        pool.close()
    report = compare(alone, together)
    on_cuda = any(device.startswith("cuda") for device in pool.settings.devices)
    must = "nearest_is_own" if on_cuda else "same_samples"
    wrong = len(requests) - report[must]
    problems = [f"{wrong} of {len(requests)} answers are not their own ({must})"] if wrong else []
    return {
        **report,
        "requests": len(requests),
        "audio_seconds": round(sum(map(len, alone)) / 24000, 1),
        "alone_s": middle - began,
        "together_s": ended - middle,
        "problems": problems,
    }


def _speak(pool: WorkerPool, request: SynthesisRequest) -> Int16Audio:
    with closing(pool.synthesize(request)) as chunks:
        return np.concatenate([chunk.pcm for chunk in chunks])


def _all_at_once(pool: WorkerPool, requests: Sequence[SynthesisRequest]) -> list[Int16Audio]:
    """Answers in the order of the requests; an empty one where there was an error."""
    answers: list[Int16Audio] = [np.zeros(0, np.int16)] * len(requests)

    def ask(number: int) -> None:
        try:
            answers[number] = _speak(pool, requests[number])
        except SynthesisError as error:
            print(f"request {number}: {error.code}: {error}")

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(requests))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_SECONDS_ALONE * len(requests))
    return answers


def compare(alone: Sequence[Int16Audio], together: Sequence[Int16Audio]) -> dict[str, int]:
    """How many answers are the same samples, as long, and nearest to their own solo answer."""
    prints = [fingerprint(pcm) for pcm in alone]
    counts = {"same_samples": 0, "same_length": 0, "nearest_is_own": 0}
    for number, pcm in enumerate(together):
        counts["same_samples"] += np.array_equal(pcm, alone[number])
        counts["same_length"] += len(pcm) == len(alone[number])
        found = fingerprint(pcm)
        distances = [distance(found, other) for other in prints]
        counts["nearest_is_own"] += len(found) > 0 and int(np.argmin(distances)) == number
    return {name: int(count) for name, count in counts.items()}


def fingerprint(pcm: Int16Audio) -> Floats:
    """(frames, 40) log energies of bands of equal width up to 8 kHz, 50 frames a second at 24 kHz."""
    signal = pcm.astype(np.float32) / 32768.0
    if len(signal) < _FFT:
        return np.zeros((0, _BANDS), np.float32)
    frames = np.lib.stride_tricks.sliding_window_view(signal, _FFT)[::_HOP]
    power = np.abs(np.fft.rfft(frames * np.hanning(_FFT).astype(np.float32))) ** 2
    top = _FFT // 3
    bands = power[:, 1 : 1 + top // _BANDS * _BANDS].reshape(len(power), _BANDS, -1).mean(axis=2)
    found: Floats = np.log(bands + 1e-6).astype(np.float32)
    return found


def distance(one: Floats, other: Floats) -> float:
    """Mean difference of what both have, and of one to silence where the other has ended."""
    common = min(len(one), len(other))
    longest = max(len(one), len(other))
    if not common:
        return float("inf")
    rest = (one if len(one) > len(other) else other)[common:]
    apart = np.abs(one[:common] - other[:common]).mean(axis=1).sum()
    return float((apart + np.abs(rest - np.log(1e-6)).mean(axis=1).sum()) / longest)


if __name__ == "__main__":
    raise SystemExit(main())

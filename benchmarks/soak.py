"""Minutes of mixed use of one pool: good and bad requests, cancels, slow readers; then what is left behind.

    python3 -m benchmarks.soak --model-dir assets/nano --minutes 3 --users 8

Every answer is held against the one that the same request got alone (crosstalk), and memory, threads, open files and
places in the pool against what they were after the first fifth of the time. Exit status 1 when anything is off.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.machine import worker_devices
from benchmarks.soak_cases import bad_requests, good_requests
from benchmarks.watch import Tree, left_over, open_card, process_tree
from inference.devices import available_devices
from inference.pool import WorkerPool
from inference.settings import PoolSettings
from inference.types import SynthesisError, SynthesisRequest

ACTIONS = ("speak", "cancel", "slow", "bad")
WEIGHTS = (70, 14, 8, 8)
MAX_GROWTH_MB = 100.0  # of all processes together
MAX_DEVICE_GROWTH_MB = 200.0


@dataclass
class Findings:
    """Counted by all users together."""

    actions: Counter[str] = field(default_factory=Counter)
    unexpected: Counter[str] = field(default_factory=Counter)
    crosstalk: int = 0  # got what belongs to another request
    different: int = 0  # neither its own sound nor another's
    audio: float = 0.0
    cancel_seconds: list[float] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, action: str) -> None:
        with self.lock:
            self.actions[action] += 1

    def complain(self, what: str) -> None:
        with self.lock:
            self.unexpected[what] += 1


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model-dir", type=Path, default=None, help="model folder (default: random full-size weights)")
    add("--minutes", type=float, default=3.0)
    add("--users", type=int, default=8)
    add("--cases", type=int, default=16, help="different good requests")
    add("--device", default="auto")
    add("--precision", default="auto")
    add("--workers", type=int, default=1)
    add("--seed", type=int, default=1)
    add("--settle", type=float, default=5.0, help="seconds of rest before what is in use is looked at")
    add("--plain", action="store_true", help="hold the pool's solo answers against the plain engine's too")
    add("--out", type=Path, default=None, help="JSON file to write")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.model_dir
        if folder is None:
            from benchmarks.random_folder import write_random_folder

            folder = write_random_folder(Path(temporary))
        report = soak(args, folder)
    print(json.dumps(report, indent=1))
    if args.out:
        args.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 1 if report["problems"] else 0


def soak(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run it; the report's `problems` says in words what is off."""
    pool = WorkerPool(
        PoolSettings(
            model_dir=folder,
            devices=worker_devices(args.device, args.workers),
            precision=args.precision,
            max_workers=args.workers,
            concurrency=args.users,
            queue_size=2 * args.users,
        )
    )
    pool.start_blocking()
    findings = Findings()
    try:
        requests = good_requests(args.cases, args.seed, presets=pool.presets)
        solo = [digest(pool, request, findings) for request in requests]
        plain = _against_plain(args, folder, requests, solo) if args.plain else None
        snapshots = _use(pool, args, requests, solo, findings)
        report = _report(args, findings, snapshots, plain)
        report["status"] = json.loads(json.dumps(asdict(pool.status()), default=str))
    finally:
        pool.close()
    report["processes_left"] = left_over()
    if report["processes_left"]:
        report["problems"].append(f"{report['processes_left']} processes are left after close")
    return report


def digest(pool: WorkerPool, request: SynthesisRequest, findings: Findings) -> str:
    """Hash of the sound of a request."""
    found = hashlib.sha256()
    samples = rate = 0
    with closing(pool.synthesize(request)) as chunks:
        for chunk in chunks:
            found.update(chunk.pcm.tobytes())
            samples, rate = samples + len(chunk.pcm), chunk.sample_rate
    with findings.lock:
        findings.audio += samples / max(rate, 1)
    return found.hexdigest()


def _against_plain(
    args: argparse.Namespace, folder: Path, requests: Sequence[SynthesisRequest], solo: Sequence[str]
) -> int:
    """How many of the pool's solo answers differ from the plain engine's."""
    import torch

    from inference import CosyVoice

    torch.set_num_threads(1)  # as the pool's pieces have on the CPU: two share a sum in another way
    engine = CosyVoice(folder, device=args.device, precision=args.precision)
    differing = 0
    for request, expected in zip(requests, solo):
        found = hashlib.sha256()
        for chunk in engine.synthesize(request):
            found.update(chunk.pcm.tobytes())
        differing += found.hexdigest() != expected
    return differing


@dataclass(frozen=True)
class Snapshot:
    """What is in use at one moment."""

    tree: Tree
    device_mb: float | None

    @staticmethod
    def on_cuda(device: str) -> bool:
        return device.startswith("cuda") or (device == "auto" and available_devices() != ("cpu",))

    @classmethod
    def take(cls, device: str) -> Snapshot:
        card = open_card(device)
        return cls(process_tree(), card.memory()[0] / 1e6 if card else None)


def _use(
    pool: WorkerPool,
    args: argparse.Namespace,
    requests: Sequence[SynthesisRequest],
    solo: Sequence[str],
    findings: Findings,
) -> tuple[Snapshot, Snapshot]:
    """All users for the time asked, in two parts; what is in use after the first fifth and at the end, both at rest."""
    snapshots = []
    for part, share in enumerate((0.2, 0.8)):
        until = time.perf_counter() + 60 * args.minutes * share
        users = [
            threading.Thread(
                target=_User(pool, requests, solo, findings, seed=1000 * part + user).visit, args=(until,)
            )
            for user in range(args.users)
        ]
        for user in users:
            user.start()
        for user in users:
            user.join()
        time.sleep(args.settle)
        snapshots.append(Snapshot.take("cuda:0" if args.device in ("auto", "cuda") else args.device))
    return snapshots[0], snapshots[1]


class _User:
    def __init__(
        self,
        pool: WorkerPool,
        requests: Sequence[SynthesisRequest],
        solo: Sequence[str],
        findings: Findings,
        seed: int,
    ) -> None:
        self._pool, self._requests, self._solo, self._findings = pool, requests, solo, findings
        self._random = random.Random(seed)
        self._bad = list(bad_requests())

    def visit(self, until: float) -> None:
        actions: dict[str, Callable[[], None]] = {
            "speak": self._speak,
            "cancel": self._cancel,
            "slow": self._slow,
            "bad": self._mistake,
        }
        while time.perf_counter() < until:
            action = self._random.choices(ACTIONS, WEIGHTS)[0]
            self._findings.count(action)
            try:
                actions[action]()
            except SynthesisError as error:
                self._findings.complain(f"{action}: {error.code}")
            except Exception as error:
                self._findings.complain(f"{action}: {type(error).__name__}: {error}")

    def _pick(self) -> int:
        return self._random.randrange(len(self._requests))

    def _speak(self) -> None:
        number = self._pick()
        self._check(number, digest(self._pool, self._requests[number], self._findings))

    def _check(self, number: int, found: str) -> None:
        if found == self._solo[number]:
            return
        with self._findings.lock:
            if found in self._solo:
                self._findings.crosstalk += 1
            else:
                self._findings.different += 1

    def _cancel(self) -> None:
        """At any moment: while it waits, before the first sound, in the middle, or when all is done."""
        submission = self._pool.submit(self._requests[self._pick()])
        time.sleep(self._random.choice((0.0, 0.05, 0.5, 2.0)))
        began = time.perf_counter()
        submission.cancel()
        seconds = time.perf_counter() - began
        for _ in submission:  # what had come before may still be heard; then it ends
            pass
        with self._findings.lock:
            self._findings.cancel_seconds.append(seconds)

    def _slow(self) -> None:
        number = self._pick()
        found = hashlib.sha256()
        with closing(self._pool.synthesize(self._requests[number])) as chunks:
            for chunk in chunks:
                found.update(chunk.pcm.tobytes())
                time.sleep(self._random.uniform(0.2, 1.0))
        self._check(number, found.hexdigest())

    def _mistake(self) -> None:
        bad = self._random.choice(self._bad)
        try:
            digest(self._pool, bad.request, self._findings)
        except SynthesisError as error:
            if error.code not in bad.codes:
                self._findings.complain(f"bad: {error.code} where {bad.codes[0]} is right")
            return
        self._findings.complain(f"bad: no error where {bad.codes[0]} is right")


def _report(
    args: argparse.Namespace, findings: Findings, snapshots: tuple[Snapshot, Snapshot], plain: int | None
) -> dict[str, Any]:
    early, late = snapshots
    growth: dict[str, float] = {
        "resident_mb": late.tree.resident_mb - early.tree.resident_mb,
        "threads": late.tree.threads - early.tree.threads,
        "files": late.tree.files - early.tree.files,
        "processes": late.tree.processes - early.tree.processes,
    }
    if early.device_mb is not None and late.device_mb is not None:
        growth["device_mb"] = late.device_mb - early.device_mb
    problems = [f"{count} × {what}" for what, count in findings.unexpected.items()]
    if findings.crosstalk:
        problems.append(f"{findings.crosstalk} answers belong to other requests")
    # On CUDA rounding depends on the company; `benchmarks.crosstalk` tells that from another's sound.
    if findings.different and not Snapshot.on_cuda(args.device):
        problems.append(f"{findings.different} answers differ from the solo ones")
    if plain:
        problems.append(f"{plain} solo answers differ from the plain engine's")
    limits = {
        "resident_mb": MAX_GROWTH_MB,
        "device_mb": MAX_DEVICE_GROWTH_MB,
        "threads": 2,
        "files": 8,
        "processes": 0,
    }
    problems += [
        f"{name} grew by {growth[name]:.0f}" for name, most in limits.items() if growth.get(name, 0) > most
    ]
    return {
        "minutes": args.minutes,
        "users": args.users,
        "actions": dict(findings.actions),
        "audio_seconds": round(findings.audio, 1),
        "crosstalk": findings.crosstalk,
        "different_from_solo": findings.different,
        "solo_different_from_plain": plain,
        "unexpected": dict(findings.unexpected),
        "slowest_cancel_s": max(findings.cancel_seconds, default=0.0),
        "early": asdict(early),
        "late": asdict(late),
        "growth": growth,
        "problems": problems,
    }


if __name__ == "__main__":
    raise SystemExit(main())

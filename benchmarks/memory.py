"""Where a GPU worker's memory goes: the worker's own start and some load in this process, counted after every phase.

    python -m benchmarks.memory --users 8 --out memory.json
    python -m benchmarks.memory --low-memory --card-gb 6

Without --model-dir random weights of the public sizes are used. Columns, GB: what torch holds for tensors ("live") and
from the driver ("held"), the most it held in the phase, and what the device lost since before this process touched it
(as nvidia-smi tells), now and at most. --sites tells which of our lines hold the live bytes, and what is free in which
pool. --card-gb refuses torch what a card of that size would not have.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import queue
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from benchmarks.forced_length import force_length
from benchmarks.load import Load, summary
from benchmarks.machine import resident_mb
from benchmarks.row import TOKEN_SECONDS, Job, Material, lanes_of
from benchmarks.watch import Card, open_card
from inference.device_memory import choose_allocator
from inference.protocol import Failed, FromWorker, Ready, Spoken, WorkerSettings
from inference.settings import LaneSettings
from inference.types import AudioChunk, SynthesisRequest
from inference.worker import _Worker

_GB = 1e9
_SAMPLE = 0.01  # seconds
_CONTEXT = 0.6e9  # what the driver, kernels and graphs take of a card beside torch
_IDLE = 4.0  # seconds after which a worker has given back what it does not need
_TOP = 25
_HEAD = f"{'phase':<58}{'s':>7}{'live':>8}{'held':>8}{'most':>8}{'device':>8}{'peak':>8}"


class Account:
    """Numbers after each phase; `device` "cpu" counts the process's resident memory only."""

    def __init__(self, device: str, sites: bool) -> None:
        self._cuda = device.startswith("cuda")
        self._card: Card | None = open_card(device)
        self._before = self._card.memory()[0] if self._card else 0
        self._begun = time.perf_counter()
        self._peak = 0
        self.phases: list[dict[str, Any]] = []
        if self._cuda:
            import torch

            torch.cuda.init()
            if sites:
                torch.cuda.memory._record_memory_history(enabled="state", stacks="python")
        threading.Thread(target=self._sample, daemon=True).start()
        print(_HEAD, flush=True)
        self.add("process")

    def _device_bytes(self) -> int:
        return self._card.memory()[0] - self._before if self._card else 0

    def _sample(self) -> None:
        while True:
            self._peak = max(self._peak, self._device_bytes())
            time.sleep(_SAMPLE)

    def add(self, name: str, **more: Any) -> None:
        """A phase has ended."""
        found: dict[str, Any] = {"phase": name, "s": time.perf_counter() - self._begun}
        if self._cuda:
            import torch

            torch.cuda.synchronize()
            found["live"] = torch.cuda.memory_allocated()
            found["held"] = torch.cuda.memory_reserved()
            found["most"] = torch.cuda.max_memory_reserved()
            torch.cuda.reset_peak_memory_stats()
            found["pools"] = pools()
        else:
            found["live"] = found["held"] = found["most"] = int(resident_mb() * 1e6)
        found["device"] = self._device_bytes()
        found["peak"], self._peak = max(self._peak, found["device"]), 0
        found |= more
        self.phases.append(found)
        numbers = "".join(f"{found[key] / _GB:8.3f}" for key in ("live", "held", "most", "device", "peak"))
        print(f"{name[:57]:<58}{found['s']:7.1f}{numbers}", flush=True)


def pools() -> list[dict[str, Any]]:
    """Blocks by pool (graphs have their own) and stream: bytes from the driver, of tensors, free."""
    import torch

    rows: dict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0, 0])
    for segment in torch.cuda.memory_snapshot():
        pool = tuple(segment.get("segment_pool_id", (0, 0)))
        row = rows["tensors" if pool == (0, 0) else f"graphs {pool}", int(segment["stream"])]
        row[0] += segment["total_size"]
        row[1] += segment["allocated_size"]
        row[2] += 1
    return [
        {"pool": pool, "stream": stream, "held": held, "live": live, "segments": count}
        for (pool, stream), (held, live, count) in sorted(rows.items(), key=lambda item: -item[1][0])
    ]


def sites(top: int = _TOP) -> list[dict[str, Any]]:
    """Our lines by the live bytes that they hold; needs the history of allocations."""
    import torch

    found: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for segment in torch.cuda.memory_snapshot():
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                row = found[_site(block.get("frames") or [])]
                row[0] += block["size"]
                row[1] += 1
    ranked = sorted(found.items(), key=lambda item: -item[1][0])
    return [{"site": site, "bytes": size, "blocks": count} for site, (size, count) in ranked[:top]]


def _site(frames: Sequence[dict[str, Any]]) -> str:
    """The innermost lines that are ours, at most three, one a function."""
    ours: list[str] = []
    for frame in frames:
        name = str(frame["filename"])
        if f"{os.sep}inference{os.sep}" in name:
            ours.append(f"{Path(name).stem}.{frame['name']}:{frame['line']}")
    return " < ".join(ours[:3]) or "elsewhere"


class InProcess(_Worker):
    """A worker without a pipe: phases go to the account, answers to who asked."""

    def __init__(self, settings: WorkerSettings, account: Account) -> None:
        super().__init__(Pipe()[0], settings)
        self._account = account
        self._outbox.close(1.0)
        self._answers: dict[int, queue.SimpleQueue[FromWorker]] = {}
        self._keys = 0
        self._lock = threading.Lock()
        self.ready: Ready | None = None
        self._outbox = self  # type: ignore[assignment]

    def put(self, message: FromWorker) -> None:
        """In the place of the outbox."""
        if isinstance(message, Ready):
            self.ready = message
        elif isinstance(message, (Spoken, Failed)):
            self._answers[message.key].put(message)

    def start(self) -> None:
        self._scheduler = self._load()

    def speak(self, request: SynthesisRequest) -> Iterator[AudioChunk]:
        with self._lock:
            key = self._keys = self._keys + 1
        answers = self._answers[key] = queue.SimpleQueue()
        assert self._scheduler is not None  # noqa: S101 - started before
        self._scheduler.submit(key, request)
        final = False
        while not final:
            message = answers.get(timeout=60.0)
            if isinstance(message, Failed):
                raise message.error
            if isinstance(message, Spoken):
                final = message.chunk.final
                yield message.chunk
        del self._answers[key]

    def lane_bytes(self) -> int:
        return 0 if self._scheduler is None else self._scheduler.stats().lane_bytes

    def _tell_progress(self, stage: str) -> None:
        super()._tell_progress(stage)
        self._account.add(stage)


def limit_card(gigabytes: float) -> None:
    """Torch gets what a card of that size has beside the driver's share."""
    import torch

    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((gigabytes * 2**30 - _CONTEXT) / total)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.memory",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model-dir", type=Path, default=None, help="model folder (default: random full-size weights)")
    add("--device", default="cuda:0")
    add("--precision", default="auto")
    add("--users", type=int, default=8, help="requests at once, and what the worker is started for")
    add("--default", action="store_true", help="start it as it is without --concurrency-count")
    add("--low-memory", action="store_true")
    add("--page-gb", type=float, default=0.0, help="other bounds of the streams' pages than the worker's own")
    add("--card-gb", type=float, default=0.0, help="act as a card of so many GiB")
    add("--speech-tokens", type=int, default=250)
    add("--long-tokens", type=int, default=750, help="of one more round each; 0: none")
    add("--turns", type=int, default=2, help="requests of each user in a round")
    add("--limit", type=float, default=60.0, help="seconds after which no round is begun")
    add("--sites", action="store_true", help="which lines hold the live bytes")
    add("--out", type=Path, default=None)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.model_dir or _random_folder(Path(temporary), args.device)
        report: dict[str, Any] = {"arguments": {key: str(value) for key, value in vars(args).items()}}
        with suppress(KeyboardInterrupt):
            _measure(args, folder, report, began)
    return 0


def _random_folder(path: Path, device: str) -> Path:
    from benchmarks.pool import _random_folder as random_folder

    return random_folder(path, device)


def _measure(args: argparse.Namespace, folder: Path, report: dict[str, Any], began: float) -> None:
    if args.device.startswith("cuda"):
        choose_allocator(
            args.users if _asks(args) else 0, args.low_memory
        )  # as the worker does before anything else
    account = Account(args.device, args.sites)
    report["phases"] = account.phases
    if args.card_gb:
        limit_card(args.card_gb)
    worker = InProcess(_settings(args, folder), account)
    worker.start()
    account.add("ready", lanes=worker.lane_bytes())
    report["settings"] = asdict(worker.ready.lanes) if worker.ready else {}
    print(report["settings"], flush=True)
    _save(args, report, "ready")
    time.sleep(_IDLE)
    account.add("idle")
    for name, stream, tokens in _rounds(args):
        if time.perf_counter() - began > args.limit:
            break
        _round(args, folder, worker, account, name, stream, tokens)
        _save(args, report, name)
    time.sleep(_IDLE)
    account.add("idle again", lanes=worker.lane_bytes())
    _save(args, report, "idle again")


def _settings(args: argparse.Namespace, folder: Path) -> WorkerSettings:
    cores = len(os.sched_getaffinity(0))
    return WorkerSettings(
        name="memory",
        model_dir=str(folder),
        lexicon=None,
        device=args.device,
        precision=args.precision,
        vocoder_backend="auto",
        flow_backend="auto",
        concurrency=args.users if _asks(args) else 0,
        lanes=_lanes(args, folder) if args.page_gb else None,
        low_memory=args.low_memory,
        memory=0,
        warm_up=True,
        front_end_threads=max(2, min(8, cores // 2)),
        run_ahead=2,
        heartbeat=1.0,
        threads=cores,
    )


def _lanes(args: argparse.Namespace, folder: Path) -> LaneSettings:
    job = Job(str(folder), args.device, args.precision, True, graphs=True)
    lanes: LaneSettings = lanes_of(job, args.users)
    return replace(lanes, flow_cache_bytes=int(args.page_gb * _GB))


def _asks(args: argparse.Namespace) -> bool:
    return not (args.default or args.low_memory)


def _rounds(args: argparse.Namespace) -> Iterator[tuple[str, bool, int]]:
    for tokens in filter(None, (args.speech_tokens, args.long_tokens)):
        seconds = round(tokens * TOKEN_SECONDS)
        yield f"whole files of {seconds} s", False, tokens
        yield f"streams of {seconds} s", True, tokens


def _round(
    args: argparse.Namespace,
    folder: Path,
    worker: InProcess,
    account: Account,
    name: str,
    stream: bool,
    tokens: int,
) -> None:
    from inference.frontend.tokenizer import TextTokenizer
    from inference.model_yaml import TOKENIZER_FOLDER

    force_length(tokens)
    job = Job(str(folder), args.device, args.precision, True, speech_tokens=tokens)
    material = Material(job, TextTokenizer(folder / TOKENIZER_FOLDER).encode)
    load = Load(worker.speak, lambda u, t: material.request(u, t, stream), args.users, args.turns, args.limit)
    elapsed = load.run()
    found = summary(load, elapsed, tokens * TOKEN_SECONDS)
    account.add(f"{args.users} {name}", lanes=worker.lane_bytes(), load=found)
    print(
        f"    {found['throughput']:.0f} audio s/s, first {found['first']['p50']}, "
        f"{found['complete']} of {found['requests']}, errors {found['errors']}, lanes {worker.lane_bytes() / _GB:.3f}",
        flush=True,
    )


def _save(args: argparse.Namespace, report: dict[str, Any], name: str) -> None:
    if args.sites and args.device.startswith("cuda"):
        report.setdefault("sites", {})[name] = sites()
        print(f"  -- live bytes by line, {name}", flush=True)
        for row in report["sites"][name]:
            print(f"  {row['bytes'] / 1e6:9.1f} MB {row['blocks']:5d}  {row['site']}", flush=True)
        for row in pools()[:12]:
            print(
                f"  {row['pool']:<16} stream {row['stream'] % 10**6:7d}: held {row['held'] / 1e6:8.1f}, "
                f"live {row['live'] / 1e6:8.1f} MB, {row['segments']} segments",
                flush=True,
            )
    if args.out:
        args.out.write_text(json.dumps(report, indent=1, default=str) + "\n", encoding="utf-8")


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # as a worker leaves: threads of its lanes are still there

"""The pool beside the naive path, in one go on one machine: the same requests served in several ways.

    python3 -m benchmarks.pool --out pool.json
    python3 -m benchmarks.pool --model-dir assets/nano --users 1,4,8

Rows: naive (one request at a time, float32, eager: our stand-in for the original), half (the same in half precision),
pool (many at once, eager), graphs (captured CUDA graphs), compiled (and torch.compile), stream (as graphs, streamed);
naive_stream, half_stream and pool_stream are the first three, streamed. Without --model-dir random weights of the
public sizes are used and lengths are forced: 25 text tokens, a 4 s reference, 250 speech tokens = 10 s of sound.
With it the bundled clip is used and the model ends its sentences, unless --speech-tokens forces the same lengths.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.row import Job

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Row:
    """A line of the table: which way of serving, whole or streamed."""

    setup: str
    stream: bool = False


SETUPS: dict[str, dict[str, Any]] = {
    "naive": {
        "precision": "fp32",
        "pool": False,
        "vocoder_backend": "torch",
        "flow_backend": "torch",
    },  # fmt: skip
    "half": {"precision": "auto", "pool": False},
    "pool": {"precision": "auto", "pool": True},
    "graphs": {"precision": "auto", "pool": True, "graphs": True},
    "compiled": {"precision": "auto", "pool": True, "graphs": True, "compile": True},
}
ROWS = {
    "naive": Row("naive"),
    "naive_stream": Row("naive", True),
    "half": Row("half"),
    "half_stream": Row("half", True),
    "pool": Row("pool"),
    "pool_stream": Row("pool", True),
    "graphs": Row("graphs"),
    "stream": Row("graphs", True),
    "compiled": Row("compiled"),
    "compiled_stream": Row("compiled", True),
}
ON_CUDA = "naive,naive_stream,half,pool,graphs,stream"
ON_CPU = "naive,naive_stream,pool,pool_stream"  # there is no half precision and nothing to capture
BUNDLED_CLIP = ROOT / "assets" / "examples" / "studio_voice.flac"  # what it says stands beside it
REAL_TEXT = (
    "The train to the city leaves at nine in the morning, and we should be there a little before that."
)
HEAD = (
    "row", "users", "first p50", "p95", "p99", "whole p50", "p99", "audio s/s", "busy", "memory MB",
    "served", "stalled", "early", "late",
)  # fmt: skip


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pool",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--out", type=Path, default=None, help="JSON file to write")
    add("--rows", default=None, help=f"comma-separated; default {ON_CUDA}, without CUDA {ON_CPU}")
    add("--users", default="1,4,16,64", help="comma-separated numbers of users at once")
    add("--serial-users", default="1,4", help="the same for the rows that serve one at a time")
    add("--requests", type=int, default=0, help="requests of each cell (0: two a user, at least eight)")
    add("--least-seconds", type=float, default=0.0, help="without --requests, of each cell of a pool")
    add("--limit", type=float, default=12.0, help="seconds after which a cell begins nothing new")
    add("--row-limit", type=float, default=400.0, help="seconds after which a way of serving is stopped")
    add("--model-dir", type=Path, default=None, help="model folder (default: random full-size weights)")
    add("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    add("--precision", default="auto", help="of all rows but naive: auto, fp16, bf16 or fp32")
    add("--vocoder-backend", default="auto", help="of all rows but naive, which has torch; for the CPU")
    add("--workers", type=int, default=1, help="worker processes of the pool")
    add("--text-tokens", type=int, default=25)
    add(
        "--speech-tokens",
        type=int,
        default=None,
        help="forced length (default 250; natural with --model-dir)",
    )
    add("--reference-seconds", type=float, default=4.0)
    add("--reference", type=Path, default=None, help="a clip (default with natural lengths: the bundled one)")
    add("--transcript", default="", help="what is said in that clip")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(arguments)
    device = _device(args.device)
    names = (args.rows or (ON_CUDA if device.startswith("cuda") else ON_CPU)).split(",")
    if unknown := set(names) - set(ROWS):
        raise SystemExit(f"unknown row {sorted(unknown)}; choose from {', '.join(ROWS)}")
    began = time.perf_counter()
    report: dict[str, Any] = {"rows": dict.fromkeys(names), "setups": {}}
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary)
        folder = args.model_dir or _random_folder(scratch / "model", device)
        for setup, rows in _by_setup(names):
            streams = tuple(sorted({ROWS[name].stream for name in rows}))
            job = _job(args, setup, folder, device, streams)
            result = _run(job, scratch, args.row_limit)
            report["setups"][setup] = {key: value for key, value in result.items() if key != "cells"}
            for name in rows:
                cells = [cell for cell in result["cells"] if cell["stream"] == ROWS[name].stream]
                report["rows"][name] = cells
                print(table({name: cells}), flush=True)
            if args.out:  # after each setup: a later one may be stopped from outside
                args.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    report["whole_run_s"] = time.perf_counter() - began
    print(table(report["rows"]))
    if args.out:
        args.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0


def _device(asked: str) -> str:
    """Found out elsewhere: this process must not take memory on the device that is measured."""
    code = f"from inference.runtime.precision import choose_device; print(choose_device({asked!r}))"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()
    return "cuda:0" if found == "cuda" else found


def _random_folder(folder: Path, device: str) -> Path:
    from benchmarks.random_folder import BORROWED

    code = (
        "import sys; from pathlib import Path; from benchmarks.random_folder import write_random_folder; "
        "write_random_folder(Path(sys.argv[1]), device=sys.argv[2])"
    )
    print(f"Random weights of the public sizes; {BORROWED}.", flush=True)
    subprocess.run([sys.executable, "-c", code, str(folder), device], cwd=ROOT, check=True)
    return folder


def _by_setup(names: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    for setup in SETUPS:
        rows = [name for name in names if ROWS[name].setup == setup]
        if rows:
            yield setup, rows


def _job(args: argparse.Namespace, setup: str, folder: Path, device: str, streams: tuple[bool, ...]) -> Job:
    forced = args.speech_tokens
    if forced is None:
        forced = 0 if args.model_dir else 250
    users = args.users if SETUPS[setup]["pool"] else args.serial_users
    job = Job(
        folder=str(folder),
        device=device,
        users=tuple(int(count) for count in users.split(",")),
        streams=streams,
        requests=args.requests,
        least_seconds=args.least_seconds,
        limit=args.limit,
        text_tokens=args.text_tokens,
        speech_tokens=forced,
        reference_seconds=args.reference_seconds,
        workers=args.workers,
        **SETUPS[setup],
    )
    if setup != "naive" and args.precision != "auto":
        job = replace(job, precision=args.precision)
    if setup != "naive":
        job = replace(job, vocoder_backend=args.vocoder_backend)
    if args.reference:
        job = replace(job, reference=str(args.reference), transcript=args.transcript)
    elif args.model_dir and not forced:
        said = BUNDLED_CLIP.with_suffix(".txt").read_text(encoding="utf-8").strip()
        job = replace(job, reference=str(BUNDLED_CLIP), transcript=said)
    return replace(job, text=REAL_TEXT) if args.model_dir and not forced else job


def _run(job: Job, scratch: Path, limit: float) -> dict[str, Any]:
    """The result of the job's process; what it had printed until then when it fails or takes too long."""
    asked, answered = scratch / "job.json", scratch / "result.json"
    asked.write_text(json.dumps(asdict(job)))
    answered.unlink(missing_ok=True)
    command = [sys.executable, "-m", "benchmarks.row", str(asked), str(answered)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, problems = process.communicate(timeout=limit)
        failure = "" if process.returncode == 0 else f"exit status {process.returncode}"
    except subprocess.TimeoutExpired:
        process.kill()
        out, problems = process.communicate()
        failure = f"stopped after {limit:.0f} s"
    if not failure and answered.is_file():
        result: dict[str, Any] = json.loads(answered.read_text())
        return result
    print(f"{failure}: {problems[-2000:]}", file=sys.stderr, flush=True)
    cells = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return {"job": asdict(job), "failure": failure, "problems": problems[-4000:], "cells": cells}


def table(rows: dict[str, list[dict[str, Any]] | None]) -> str:
    """Seconds, audio seconds per second, busy share, MB; "-" where most got no answer in time."""
    lines = ["  ".join(f"{name:>12}" for name in HEAD)]
    for name, cells in rows.items():
        for cell in cells or ():
            memory = cell["device_peak_mb"] or cell["resident_peak_mb"]
            first, total = cell["first"], cell["total"]
            numbers = [
                first["p50"],
                first["p95"],
                first["p99"],
                total["p50"],
                total["p99"],
                cell["throughput"],
            ]
            texts = [name, str(cell["users"]), *("-" if n is None else f"{n:.3f}" for n in numbers)]
            busy = cell["busy"]
            texts += [
                "-" if busy is None else f"{100 * busy:.0f} %",
                "-" if memory is None else f"{memory:.0f}",
            ]
            texts += [f"{cell['users_served']}/{cell['users']}", str(cell["stalled"])]
            late = (cell["first_of_early_requests"], cell["first_of_late_requests"])
            texts += ["-" if n is None else f"{n:.3f}" for n in late]
            lines.append("  ".join(f"{text:>12}" for text in texts))
            if cell["errors"] or cell["wrong_length"]:
                lines.append(f"{'':>12}  errors {cell['errors']}, of another length: {cell['wrong_length']}")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())

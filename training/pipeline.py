"""Runs the whole recipe on one GPU machine: data, tokenizer, speaker encoder, then language model, flow and vocoder.

Every stage is a process of its own that logs to `WORK/logs`; stages overlap as far as what they need is there
(the vocoder trains from the first shards on; language model and flow start once the tokenizer is frozen).
All trainers anneal to a common deadline, so whatever the machine is lent for ends in finished checkpoints.

    python -m training.pipeline --work /tmp/nano --minutes 22
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TOKENIZER_MINUTES = 3.6
SPEAKER_MINUTES = 2.4


@dataclass(frozen=True)
class Plan:
    """Where things lie and when everything has to be done."""

    work: Path
    start: float
    minutes: float
    workers: int
    device: str

    @property
    def data(self) -> Path:
        return self.work / "data"

    def minutes_left(self) -> float:
        return self.minutes - (time.time() - self.start) / 60


def launch(plan: Plan, name: str, arguments: Sequence[str], threads: int = 2) -> subprocess.Popen[bytes]:
    """Start `python -m training.<name>`; output goes to a log file."""
    log = (plan.work / "logs" / f"{name}.log").open("ab")
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads), PYTHONUNBUFFERED="1")
    print(f"[{time.time() - plan.start:6.0f}s] start {name} {' '.join(arguments)}", flush=True)
    return subprocess.Popen(
        [sys.executable, "-m", f"training.{name}", *arguments], stdout=log, stderr=log, env=environment
    )


def wait_for(plan: Plan, name: str, process: subprocess.Popen[bytes]) -> bool:
    """Wait until a stage ends; False (and a line) when it failed."""
    code = process.wait()
    print(f"[{time.time() - plan.start:6.0f}s] {name} ended with {code}", flush=True)
    return code == 0


def wait_for_shards(plan: Plan, count: int, patience: float = 240.0) -> None:
    """Block until the generator has written `count` shards."""
    deadline = time.time() + patience
    while time.time() < deadline:
        if len(list(plan.data.glob("shard-*.npz"))) >= count:
            return
        time.sleep(1.0)
    raise SystemExit(
        f"only {len(list(plan.data.glob('shard-*.npz')))} shards after {patience:.0f} s; see the logs"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--minutes", type=float, required=True, help="wall clock for everything")
    parser.add_argument("--generate-minutes", type=float, default=14.0)
    parser.add_argument("--workers", type=int, default=11)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--text-tokenizer", type=Path, default=Path("assets/nano/CosyVoice-BlankEN"))
    args = parser.parse_args()
    plan = Plan(args.work, time.time(), args.minutes, args.workers, args.device)
    (plan.work / "logs").mkdir(parents=True, exist_ok=True)
    plan.data.mkdir(exist_ok=True)
    run(plan, args.generate_minutes, args.text_tokenizer)


def run(plan: Plan, generate_minutes: float, text_tokenizer: Path) -> None:
    """All stages; returns when the last trainer has ended."""
    common = ["--data", str(plan.data), "--device", plan.device]
    generator = launch(
        plan,
        "generate",
        [
            "--data",
            str(plan.data),
            "--teachers",
            str(plan.work / "teachers"),
            "--texts",
            str(plan.work / "texts.json.gz"),
            "--workers",
            str(plan.workers),
            "--minutes",
            str(generate_minutes),
        ],
        threads=1,
    )
    wait_for_shards(plan, plan.workers)  # at least one from every teacher
    vocoder = launch(
        plan,
        "vocoder",
        [*common, "--out", str(plan.work / "vocoder"), "--minutes", f"{plan.minutes_left():.2f}"],
    )
    speaker = launch(
        plan,
        "speaker_encoder",
        [*common, "--out", str(plan.work / "speaker"), "--minutes", str(SPEAKER_MINUTES)],
    )
    tokenizer = launch(
        plan,
        "speech_tokenizer",
        [*common, "--out", str(plan.work / "tokenizer"), "--minutes", str(TOKENIZER_MINUTES)],
    )
    if not (wait_for(plan, "speaker_encoder", speaker) and wait_for(plan, "speech_tokenizer", tokenizer)):
        print("no tokenizer or speaker encoder: only the vocoder goes on", flush=True)
        wait_for(plan, "vocoder", vocoder)
        return
    features = launch(
        plan,
        "features",
        [
            *common,
            "--tokenizer",
            str(plan.work / "tokenizer"),
            "--speaker",
            str(plan.work / "speaker"),
            "--watch",
            "--minutes",
            f"{max(1.0, plan.minutes_left() - 3):.2f}",
        ],
    )
    while not list(plan.data.glob("features-*.npz")) and features.poll() is None:
        time.sleep(1.0)
    time.sleep(10.0)
    language_model = launch(
        plan,
        "language_model",
        [
            *common,
            "--tokenizer",
            str(text_tokenizer),
            "--out",
            str(plan.work / "language_model"),
            "--minutes",
            f"{plan.minutes_left():.2f}",
        ],
    )
    flow = launch(
        plan, "flow", [*common, "--out", str(plan.work / "flow"), "--minutes", f"{plan.minutes_left():.2f}"]
    )
    for name, process in (("language_model", language_model), ("flow", flow), ("vocoder", vocoder)):
        wait_for(plan, name, process)
    for process in (features, generator):
        process.terminate()


if __name__ == "__main__":
    main()

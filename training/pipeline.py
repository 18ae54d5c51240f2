"""Runs the whole recipe on one GPU machine: data, tokenizer, speaker encoder, then language model, flow and vocoder.

Every stage is a process of its own that logs to `WORK/logs`; stages overlap as far as what they need is there
(the vocoder trains from the first shards on; language model and flow start once the tokenizer is frozen).
All trainers anneal to a common deadline, so whatever the machine is lent for ends in finished checkpoints.

    python -m training.pipeline --work /tmp/nano --minutes 22
    python -m training.pipeline --work /tmp/nano --minutes 22 --init assets/nano --frozen DIR

The second form goes on from a finished model folder: `--frozen` holds its `tokenizer.pt` and `speaker.pt`, which stay
as they are (codes must keep their meaning), and the other three begin with the folder's weights.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TOKENIZER_MINUTES = 3.6
SPEAKER_MINUTES = 2.4
WARM_RATES = {"language_model": 1.0e-3, "flow": 8e-4}  # peaks for a start from finished weights


@dataclass(frozen=True)
class Plan:
    """Where things lie and when everything has to be done."""

    work: Path
    start: float
    minutes: float
    workers: int
    device: str
    mix: str = ""
    init: Path | None = None

    @property
    def data(self) -> Path:
        return self.work / "data"

    @property
    def words(self) -> Path:
        """Shards of the one fast voice, for the language model only."""
        return self.work / "words"

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


class Trainer:
    """A training stage that is started once more, without CUDA graphs and from its checkpoint, should it fail."""

    def __init__(self, plan: Plan, name: str, arguments: Sequence[str], graphs: bool = False) -> None:
        self._plan, self._name, self._arguments = plan, name, list(arguments)
        self._careful = ["--no-graph"] if graphs else []
        self._process = self._launch([])

    def _launch(self, more: list[str]) -> subprocess.Popen[bytes]:
        minutes = f"{self._plan.minutes_left():.2f}"
        return launch(self._plan, self._name, [*self._arguments, "--minutes", minutes, *more])

    def wait(self) -> None:
        """Until it ends for good."""
        if not wait_for(self._plan, self._name, self._process) and self._plan.minutes_left() > 1:
            self._process = self._launch(["--resume", *self._careful])
            wait_for(self._plan, self._name, self._process)


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
    parser.add_argument("--mix", default="", help="as for training.generate; plain speech is then kept apart")
    parser.add_argument("--init", type=Path, help="model folder to go on from")
    parser.add_argument(
        "--frozen", type=Path, help="folder with tokenizer.pt and speaker.pt, kept as they are"
    )
    parser.add_argument("--text-tokenizer", type=Path, default=Path("assets/nano/CosyVoice-BlankEN"))
    args = parser.parse_args()
    plan = Plan(args.work, time.time(), args.minutes, args.workers, args.device, args.mix, args.init)
    for folder in (plan.work / "logs", plan.data, plan.words):
        folder.mkdir(parents=True, exist_ok=True)
    run(plan, args.generate_minutes, args.text_tokenizer, args.frozen)


def run(plan: Plan, generate_minutes: float, text_tokenizer: Path, frozen: Path | None) -> None:
    """All stages; returns when the last trainer has ended."""
    common = ["--device", plan.device, "--data", str(plan.data)]
    generator = generate(plan, generate_minutes)
    wait_for_shards(plan, 2 if plan.mix else plan.workers)  # some of every teacher
    vocoder = Trainer(plan, "vocoder", [*common, *_out(plan, "vocoder", "hift.pt")], graphs=True)
    if frozen:
        adopt(plan, frozen)
    elif not train_listeners(plan, common):
        print("no tokenizer or speaker encoder: only the vocoder goes on", flush=True)
        vocoder.wait()
        return
    features = [write_features(plan, plan.data, [])]
    folders = [str(plan.data)]
    if plan.mix:
        features.append(write_features(plan, plan.words, ["--words-only"]))
        folders.append(str(plan.words))
    for folder, process in zip(folders, features):
        while not list(Path(folder).glob("features-*.npz")) and process.poll() is None:
            time.sleep(1.0)
    time.sleep(10.0)
    tokenizer = ["--tokenizer", str(text_tokenizer)]
    language_model = Trainer(
        plan,
        "language_model",
        ["--device", plan.device, "--data", *folders, *tokenizer, *_out(plan, "language_model", "llm.pt")],
    )
    flow = Trainer(plan, "flow", [*common, *_out(plan, "flow", "flow.pt")], graphs=True)
    waiters = [threading.Thread(target=trainer.wait) for trainer in (language_model, flow, vocoder)]
    for waiter in waiters:
        waiter.start()
    for waiter in waiters:
        waiter.join()
    for process in (*features, generator):
        process.terminate()


def generate(plan: Plan, minutes: float) -> subprocess.Popen[bytes]:
    """Start the teachers."""
    arguments = ["--data", str(plan.data), "--minutes", str(minutes), "--workers", str(plan.workers)]
    arguments += ["--teachers", str(plan.work / "teachers"), "--texts", str(plan.work / "texts.json.gz")]
    if plan.mix:
        arguments += ["--mix", plan.mix, "--plain-data", str(plan.words), "--seed", "2"]
    return launch(plan, "generate", arguments, threads=1)


def train_listeners(plan: Plan, common: Sequence[str]) -> bool:
    """Speech tokenizer and speaker encoder, side by side; False when one failed."""
    out, minutes = str(plan.work / "speaker"), str(SPEAKER_MINUTES)
    speaker = launch(plan, "speaker_encoder", [*common, "--out", out, "--minutes", minutes])
    out, minutes = str(plan.work / "tokenizer"), str(TOKENIZER_MINUTES)
    tokenizer = launch(plan, "speech_tokenizer", [*common, "--out", out, "--minutes", minutes])
    done = [wait_for(plan, "speaker_encoder", speaker), wait_for(plan, "speech_tokenizer", tokenizer)]
    return all(done)


def adopt(plan: Plan, frozen: Path) -> None:
    """Take both listeners as they are; the shipped ONNX file is what the tokens are checked against."""
    for stage in ("tokenizer", "speaker"):
        (plan.work / stage).mkdir(exist_ok=True)
        shutil.copyfile(frozen / f"{stage}.pt", plan.work / stage / f"{stage}.pt")
    if plan.init:
        name = "speech_tokenizer_v2.onnx"
        shutil.copyfile(plan.init / name, plan.work / "tokenizer" / name)


def write_features(plan: Plan, folder: Path, more: list[str]) -> subprocess.Popen[bytes]:
    """Start the process that follows the generator."""
    arguments = ["--device", plan.device, "--data", str(folder), "--watch", *more]
    arguments += ["--tokenizer", str(plan.work / "tokenizer"), "--speaker", str(plan.work / "speaker")]
    front = plan.work / "whisper_front.npz"
    arguments += ["--front", str(front)] if front.exists() else []
    return launch(plan, "features", [*arguments, "--minutes", f"{max(1.0, plan.minutes_left() - 2):.2f}"])


def _out(plan: Plan, stage: str, name: str) -> list[str]:
    """Where a stage writes, and what it begins with."""
    if not plan.init:
        return ["--out", str(plan.work / stage)]
    rate = WARM_RATES.get(stage)
    begin = ["--init", str(plan.init / name), *(["--rate", str(rate)] if rate else [])]
    return ["--out", str(plan.work / stage), *begin]


if __name__ == "__main__":
    main()

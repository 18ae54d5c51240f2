"""One full-size request, one after another in each precision: where its seconds go.

    python3 -m benchmarks.single_request --out single.json

Uses the plain engine (`inference.CosyVoice`), by default on random weights of the public sizes written to a
temporary folder (1.3 GB): 25 text tokens, a 4 s reference, 250 speech tokens = 10 s of sound.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.forced_length import forced_length
from benchmarks.machine import describe, resident_mb
from benchmarks.material import TRANSCRIPT, clip, text_of
from benchmarks.random_folder import BORROWED, write_random_folder
from inference import CosyVoice, Mode, Reference, SynthesisRequest
from inference.frontend.tokenizer import TextTokenizer
from inference.model_yaml import TOKENIZER_FOLDER
from inference.runtime.precision import PRECISIONS, choose_device

HEAD = (
    "precision", "run", "front end", "LM", "flow", "vocoder", "total", "first", "audio", "RTF",
    "LM ms/token", "peak MB",
)  # fmt: skip
STAGES = ("front_end", "language_model", "flow", "vocoder")
WARM_UP_TOKENS = 60
TOKEN_RATE = 25


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.single_request", description=__doc__)
    add = parser.add_argument
    add("--out", type=Path, default=None, help="JSON file to write")
    add("--model-dir", type=Path, default=None, help="model folder (default: random full-size weights)")
    add("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    add("--precisions", default=None, help="comma-separated; default fp32,fp16,bf16 on CUDA, fp32 elsewhere")
    add("--text-tokens", type=int, default=25)
    add("--speech-tokens", type=int, default=250, help="forced length of the answer; 0: as the model ends it")
    add("--reference-seconds", type=float, default=4.0)
    add("--repeat", type=int, default=1, help="runs of each kind; the median is told")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(arguments)
    device = choose_device(args.device)
    default = "fp32,fp16,bf16" if device.type == "cuda" else "fp32"
    precisions = (args.precisions or default).split(",")
    if unknown := set(precisions) - set(PRECISIONS):
        raise SystemExit(f"unknown precision {sorted(unknown)}; choose from {', '.join(PRECISIONS)}")
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary:
        folder: Path = args.model_dir or write_random_folder(Path(temporary), device=str(device))
        report: dict[str, Any] = {
            "machine": describe(str(device)),
            "model": str(args.model_dir or "random, public sizes"),
            "note": "" if args.model_dir else BORROWED,
            "text_tokens": args.text_tokens,
            "speech_tokens": args.speech_tokens,
            "reference_seconds": args.reference_seconds,
            "weights_written_s": time.perf_counter() - began,
            "precisions": {name: measure(folder, str(device), name, args) for name in precisions},
        }
    report["whole_run_s"] = time.perf_counter() - began
    print(table(report))
    if args.out:
        args.out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


def measure(folder: Path, device: str, precision: str, args: argparse.Namespace) -> dict[str, Any]:
    """Seconds of a whole and of a streamed request, and the memory they took, in one precision."""
    began = time.perf_counter()
    engine = CosyVoice(folder, device=device, precision=precision)
    loaded = time.perf_counter() - began
    text = text_of(args.text_tokens, TextTokenizer(folder / TOKENIZER_FOLDER).encode)

    def request(seed: int, stream: bool) -> SynthesisRequest:
        voice = Reference(clip(args.reference_seconds, seed), TRANSCRIPT)
        return SynthesisRequest(Mode.CLONE, text, voice, seed=seed, stream=stream)

    warm_up(engine, request(0, False), args.speech_tokens)
    if device.startswith("cuda"):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    with forced_length(args.speech_tokens):
        whole = [run(engine, request(1 + turn, False)) for turn in range(args.repeat)]
        streamed = [run(engine, request(1 + turn, True)) for turn in range(args.repeat)]
    return {
        "load_s": loaded,
        "language_model_dtype": str(engine._language_model.dtype).removeprefix("torch."),
        "flow_dtype": str(engine._to_wave.flow.encoder_proj.weight.dtype).removeprefix("torch."),
        "whole": median(whole),
        "streamed": median(streamed),
        "memory": memory(device),
    }


def warm_up(engine: CosyVoice, request: SynthesisRequest, tokens: int) -> None:
    """First use of every kernel: a short text, then a conversion, which takes flow and vocoder to full length."""
    with forced_length(min(WARM_UP_TOKENS, tokens)):
        list(engine.synthesize(request))
    source = Reference(clip((tokens or WARM_UP_TOKENS) / TOKEN_RATE))
    for stream in (False, True):
        list(engine.synthesize(replace(request, mode=Mode.CONVERT, text="", source=source, stream=stream)))


def run(engine: CosyVoice, request: SynthesisRequest) -> dict[str, float]:
    """One request from call to last sample. The voice is prepared anew in whole runs, known in streamed ones."""
    began = time.perf_counter()
    arrivals: list[float] = []
    samples = 0
    last = None
    for last in engine.synthesize(request):
        arrivals.append(time.perf_counter() - began)
        samples += len(last.pcm)
    if last is None:
        raise SystemExit("the model gave no sound")
    audio = samples / engine.sample_rate
    result = {stage: getattr(last.timings, stage) for stage in STAGES}
    result |= {
        "total": arrivals[-1],
        "first_chunk": arrivals[0],
        "chunks": float(len(arrivals)),
        "audio": audio,
        "rtf": arrivals[-1] / audio if audio else float("nan"),
        "speech_tokens": round(audio * TOKEN_RATE),
    }
    return result


def median(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    """The median of each number."""
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def memory(device: str) -> dict[str, float]:
    """MB: resident, and on CUDA the peak while speaking (allocated by tensors, reserved from the driver)."""
    found: dict[str, float] = {"resident_mb": round(resident_mb())}
    if device.startswith("cuda"):
        found["cuda_peak_allocated_mb"] = round(torch.cuda.max_memory_allocated(device) / 1e6)
        found["cuda_peak_reserved_mb"] = round(torch.cuda.max_memory_reserved(device) / 1e6)
    return found


def table(report: dict[str, Any]) -> str:
    """The numbers as lines of text."""
    lines = ["  ".join(f"{name:>11}" for name in HEAD)]
    for precision, entry in report["precisions"].items():
        peak = entry["memory"].get("cuda_peak_allocated_mb", entry["memory"]["resident_mb"])
        for kind in ("whole", "streamed"):
            run = entry[kind]
            per_token = 1000 * run["language_model"] / max(run["speech_tokens"], 1)
            numbers = [run[stage] for stage in STAGES]
            numbers += [run["total"], run["first_chunk"], run["audio"], run["rtf"], per_token]
            cells = [f"{precision:>11}", f"{kind:>11}", *(f"{number:11.3f}" for number in numbers)]
            lines.append("  ".join([*cells, f"{peak:11.0f}"]))
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())

"""Token-to-wave batches: `python -m benchmarks.wave_lane` prints milliseconds of flow and vocoder for batch sizes,
lengths and ways to run them, at the public model's size with random weights.

One second stands for a stream's first chunk (chunk by chunk), longer ones for whole segments.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.machine import describe, resident_mb
from benchmarks.random_folder import NANO, random_state
from benchmarks.timing import timed
from inference.checkpoint import load_folder
from inference.models.config import ModelConfig
from inference.models.flow import FlowModel
from inference.models.vocoder import Vocoder
from inference.runtime.packed_flow import FlowJob, PackedFlow
from inference.runtime.packed_vocoder import PackedVocoder
from inference.runtime.vocoder_choice import choose_packed_vocoder
from inference.runtime.vocoder_fused import FusedVocoder
from inference.runtime.vocoder_generator import generator_error, make_generator
from inference.runtime.vocoder_pack import VocoderJob
from inference.runtime.wave_parts import VOCODER_FRAMES

MODES = {  # dtype, graphs, compiled
    "fp32": (torch.float32, False, False),
    "fp16": (torch.float16, False, False),
    "bf16": (torch.bfloat16, False, False),
    "fp32+graphs": (torch.float32, True, False),
    "fp16+graphs": (torch.float16, True, False),
    "fp16+graphs+compile": (torch.float16, True, True),
    "fp16+graphs+kernels": (torch.float16, True, False),  # the vocoder's, as the lane chooses them
}


@dataclass(frozen=True)
class Row:
    """One measurement. Milliseconds a batch; `host` is what the launching thread is kept busy of it."""

    mode: str
    items: int
    seconds: float
    encoder_ms: float
    flow_ms: float
    flow_host_ms: float
    vocoder_ms: float
    vocoder_host_ms: float
    audio_per_second: float
    memory_gb: float


def main(arguments: Sequence[str] | None = None) -> list[Row]:
    options = _options(arguments)
    torch.set_num_threads(options.threads)
    flow, vocoder = load_parts(options.model, options.device)
    print(json.dumps(describe(options.device)))
    rows: list[Row] = []
    print(_line(list(Row.__dataclass_fields__)))
    for mode in options.modes:
        started = time.perf_counter()
        lane = _Ways(mode, flow, vocoder, max(options.batch))
        for seconds in options.seconds:
            for items in options.batch:
                try:
                    row = lane.measure(items, seconds, options.prompt, options.repeat)
                except torch.OutOfMemoryError:
                    print(f"{mode}: {items} x {seconds} s does not fit")
                    continue
                rows.append(row)
                print(_line([_text(value) for value in asdict(row).values()]), flush=True)
        print(f"# {mode}: {time.perf_counter() - started:.0f} s; {lane.note}", flush=True)
        del lane
        if options.device.startswith("cuda"):
            torch.cuda.empty_cache()
    if options.json:
        found = {"machine": describe(options.device), "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return rows


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wave_lane", description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--model", choices=("full", "nano"), default="full")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4, 8, 16, 32])
    parser.add_argument("--seconds", type=float, nargs="+", default=[1.0, 4.0, 10.0])
    parser.add_argument(
        "--modes", nargs="+", choices=MODES, default=["fp32", "fp16", "fp16+graphs", "fp16+graphs+kernels"]
    )
    parser.add_argument("--prompt", type=int, default=100, help="speech tokens of the reference, 25 a second")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    return parser.parse_args(arguments)


def load_parts(model: str, device: str) -> tuple[FlowModel, Vocoder]:
    """Flow and vocoder of the public size with random weights, or of assets/nano, on `device`."""
    if model == "nano":
        folder = load_folder(NANO, device=device)
        return folder.flow, folder.vocoder
    config = ModelConfig()
    generator = torch.Generator(device).manual_seed(7)

    def filled(module: nn.Module) -> nn.Module:
        state = random_state(module, generator)
        module.load_state_dict({key: value.float() for key, value in state.items()}, assign=True)
        return module.to(device).eval()

    with torch.device("meta"):
        flow, vocoder = FlowModel(config.flow), Vocoder(config.vocoder)
    filled(flow)
    filled(vocoder)
    return flow, vocoder


class _Ways:
    """Flow and vocoder in one mode."""

    def __init__(self, mode: str, flow: FlowModel, vocoder: Vocoder, most: int) -> None:
        import copy

        self._mode = mode
        dtype, graphs, compiled = MODES[mode]
        own = flow if dtype == torch.float32 else copy.deepcopy(flow).to(dtype)
        self._flow = PackedFlow(own, most, graphs=graphs, compiled=compiled)
        generator = make_generator(vocoder, dtype, compiled)
        names = f"network {self._flow.velocity_name}, attention {self._flow.attention_name}"
        self.note = f"{names}, vocoder error {generator_error(vocoder, generator):.2g}"
        self._vocoder: PackedVocoder | FusedVocoder
        if mode.endswith("+kernels"):
            self._vocoder = choose_packed_vocoder(vocoder, most, dtype, graphs=graphs)
        else:
            self._vocoder = PackedVocoder(vocoder, most, generator=generator, graphs=graphs)
        self._device = self._flow.device
        on_cuda = self._device.type == "cuda"
        self._stream = (
            torch.cuda.Stream(self._device) if on_cuda else None
        )  # the default one cannot be captured

    def measure(self, items: int, seconds: float, prompt: int, repeat: int) -> Row:
        jobs = [self._job(number, int(25 * seconds), prompt) for number in range(items)]
        made = int(50 * seconds)
        mel = torch.randn(made, 80, device=self._device) - 5
        sounds = [VocoderJob(mel, None, True, number) for number in range(items)]
        if self._stream is not None:
            torch.cuda.reset_peak_memory_stats(self._device)
        with torch.cuda.stream(self._stream):  # does nothing without one
            encoder, _ = self._timed(lambda: self._flow.encode(jobs), repeat)
            flow, flow_host = self._timed(lambda: self._flow.run(jobs), repeat)
            vocoder, vocoder_host = self._timed(lambda: self._sounds(sounds), repeat)
        total = (flow + vocoder) / 1000.0
        return Row(
            self._mode, items, seconds, encoder, flow, flow_host, vocoder, vocoder_host,
            items * seconds / total, self._memory(),
        )  # fmt: skip

    def _job(self, number: int, tokens: int, prompt: int) -> FlowJob:
        cfg = self._flow.flow.cfg
        random = np.random.default_rng(number)
        first_chunk = tokens <= 25
        tokens += cfg.pre_lookahead if first_chunk else 0
        ids = random.integers(0, cfg.vocab_size, prompt + tokens)
        mel = torch.randn(2 * prompt, cfg.mel_bins, device=self._device) - 5
        speaker = torch.randn(cfg.mel_bins, device=self._device)
        return FlowJob(ids, first_chunk, not first_chunk, mel, speaker, 2 * prompt)

    def _sounds(self, jobs: list[VocoderJob]) -> None:
        each = max(1, VOCODER_FRAMES // jobs[0].frames)
        for first in range(0, len(jobs), each):
            self._vocoder.run(jobs[first : first + each])

    @torch.inference_mode()
    def _timed(self, work: Callable[[], object], repeat: int) -> tuple[float, float]:
        """(ms a round, ms of it until the last launch)."""
        for _ in range(3 if self._stream is not None else 1):  # seen, captured, replayed
            work()
        return timed(work, repeat, self._wait)

    def _wait(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()

    def _memory(self) -> float:
        if self._stream is None:
            return resident_mb() / 1000.0
        return torch.cuda.max_memory_reserved(self._device) / 1e9


def _text(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _line(cells: Sequence[str]) -> str:
    return " ".join(f"{cell:>{20 if i == 0 else 16}}" for i, cell in enumerate(cells))


if __name__ == "__main__":
    main()

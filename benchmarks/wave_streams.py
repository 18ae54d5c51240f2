"""Streams through the token-to-wave lane: `python -m benchmarks.wave_streams` prints, for numbers of listeners, the
milliseconds of each round of chunks, flow and vocoder, with pages for the flow and without, seconds of warming up and
the memory. `host`: milliseconds until a round is begun, which is what the launching thread is busy."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import numpy as np
import torch

from benchmarks.wave_lane import load_parts
from inference.frontend.prompt import ModelInput
from inference.models.flow import FlowModel
from inference.models.vocoder import Vocoder
from inference.runtime.schedule import ChunkCall, ChunkSchedule
from inference.runtime.wave_lane import WaveItem, WaveLane
from inference.settings import LaneSettings


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    torch.set_num_threads(1)
    flow, vocoder = load_parts(options.model, options.device)
    if options.half:
        flow = flow.half()
    calls = _calls(options.tokens, options.prompt, flow.cfg.pre_lookahead)
    print("pages GB | listeners | ms of each round, until done and (host) | warm-up s | memory GB")
    for cache in options.cache_gb:
        for count in options.batch:
            settings = LaneSettings(
                max_batch=max(options.batch),
                max_batch_frames=32768,
                flow_cache_bytes=int(cache * 2**30),
                graphs=options.graphs,
                compile=options.compile,
                threads=options.threads,
            )
            rounds, warm = _measure(flow, vocoder, settings, count, calls, options)
            text = " ".join(f"{done:7.1f} ({host:5.1f})" for done, host in rounds)
            memory = torch.cuda.max_memory_reserved() / 1e9 if options.device.startswith("cuda") else 0.0
            print(f"{cache:8.1f} | {count:9d} | {text} | {warm:.1f} | {memory:.1f}", flush=True)
            if memory:
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    on_cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wave_streams", description=__doc__)
    parser.add_argument("--device", default="cuda" if on_cuda else "cpu")
    parser.add_argument("--model", choices=("full", "nano"), default="full")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--cache-gb", type=float, nargs="+", default=[0.0, 16.0])
    parser.add_argument("--tokens", type=int, default=250)
    parser.add_argument("--prompt", type=int, default=100, help="speech tokens of the reference, 25 a second")
    parser.add_argument("--half", action=argparse.BooleanOptionalAction, default=on_cuda)
    parser.add_argument("--graphs", action=argparse.BooleanOptionalAction, default=on_cuda)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--warm", type=int, default=2, help="rounds before the measured one")
    return parser.parse_args(arguments)


def _calls(tokens: int, prompt: int, lookahead: int) -> list[ChunkCall]:
    """The chunk calls of a stream whose tokens are all there."""
    schedule, calls = ChunkSchedule(prompt, lookahead), []
    while call := schedule.next_call(tokens, finished=True):
        calls.append(call)
    return calls


def _measure(
    flow: FlowModel,
    vocoder: Vocoder,
    settings: LaneSettings,
    count: int,
    calls: list[ChunkCall],
    options: argparse.Namespace,
) -> tuple[list[tuple[float, float]], float]:
    lane = WaveLane(flow, vocoder, settings)
    started = time.perf_counter()
    lane.warm_up()
    warm = time.perf_counter() - started
    tokens = tuple(np.random.default_rng(1).integers(0, flow.cfg.vocab_size, options.tokens).tolist())
    voice = _voice(options.prompt, flow)
    best: list[tuple[float, float]] = []
    for _ in range(options.warm + 1):
        streams = [lane.open(voice, seed=number, speed=1.0, exact=False) for number in range(count)]
        best = []
        for call in calls:
            items = [WaveItem(i, stream, tokens, call) for i, stream in enumerate(streams)]
            started = time.perf_counter()
            batch = lane.start(items)
            host = time.perf_counter() - started
            results = lane.finish(batch)
            best.append((1000.0 * (time.perf_counter() - started), 1000.0 * host))
            for result in results:
                if result.error is not None:
                    raise result.error
        for stream in streams:
            lane.close(stream)
    return best, warm


def _voice(prompt: int, flow: FlowModel) -> ModelInput:
    random = np.random.default_rng(0)
    nothing = np.zeros(0, dtype=np.int32)
    cfg = flow.cfg
    return ModelInput(
        text_ids=nothing,
        prompt_text_ids=nothing,
        llm_prompt_tokens=nothing,
        flow_prompt_tokens=random.integers(0, cfg.vocab_size, prompt).astype(np.int32),
        prompt_mel=(random.standard_normal((2 * prompt, cfg.mel_bins)) - 5).astype(np.float32),
        speaker=random.standard_normal(cfg.speaker_dim).astype(np.float32),
        min_tokens=0,
        max_tokens=0,
    )


if __name__ == "__main__":
    main()

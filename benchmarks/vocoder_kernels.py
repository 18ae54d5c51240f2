"""The fused vocoder on a GPU: `python -m benchmarks.vocoder_kernels --json FILE` prints milliseconds and errors beside
the plain half-precision vocoder's for some batches, then times block sizes for each kind of convolution.

Public size, random weights; errors also of the bundled model. `--tune` 0 leaves the block sizes out.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.machine import describe
from benchmarks.random_folder import NANO, random_state
from benchmarks.timing import timed
from inference.checkpoint import load_folder
from inference.models.config import VocoderConfig
from inference.models.vocoder import Vocoder
from inference.runtime.packed_vocoder import PackedVocoder
from inference.runtime.precision import relative_error
from inference.runtime.vocoder_choice import choose_packed_vocoder, distances
from inference.runtime.vocoder_convolve import FusedConvolutions
from inference.runtime.vocoder_fused import FusedSpectrum, FusedVocoder
from inference.runtime.vocoder_generator import generator_error, half_generator
from inference.runtime.vocoder_pack import VocoderJob
from inference.runtime.vocoder_tiles import Tile

BATCHES = ((1, 1.0), (8, 1.0), (1, 10.0), (8, 10.0))
FRAMES = (128, 640, 4096)  # of the packed rows to tune for: a first chunk, one sentence, eight
_LAUNCHES = 6  # of a captured graph

# Block sizes to try, by output channels, for few rows and for many.
_FEW = [
    Tile(64, 64, 64, 4, 4), Tile(64, 64, 64, 4, 6), Tile(64, 64, 128, 4, 3), Tile(64, 32, 64, 4, 6),
    Tile(128, 64, 64, 4, 4), Tile(64, 64, 64, 4, 6, engine=True),
]  # fmt: skip
_MANY = {
    256: [
        Tile(128, 128, 64, 8, 3), Tile(128, 128, 64, 8, 3, registers=128), Tile(128, 128, 64, 4, 4),
        Tile(128, 256, 64, 8, 3), Tile(256, 128, 64, 8, 3), Tile(128, 128, 64, 8, 3, engine=True),
        Tile(128, 256, 64, 8, 4, engine=True), Tile(128, 128, 64, 8, 3, engine=True, registers=128),
    ],
    128: [
        Tile(128, 128, 64, 8, 3), Tile(128, 128, 64, 8, 3, registers=128), Tile(128, 128, 64, 4, 3),
        Tile(256, 128, 64, 8, 3), Tile(64, 128, 64, 4, 4), Tile(128, 128, 128, 8, 2),
        Tile(128, 128, 64, 8, 3, engine=True), Tile(128, 128, 64, 8, 3, engine=True, registers=128),
    ],
    64: [
        Tile(128, 64, 64, 4, 3), Tile(256, 64, 64, 8, 3), Tile(256, 64, 64, 4, 3),
        Tile(128, 64, 64, 4, 4, engine=True), Tile(256, 64, 64, 8, 3, engine=True),
        Tile(128, 128, 64, 8, 3, pair=True), Tile(128, 128, 64, 8, 3, pair=True, registers=128),
        Tile(64, 128, 64, 4, 4, pair=True), Tile(256, 128, 64, 8, 3, pair=True),
    ],
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    options = _options(arguments)
    torch.set_num_threads(1)
    torch.backends.cudnn.allow_tf32 = False  # errors are against float32
    found: dict[str, Any] = {"machine": describe(options.device)}
    print(json.dumps(found["machine"]))
    vocoder = random_vocoder(options.device)
    jobs = list(_tuning_cases(vocoder)) if options.tune else []
    if options.workers:
        _compile_ahead(options, len(jobs))
    with torch.cuda.stream(torch.cuda.Stream()):
        found["errors"] = _errors(vocoder, options.device)
        found["batches"] = [_batch(vocoder, items, seconds, options) for items, seconds in BATCHES]
        if options.profile:
            found["kernels"] = _profile(vocoder, options.device)
        found["tiles"] = _tune(vocoder, jobs)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return found


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vocoder_kernels", description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tune", type=int, default=1)
    parser.add_argument("--profile", type=int, default=1)
    parser.add_argument("--plain", type=int, default=1, help="measure the plain vocoder too")
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument(
        "--workers", type=int, default=min(16, os.cpu_count() or 1), help="processes that compile"
    )
    parser.add_argument("--json", type=Path)
    return parser.parse_args(arguments)


def random_vocoder(device: str) -> Vocoder:
    """Of the public size."""
    generator = torch.Generator().manual_seed(7)
    with torch.device("meta"):
        vocoder = Vocoder(VocoderConfig())
    state = random_state(vocoder, generator)
    vocoder.load_state_dict({key: value.float() for key, value in state.items()}, assign=True)
    return vocoder.to(device).eval()


# ------------------------------------------------------------------------------------------------------ errors
def _errors(vocoder: Vocoder, device: str) -> list[dict[str, Any]]:
    models = [("random", vocoder)]
    if NANO.is_dir():
        models.append(("bundled", load_folder(NANO, device=device).vocoder))
    rows = []
    for name, model in models:
        row = {"model": name, **_model_errors(model)}
        rows.append(row)
        print(row, flush=True)
    return rows


@torch.inference_mode()
def _model_errors(vocoder: Vocoder) -> dict[str, Any]:
    """Relative 2-norms against float32: of the spectrum (plain half, fused), of the sound from it."""
    device, half = vocoder.conv_pre.weight.device, half_generator(vocoder, torch.float16)
    mel = (
        torch.linspace(-9.0, 0.0, 2 * 64 * vocoder.cfg.mel_bins, device=device)
        .view(2, 64, -1)
        .transpose(1, 2)
    )
    source, _ = vocoder.source(torch.full((2, 64), 150.0, device=device), vocoder.from_start(mel))
    excitation = vocoder.fourier.transform(source[:, 0])
    masks: list[Tensor | None] = [None] * (len(vocoder.ups) + 1)

    def lengthen(x: Tensor) -> Tensor:
        return torch.nn.functional.pad(x, (1, 0), mode="reflect")

    expected = vocoder.convolve(mel, excitation, masks, lengthen)
    plain = half.convolve(mel.half(), excitation.half(), masks, lengthen)
    fused = FusedSpectrum.of(vocoder)(mel, excitation)
    sound = vocoder.invert(expected)
    return {
        "spectrum_half": relative_error(plain, expected),
        "spectrum_fused": relative_error(fused, expected),
        "sound_half": relative_error(vocoder.invert(plain), sound),
        "sound_fused": relative_error(vocoder.invert(fused), sound),
        "probe_half": generator_error(vocoder, half),
        **_pitch_errors(vocoder),
        **_choice(vocoder),
    }


def _pitch_errors(vocoder: Vocoder) -> dict[str, float]:
    """Hz from float64's F0, at most: of PyTorch's float32, with and without TF32, and of the kernels."""
    mel = torch.randn(1, vocoder.cfg.mel_bins, 200, generator=torch.Generator().manual_seed(0)) - 5
    exact = copy.deepcopy(vocoder.f0_predictor).cpu().double()(mel.double())
    mel = mel.to(vocoder.conv_pre.weight.device)
    found = {"kernels": FusedSpectrum.of(vocoder).f0(mel)}
    for name, tf32 in (("float32", False), ("tf32", True)):
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=tf32):
            found[name] = vocoder.f0(mel)
    return {f"f0_{name}": float((f0.cpu() - exact).abs().max()) for name, f0 in found.items()}


def _choice(vocoder: Vocoder) -> dict[str, Any]:
    """What the lane would use, what its self-test finds and how long that takes with everything compiled."""
    started = time.perf_counter()
    chosen = choose_packed_vocoder(vocoder, 64, torch.float16)
    torch.cuda.synchronize()
    found: dict[str, Any] = {"choice": type(chosen).__name__, "choice_s": time.perf_counter() - started}
    if isinstance(chosen, FusedVocoder):
        found["distances"] = distances(vocoder, chosen)
    return found


# ----------------------------------------------------------------------------------------------------- batches
def _batch(vocoder: Vocoder, items: int, seconds: float, options: argparse.Namespace) -> dict[str, Any]:
    mel = torch.randn(int(50 * seconds), vocoder.cfg.mel_bins, device=options.device) - 5
    jobs = [VocoderJob(mel, None, seconds > 5, number) for number in range(items)]
    row: dict[str, Any] = {"items": items, "seconds": seconds}
    makes: list[tuple[str, Callable[[], Any]]] = [
        ("fused", lambda: FusedVocoder(vocoder, 64, graphs=True)),
    ]
    if options.plain:
        half = half_generator(vocoder, torch.float16)
        makes.append(("plain", lambda: PackedVocoder(vocoder, 64, generator=half, graphs=True)))
    for name, make in makes:
        way = make()
        started = time.perf_counter()
        for _ in range(3):
            way.run(jobs)
        torch.cuda.current_stream().synchronize()
        row[f"{name}_first_s"] = time.perf_counter() - started
        wait = torch.cuda.current_stream().synchronize
        row[f"{name}_ms"], row[f"{name}_host_ms"] = timed(lambda way=way: way.run(jobs), options.repeat, wait)  # type: ignore[misc]
        del way
        gc.collect()
        torch.cuda.empty_cache()
    print({key: round(value, 3) for key, value in row.items()}, flush=True)
    return row


def _profile(vocoder: Vocoder, device: str) -> list[dict[str, Any]]:
    """What takes how long in the fused vocoder, for a first chunk, one sentence and eight."""
    from torch.profiler import ProfilerActivity, profile

    found = []
    for items, seconds in ((1, 1.0), (1, 10.0), (8, 10.0)):
        way = FusedVocoder(vocoder, 64, graphs=True)
        mel = torch.randn(int(50 * seconds), vocoder.cfg.mel_bins, device=device) - 5
        jobs = [VocoderJob(mel, None, True, number) for number in range(items)]
        for _ in range(3):
            way.run(jobs)
        torch.cuda.current_stream().synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            way.run(jobs)
            torch.cuda.current_stream().synchronize()
        events = [e for e in seen.events() if e.device_type == torch.autograd.DeviceType.CUDA]
        events.sort(key=lambda e: e.time_range.start)
        rows = [(e.name.split("(")[0], round(e.time_range.elapsed_us(), 1)) for e in events]
        busy = sum(us for _, us in rows)
        span = (events[-1].time_range.end - events[0].time_range.start) if events else 0
        print(f"# {items} x {seconds} s: {len(rows)} kernels, busy {busy:.0f} us of {span:.0f}")
        print("  " + " ".join(f"{name[:14]}:{us}" for name, us in rows), flush=True)
        found.append({"items": items, "seconds": seconds, "kernels": rows, "span_us": span})
    return found


# ------------------------------------------------------------------------------------------------------ tuning


def _tuning_cases(vocoder: Vocoder) -> Iterator[Case]:
    for frames in FRAMES:
        for stage in range(len(vocoder.ups)):
            width = vocoder.cfg.base_channels >> (stage + 1)
            tiles = {128: _FEW, 640: _FEW[:2] + _FEW[4:5] + _MANY[width], 4096: _MANY[width]}[frames]
            tiles = [tile for tile in tiles if width % tile.inner == 0]
            for kind, finish in (("conv", "ACTIVATE"), ("conv", "RESIDUAL"), ("mean", "MEAN")):
                yield from ((kind, finish, stage, frames, tile) for tile in tiles)
            plain = [tile for tile in tiles if not (tile.pair or tile.engine or tile.registers)]
            yield from (
                ("up", "UPSAMPLE", stage, frames, tile) for tile in plain[:3] if tile.columns <= width
            )
        small = [Tile(64, 64, 32, 4, 4), Tile(64, 64, 32, 4, 6)]
        yield from (("pre", "MEAN", 0, frames, tile) for tile in small)
        deep = [
            Tile(64, 64, 64, 4, 4), Tile(64, 64, 128, 4, 3), Tile(64, 32, 128, 4, 4), Tile(64, 32, 64, 4, 6),
            Tile(128, 128, 64, 8, 3),
        ]  # fmt: skip
        yield from (("wide", "ELU_SPLIT", 1, frames, tile) for tile in deep)


Case = tuple[str, str, int, int, Tile]  # kind, finish, stage, frames, tile


def _launcher(convolutions: FusedConvolutions, case: Case, branches: int = 3) -> Callable[[], None]:
    """One launch of a case on zeros."""
    kind, finish, number, frames, tile = case
    device = convolutions.device
    flags = torch.ones(frames + 2, dtype=torch.int8, device=device)
    flags[0] = flags[-1] = 0
    rates = convolutions.cfg.upsample_rates

    def rows_of(stage: int) -> tuple[int, int]:
        spread = 1
        for rate in rates[: stage + 1]:
            spread *= rate
        return frames * spread + (stage == len(rates) - 1), spread

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device).half()

    common: dict[str, Any] = {"finish": finish, "tile": tile}
    if kind == "wide":
        pack, scale = convolutions._wide[number]
        x, y = noise(frames, pack.pitch), noise(frames, 2 * pack.width)
        return lambda: convolutions.launch(kind, pack, x, y, flags, frames, spread=1, scale=scale, **common)
    if kind == "pre":
        pack = convolutions._pre
        x, y = noise(frames, 2 * pack.pitch), noise(frames, pack.width)
        return lambda: convolutions.launch(
            kind, pack, x, y, flags, frames, spread=1, pitch=2 * pack.pitch, leak=0.1, **common
        )
    stage, last = convolutions._stages[number], number == len(rates) - 1
    rows, spread = rows_of(number)
    common |= {"spread": spread, "closed": last, "frames": frames}
    x, act, res = (noise(branches, rows, stage.width) for _ in range(3))
    if kind == "up":
        before = noise((rows - last) // rates[number], stage.up.pitch)
        return lambda: convolutions.launch(
            kind, stage.up, before, res[:1], flags, rows, act=act, slopes=stage.up_slopes, res=x[:1], **common
        )
    layer = stage.blocks[-1 if kind == "mean" else 1]
    if finish == "ACTIVATE":
        return lambda: convolutions.launch(
            kind, layer.dilated, x, None, flags, rows, act=act, slopes=layer.middle,
            paired=layer.dilated_paired, **common,
        )  # fmt: skip
    if kind == "mean":
        return lambda: convolutions.launch(
            kind, layer.plain, x, act[:1], flags, rows, res=res, res_count=3, scale=1 / 3, leak=0.1,
            paired=layer.plain_paired, **common,
        )  # fmt: skip
    return lambda: convolutions.launch(
        kind, layer.plain, x, res, flags, rows, act=act, slopes=layer.after, res=res,
        paired=layer.plain_paired, **common,
    )  # fmt: skip


def _tune(vocoder: Vocoder, cases: Sequence[Case]) -> list[dict[str, Any]]:
    convolutions = FusedConvolutions(vocoder)
    rows: list[dict[str, Any]] = []
    for case in cases:
        kind, finish, stage, frames, tile = case
        row = {"kind": kind, "finish": finish, "stage": stage, "frames": frames, "tile": asdict(tile)}
        try:
            row["us"] = _graph_time(_launcher(convolutions, case))
        except Exception as error:  # too much shared memory, say
            row["error"] = f"{type(error).__name__}: {error}"[:200]
        rows.append(row)
    for frames in FRAMES:
        print(f"# {frames} frames: microseconds of block sizes, best first")
        for kind, finish, stage in dict.fromkeys((r["kind"], r["finish"], r["stage"]) for r in rows):
            here = [
                r
                for r in rows
                if (r["kind"], r["finish"], r["stage"], r["frames"]) == (kind, finish, stage, frames)
            ]
            good = sorted((r for r in here if "us" in r), key=lambda r: float(r["us"]))
            print(
                f"  {kind} {finish} {stage}: "
                + "; ".join(f"{r['us']:.1f} {_short(r['tile'])}" for r in good[:6])
            )
    for r in rows:
        if "error" in r:
            print("  failed:", r["kind"], r["finish"], r["stage"], _short(r["tile"]), r["error"])
    return rows


def _short(tile: dict[str, Any]) -> str:
    sizes = "x".join(str(tile[key]) for key in ("rows", "columns", "inner", "warps", "stages"))
    extra = [key for key in ("pair", "engine", "registers") if tile[key]]
    return " ".join([sizes, *extra])


def _graph_time(launch: Callable[[], None]) -> float:
    """Microseconds of one launch, of several in one graph."""
    launch()
    torch.cuda.current_stream().synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        for _ in range(_LAUNCHES):
            launch()
    best = float("inf")
    for _ in range(4):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        best = min(best, begin.elapsed_time(end))
    return 1000.0 * best / _LAUNCHES


def _compile_ahead(options: argparse.Namespace, cases: int) -> None:
    """Compile everything in several processes; Triton keeps the results on disk."""
    started = time.perf_counter()
    with ProcessPoolExecutor(options.workers, multiprocessing.get_context("spawn")) as pool:
        shares = [(options.device, options.tune, part, options.workers) for part in range(options.workers)]
        failed = sum(pool.map(_compile_share, shares))
    print(f"# compiled {cases} cases in {time.perf_counter() - started:.0f} s, {failed} failed", flush=True)


def _compile_share(share: tuple[str, int, int, int]) -> int:
    device, tune, part, parts = share
    vocoder = random_vocoder(device)
    for number, length in enumerate((50, 500, 4000)):
        if number % parts == part:
            FusedVocoder(vocoder, 64).run([VocoderJob(torch.zeros(length, 80, device=device), None, True, 0)])
    failed = 0
    cases = list(dict.fromkeys((*case[:3], 128, case[4]) for case in _tuning_cases(vocoder))) if tune else []
    convolutions = FusedConvolutions(vocoder)
    for case in cases[part::parts]:
        try:
            _launcher(convolutions, case)()
        except Exception:
            failed += 1
    torch.cuda.synchronize()
    return failed


if __name__ == "__main__":
    main()

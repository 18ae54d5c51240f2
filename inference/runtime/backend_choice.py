"""Choosing among backends: which of them are sound, which one is fastest, and remembering it for this machine."""

from __future__ import annotations

import json
import logging
import math
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Generic, TypeVar

import torch
from torch import Tensor

from inference.runtime.backend_report import REPORT
from inference.runtime.graph_files import default_cache_dir, keep, short_hash
from inference.runtime.precision import relative_error

logger = logging.getLogger(__name__)

BackendT = TypeVar("BackendT")

LEVEL_BOUND_DB = 0.1
# Timings of a busy machine differ from run to run: less does not take the place from the one before.
_CLEARLY_FASTER = 0.9
_PACKAGES = ("torch", "onnxruntime", "onnx", "tensorrt", "tensorrt-rtx", "triton")


@dataclass(frozen=True)
class Soundness:
    """Of a backend's result on a fixed input, beside float32's: relative 2-norm error (NaN: not finite or of another
    shape) and difference in level, dB."""

    error: float
    level_db: float

    @staticmethod
    def of(found: Tensor | None, expected: Tensor) -> Soundness:
        if found is None or found.shape != expected.shape:
            return Soundness(math.nan, math.nan)
        found, expected = found.float(), expected.float()
        ratio = float(torch.linalg.vector_norm(found) / torch.linalg.vector_norm(expected).clamp_min(1e-12))
        level = 20.0 * math.log10(ratio) if ratio > 0 else math.nan
        return Soundness(relative_error(found, expected), level)

    def within(self, bound: float) -> bool:
        """Whether it may be used; NaN counts as broken."""
        return self.error <= bound and abs(self.level_db) <= LEVEL_BOUND_DB


@dataclass(frozen=True)
class Verdict:
    """What came of one candidate; `seconds` is None for one that cannot be used, for `reason`."""

    name: str
    error: float
    seconds: float | None
    reason: str = ""


@dataclass(frozen=True)
class Chosen(Generic[BackendT]):
    name: str
    backend: BackendT
    verdicts: tuple[Verdict, ...]


def choose(
    candidates: Mapping[str, Callable[[], BackendT]],
    check: Callable[[BackendT], Soundness],
    bound: float,
    measure: Callable[[BackendT], float],
    limit: float = math.inf,
    tell: Callable[[str], None] = lambda name: None,
) -> Chosen[BackendT] | None:
    """The fastest sound one. Candidates come in order of preference: a later one must be clearly faster. None if none
    is sound. Nothing that a candidate raises gets out. `limit`: seconds after which no second one is begun;
    `tell` hears the name of each one as it is begun."""
    verdicts: list[Verdict] = []
    best: tuple[float, str, BackendT] | None = None
    begun = time.monotonic()
    for name, make in candidates.items():
        if verdicts and time.monotonic() - begun > limit:
            verdicts.append(Verdict(name, math.nan, None, "there was no time left"))
            continue
        tell(name)
        verdict, made = _try(name, make, check, bound, measure)
        verdicts.append(verdict)
        if verdict.seconds is None:
            logger.info("Backend %s is left out: %s", name, verdict.reason)
        elif best is None or verdict.seconds < best[0] * _CLEARLY_FASTER:
            best = verdict.seconds, name, made[0]
    return None if best is None else Chosen(best[1], best[2], tuple(verdicts))


def _try(
    name: str,
    make: Callable[[], BackendT],
    check: Callable[[BackendT], Soundness],
    bound: float,
    measure: Callable[[BackendT], float],
) -> tuple[Verdict, tuple[BackendT, ...]]:
    """The verdict, and the backend itself if it can be used."""
    failures = REPORT.failures
    try:
        backend = make()
        sound = check(backend)
        if REPORT.failures != failures:
            return Verdict(name, math.nan, None, "gave way in its self-test; the log says why"), ()
        if not sound.within(bound):
            reason = f"unsound (error {sound.error:.3g}, level {sound.level_db:.2g} dB)"
            return Verdict(name, sound.error, None, reason), ()
        return Verdict(name, sound.error, measure(backend)), (backend,)
    except Exception as error:  # the libraries' errors share no base class
        return Verdict(name, math.nan, None, f"{type(error).__name__}: {error}"), ()


def sound_backend(
    part: str,
    name: str,
    make: Callable[[], BackendT],
    check: Callable[[BackendT], Soundness],
    bound: float,
    instead: str = "torch",
) -> BackendT | None:
    """The backend of that name once it has passed its self-test; None else, when `instead` is used, which is logged
    and counted."""
    failures = REPORT.failures
    try:
        backend = make()
        sound = check(backend)
    except Exception as error:  # the libraries' errors share no base class
        if isinstance(error, torch.OutOfMemoryError):
            torch.cuda.empty_cache()
        REPORT.drop(part, name, "cannot be used here", error, instead=instead)
        return None
    if REPORT.failures != failures:  # it has logged that itself, and what was tested is what took over
        REPORT.use(part, instead)
        return None
    if not sound.within(bound):
        why = f"is unsound here (error {sound.error:.3g}, level {sound.level_db:.2g} dB)"
        REPORT.drop(part, name, why, instead=instead)
        return None
    REPORT.use(part, name)
    return backend


def best_seconds(
    work: Callable[[], object],
    wait: Callable[[], None] = lambda: None,
    repeat: int = 5,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Of the fastest of some runs, after one to get warm: what else the machine does only adds.

    `wait` is for what runs on beside the host.
    """
    work()
    times = []
    for _ in range(repeat):
        wait()
        started = clock()
        work()
        wait()
        times.append(clock() - started)
    return min(times)


# ----------------------------------------------------------------------------------------------- remembering
def machine_facts(device: torch.device) -> dict[str, str]:
    """What a choice depends on besides the model: processor or GPU, and the libraries' versions."""
    facts = {"device": device.type, "machine": platform.machine(), "processor": _processor()}
    if device.type == "cuda":
        facts["gpu"] = torch.cuda.get_device_name(device)
        facts["cuda"] = str(torch.version.cuda)
    for package in _PACKAGES:
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            continue
    return facts


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


class RememberedChoices:
    """One small file a choice, named by part, machine, versions and model. A file that cannot be read counts as none;
    one that cannot be written is not missed."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or default_cache_dir()

    def path(self, part: str, facts: Mapping[str, str], model: str, names: Sequence[str]) -> Path:
        """`names`: the candidates; with others the choice must be made again."""
        key = short_hash(part, sorted(facts.items()), model, tuple(names))
        return self._folder / f"choice-{part}-{key}.json"

    def get(self, path: Path) -> str | None:
        try:
            found = json.loads(path.read_text(encoding="utf-8"))["name"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return found if isinstance(found, str) else None

    def put(self, path: Path, chosen: Chosen[BackendT], facts: Mapping[str, str]) -> None:
        verdicts = [asdict(verdict) for verdict in chosen.verdicts]
        content = {"name": chosen.name, "verdicts": verdicts, "facts": dict(facts)}
        try:
            keep(path, json.dumps(content, indent=1).encode())
        except OSError as error:
            logger.info("The choice of a backend cannot be kept: %s", error)

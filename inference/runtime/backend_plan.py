"""Which backends the packed lane runs, from the settings and what this machine remembers (`WaveBackends`)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch

from inference.models.vocoder import Vocoder
from inference.runtime.backend_choice import Chosen, RememberedChoices, Soundness, choose, machine_facts
from inference.runtime.backend_report import REPORT
from inference.runtime.background_build import BackgroundBuild
from inference.runtime.graph_files import graph_key
from inference.runtime.packed_flow import PackedFlow
from inference.runtime.wave_backends import (
    SOLVERS,
    VOCODERS,
    AnyVocoder,
    FlowParts,
    VocoderParts,
    lane_names,
)
from inference.runtime.wave_probes import (
    MEL_BOUND,
    solver_seconds,
    solver_soundness,
    spectrum_bound,
    vocoder_seconds,
    vocoder_soundness,
)
from inference.settings import LaneSettings

logger = logging.getLogger(__name__)

_SLOW_TO_MAKE = ("compiled",)
T = TypeVar("T")
P = TypeVar("P")


class WaveBackends:
    """Backends of one packed flow and vocoder. All methods are called from the lane's thread.

    A backend that is asked for or remembered is made and self-tested in `attach`. Where engines are wanted and not
    built yet, a process beside this one builds and measures while the lane serves as it is; `poll` puts in what comes
    of it.
    """

    def __init__(self, settings: LaneSettings, cache_dir: Path | None = None) -> None:
        self._settings = settings
        self._cache_dir = cache_dir
        self._choices = RememberedChoices(cache_dir)
        self._build: BackgroundBuild | None = None
        self._paths: dict[str, Path] = {}
        self._parts: tuple[FlowParts, VocoderParts] | None = None

    def attach(self, flow: PackedFlow, vocoder: AnyVocoder, model: Vocoder) -> AnyVocoder:
        """Both as the lane chose them; `model`: the float32 vocoder. Sets the flow's solver, returns the vocoder."""
        settings, folder = self._settings, self._cache_dir
        self._parts = (
            FlowParts(flow, flow.solver, settings, folder),
            VocoderParts(model, vocoder, settings, folder, settings.max_batch),
        )
        found = self._put_in()
        if self._wants_build():
            self._build = BackgroundBuild.start(settings, flow.device)
        return found

    def poll(self) -> AnyVocoder | None:
        """Put in what was built meanwhile: the vocoder to use from now on. None, at no cost, where nothing changed."""
        if self._parts is None or self._build is None or not self._build.done():
            return None
        built, self._build = self._build.succeeded(), None
        return self._put_in(serving=True) if built else None

    def detach(self, part: str) -> None:
        """The lane has made itself anew (in float32), and that part is what it chose."""
        self._build = self._parts = None
        REPORT.use(part, "torch")

    def _put_in(self, serving: bool = False) -> AnyVocoder:
        flow, vocoder = self._attached()
        names, own = self._settings.backends, lane_names(flow.packed, vocoder.packed)
        for part, name in own.items():
            REPORT.use(part, name)
        wanted = self._wanted("flow", names.flow, own["flow"], serving)
        solver = None
        if wanted != own["flow"]:
            solver = ready("flow", wanted, SOLVERS, flow, solver_soundness, MEL_BOUND, own["flow"])
        flow.packed.solver = solver or flow.chosen
        wanted = self._wanted("vocoder", names.vocoder, own["vocoder"], serving)
        if wanted == own["vocoder"]:
            return vocoder.packed
        bound = spectrum_bound(vocoder)
        other = ready("vocoder", wanted, VOCODERS, vocoder, vocoder_soundness, bound, own["vocoder"])
        return other or vocoder.packed

    def _attached(self) -> tuple[FlowParts, VocoderParts]:
        if self._parts is None:
            raise ValueError("nothing is attached")
        return self._parts

    def _wanted(self, part: str, name: str, own: str, serving: bool) -> str:
        if name == "auto":
            name = self._choices.get(self.choice_path(part)) or own
        # Compiling takes seconds in which nothing sounds: at the next start.
        return own if serving and name in _SLOW_TO_MAKE else name

    def _wants_build(self) -> bool:
        """Engines are missing, or it was never measured whether they win."""
        names = self._settings.backends
        if names.model_dir is None:
            return False
        used = REPORT.used()
        for part, name in (("flow", names.flow), ("vocoder", names.vocoder)):
            if name == "tensorrt" and used.get(part) != name:
                return True
            if name == "auto" and self._choices.get(self.choice_path(part)) is None:
                return True
        return False

    # ------------------------------------------------------------------------------------------- measuring
    def choice_path(self, part: str) -> Path:
        """Where the choice of a part is kept."""
        if part not in self._paths:  # hashing the weights takes a while
            self._paths[part] = self._choice_path(part)
        return self._paths[part]

    def _choice_path(self, part: str) -> Path:
        flow, vocoder = self._attached()
        facts = machine_facts(flow.packed.device)
        if part == "flow":
            network = flow.packed.flow.decoder.estimator
            return self._choices.path(part, facts, graph_key("velocity", network, network.cfg), list(SOLVERS))
        key = graph_key("spectrum", vocoder.model, vocoder.model.cfg)
        return self._choices.path(part, facts, key, list(VOCODERS))

    def measure(self, part: str) -> Chosen[Any]:
        """Try all backends of a part and remember the fastest sound one. Engines must be built before."""
        flow, vocoder = self._attached()
        found: Chosen[Any]
        if part == "flow":
            found = _chosen(SOLVERS, flow, solver_soundness, MEL_BOUND, solver_seconds)
        else:
            found = _chosen(VOCODERS, vocoder, vocoder_soundness, spectrum_bound(vocoder), vocoder_seconds)
        self._choices.put(self.choice_path(part), found, machine_facts(flow.packed.device))
        return found


def _chosen(
    makers: Mapping[str, Callable[[P], T]],
    parts: P,
    check: Callable[[P, T], Soundness],
    bound: float,
    seconds: Callable[[P, T], float],
) -> Chosen[T]:
    found = choose(
        {name: lambda make=make: make(parts) for name, make in makers.items()},  # type: ignore[misc]
        lambda backend: check(parts, backend),
        bound,
        lambda backend: seconds(parts, backend),
    )
    # Random weights may be beyond half precision: torch has its own test of that and is what is left.
    return found or Chosen("torch", makers["torch"](parts), ())


def ready(
    part: str,
    name: str,
    makers: Mapping[str, Callable[[P], T]],
    parts: P,
    check: Callable[[P, T], Soundness],
    bound: float,
    own: str,
) -> T | None:
    """The backend of that name once it has passed its self-test; None (what the lane has of its `own`) else, which is
    logged and counted."""
    if name not in makers:
        REPORT.drop(part, name, "is not there for this device", instead=own)
        return None
    try:
        backend = makers[name](parts)
        sound = check(parts, backend)
    except Exception as error:  # the libraries' errors share no base class
        if isinstance(error, torch.OutOfMemoryError):
            torch.cuda.empty_cache()
        REPORT.drop(part, name, "cannot be used here", error, instead=own)
        return None
    if not sound.within(bound):
        why = f"is unsound here (error {sound.error:.3g}, level {sound.level_db:.2g} dB)"
        REPORT.drop(part, name, why, instead=own)
        return None
    REPORT.use(part, name)
    return backend

"""Which backends the packed lane runs, from the settings and what this machine remembers (`WaveBackends`)."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from inference.models.vocoder import Vocoder
from inference.runtime.backend_choice import (
    Chosen,
    RememberedChoices,
    Soundness,
    choose,
    machine_facts,
    sound_backend,
)
from inference.runtime.backend_generator import BackendGenerator
from inference.runtime.backend_report import REPORT
from inference.runtime.background_build import BackgroundBuild
from inference.runtime.graph_files import graph_key
from inference.runtime.packed_flow import PackedFlow
from inference.runtime.wave_backends import SOLVERS, VOCODERS, AnyVocoder, FlowParts, VocoderParts
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
P = TypeVar("P", FlowParts, VocoderParts)


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
        self._vocoder: AnyVocoder | None = None  # what the lane was given

    def hold(self, flow: PackedFlow, vocoder: AnyVocoder, model: Vocoder) -> None:
        """Both as the lane chose them; `model`: the float32 vocoder. Nothing is put in, so that all can be measured."""
        settings, folder = self._settings, self._cache_dir
        self._parts = (
            FlowParts(flow, flow.solver, settings, folder),
            VocoderParts(model, vocoder, settings, folder, settings.max_batch),
        )

    def attach(self, flow: PackedFlow, vocoder: AnyVocoder, model: Vocoder) -> AnyVocoder:
        """As `hold`, and sets the flow's solver; returns the vocoder."""
        self.hold(flow, vocoder, model)
        found = self._put_in()
        if REPORT.used()["flow"] == "torch":
            flow.velocity_name = "torch"  # of its streams as well
        if self._wants_build():
            self._build = BackgroundBuild.start(self._settings, flow.device)
        return found

    def poll(self) -> AnyVocoder | None:
        """Put in what was built meanwhile, or what the lane had before a backend that failed: the vocoder to use from
        now on. None, at no cost, where nothing changed."""
        if self._parts is None:
            return None
        if self._build is not None and self._build.done(busy=True):
            built, self._build = self._build.succeeded(), None
            if built:
                return self._put_in(serving=True)
        return self._back_to_kernels(self._parts[1])

    def _back_to_kernels(self, parts: VocoderParts) -> AnyVocoder | None:
        """Where a backend beside them failed, which PyTorch has made up for so far."""
        generator = getattr(self._vocoder, "generator", None)
        if not isinstance(generator, BackendGenerator) or generator.backend is not None:
            return None
        self._vocoder = parts.packed
        if parts.own == "torch":
            return None
        REPORT.use("vocoder", parts.own)
        return parts.packed

    def detach(self, part: str) -> None:
        """The lane has made itself anew (in float32), and that part is what it chose."""
        if self._build is not None:
            self._build.stop()
        self._build = self._parts = None
        REPORT.use(part, "torch")

    def _put_in(self, serving: bool = False) -> AnyVocoder:
        flow, vocoder = self._attached()
        names = self._settings.backends
        wanted = self._wanted("flow", names.flow, flow.own, serving)
        solver = self._ready("flow", wanted, SOLVERS, flow, solver_soundness, lambda: MEL_BOUND)
        flow.packed.solver = solver or flow.chosen
        wanted = self._wanted("vocoder", names.vocoder, vocoder.own, serving)
        other = self._ready(
            "vocoder", wanted, VOCODERS, vocoder, vocoder_soundness, lambda: spectrum_bound(vocoder)
        )
        self._vocoder = other or vocoder.packed
        return self._vocoder

    def _ready(
        self,
        part: str,
        name: str,
        makers: Mapping[str, Callable[[P], T]],
        parts: P,
        check: Callable[[P, T], Soundness],
        bound: Callable[[], float],
    ) -> T | None:
        """The backend of that name; None: what the lane has of its own, by choice or for want of another."""
        if name == parts.own:
            REPORT.use(part, name)
            return None
        if name not in makers:
            REPORT.drop(part, name, "is not there for this device", instead=parts.own)
            return None
        return sound_backend(
            part,
            name,
            lambda: makers[name](parts),
            lambda backend: check(parts, backend),
            bound(),
            instead=parts.own,
        )

    def _attached(self) -> tuple[FlowParts, VocoderParts]:
        if self._parts is None:
            raise ValueError("nothing is attached")
        return self._parts

    def _wanted(self, part: str, name: str, own: str, serving: bool) -> str:
        if name == "auto":
            name = self._choices.get(self.choice_path(part)) or own
            if name == "triton":
                return own  # the lane has said why, if it is not that
        # Compiling takes seconds in which nothing sounds: at the next start.
        return own if serving and name in _SLOW_TO_MAKE else name

    def _wants_build(self) -> bool:
        """Engines are missing, or it was never measured what is fastest."""
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
        if part == "flow":
            network = flow.packed.flow.decoder.estimator
            key = graph_key("velocity", network, network.cfg)
            return self._choices.path(part, self._facts(), key, list(SOLVERS))
        key = graph_key("spectrum", vocoder.model, vocoder.model.cfg)
        return self._choices.path(part, self._facts(), key, list(VOCODERS))

    def _facts(self) -> dict[str, str]:
        flow, vocoder = self._attached()
        return machine_facts(flow.packed.device) | {"precision": f"{flow.dtype}, {vocoder.dtype}"}

    def measure(
        self, part: str, limit: float = math.inf, tell: Callable[[str], None] = lambda name: None
    ) -> Chosen[Any]:
        """Try all backends of a part. Engines must be built before. `limit`, `tell`: see `choose`."""
        flow, vocoder = self._attached()
        if part == "flow":
            return _chosen(SOLVERS, flow, solver_soundness, MEL_BOUND, solver_seconds, limit, tell)
        bound = spectrum_bound(vocoder)
        return _chosen(VOCODERS, vocoder, vocoder_soundness, bound, vocoder_seconds, limit, tell)

    def remember(self, part: str, found: Chosen[Any]) -> None:
        """For the coming starts on this machine."""
        self._choices.put(self.choice_path(part), found, self._facts())


def _chosen(
    makers: Mapping[str, Callable[[P], T]],
    parts: P,
    check: Callable[[P, T], Soundness],
    bound: float,
    seconds: Callable[[P, T], float],
    limit: float,
    tell: Callable[[str], None],
) -> Chosen[T]:
    found = choose(
        {name: partial(make, parts) for name, make in makers.items()},
        lambda backend: check(parts, backend),
        bound,
        lambda backend: seconds(parts, backend),
        limit,
        tell,
    )
    # Random weights may be beyond half precision: torch has its own test of that and is what is left.
    return found or Chosen("torch", makers["torch"](parts), ())

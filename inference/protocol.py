"""What a pool and its workers say to each other over a pipe: plain dataclasses, pickled. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from inference.settings import LaneSettings
from inference.types import AudioChunk, SynthesisError, Voice

# Exit codes of a worker.
DRAINED = 0
FAULT = 70  # the device or a lane failed in a way that only a new process cures
LOAD_FAILED = 71


@dataclass(frozen=True)
class WorkerSettings:
    """What one worker needs to know; see `PoolSettings`. Goes to the process at its start."""

    name: str
    model_dir: str
    lexicon: str | None
    device: str
    precision: str
    vocoder_backend: str
    flow_backend: str
    concurrency: int
    lanes: LaneSettings | None
    low_memory: bool
    memory: int
    warm_up: bool
    front_end_threads: int
    run_ahead: int
    heartbeat: float
    threads: int  # CPU threads of this worker
    log_json: bool = False


# ------------------------------------------------------------------------------------------- to a worker
@dataclass(frozen=True)
class Speak:
    """Serve a request. `payload` is the pickled `SynthesisRequest`, `waited` its seconds in the pool so far."""

    key: int
    payload: bytes
    waited: float = 0.0


@dataclass(frozen=True)
class Prepare:
    """Prepare a voice. `payload` is the pickled (`Reference`, exact)."""

    key: int
    payload: bytes
    waited: float = 0.0


@dataclass(frozen=True)
class Cancel:
    """Nobody wants `key` any more. Unknown keys are ignored."""

    key: int


@dataclass(frozen=True)
class Drain:
    """Take nothing new, finish what is live, exit."""


@dataclass(frozen=True)
class Stop:
    """Exit now."""


ToWorker = Speak | Prepare | Cancel | Drain | Stop


# ----------------------------------------------------------------------------------------- from a worker
@dataclass(frozen=True)
class Loading:
    """Progress before `Ready`: "loading", "warming up"."""

    stage: str


@dataclass(frozen=True)
class Ready:
    """Loaded and warm."""

    device: str
    sample_rate: int
    presets: tuple[str, ...]
    concurrency: int
    lanes: LaneSettings
    seconds: float  # since the process started
    backends: dict[str, str] = field(default_factory=dict)  # part of the model → what runs it


@dataclass(frozen=True)
class Spoken:
    key: int
    chunk: AudioChunk


@dataclass(frozen=True)
class Prepared:
    key: int
    voice: Voice


@dataclass(frozen=True)
class Failed:
    """`key` has ended with an error."""

    key: int
    error: SynthesisError


@dataclass(frozen=True)
class Refused:
    """`key` came when the worker was already leaving; another worker should have it."""

    key: int


@dataclass(frozen=True)
class Draining:
    """The worker was told to leave (SIGTERM or `Drain`) and takes nothing new."""


@dataclass(frozen=True)
class Broken:
    """The last words of a worker: it could not load, or a lane failed."""

    error: SynthesisError


@dataclass(frozen=True)
class WorkerStats:
    """What a worker is doing. Shares are of the last seconds, 0 to 1."""

    live: int = 0  # requests
    preparing: int = 0  # of them, still in the front end
    drawing: int = 0  # segments in the language-model lane
    waiting: int = 0  # segments that wait for a slot
    speech_busy: float = 0.0
    wave_busy: float = 0.0
    stalled: float = 0.0  # seconds that a lane has spent in the step it is in
    memory_bytes: int = 0  # of the process
    device_bytes: int = 0  # allocated on the device
    lane_bytes: int = 0  # set aside by the lanes
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    chunks: int = 0
    audio_seconds: float = 0.0
    slots: int = 0  # of the language-model lane
    speech_steps: int = 0  # decode steps, and the segments that they served
    speech_rows: int = 0
    wave_batches: int = 0  # token-to-wave batches, and the items in them
    wave_items: int = 0
    voice_hits: int = 0  # clips that were known already, and those that were not
    voice_misses: int = 0
    vocoder_backend: str = "torch"  # in use, as is the flow's
    flow_backend: str = "torch"
    backend_failures: int = 0  # backends that were given up for torch


@dataclass(frozen=True)
class Heartbeat:
    stats: WorkerStats = field(default_factory=WorkerStats)


FromWorker = Loading | Ready | Spoken | Prepared | Failed | Refused | Draining | Broken | Heartbeat

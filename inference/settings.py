"""How a pool of workers is cut: processes, places, waiting room, and what each lane may hold.

The three numbers an operator sets, and what they mean:

* `max_workers`: worker processes. On CUDA one a device and never more than there are devices; on the CPU one unless
  asked for more (each loads the model again).
* `concurrency`: requests that one worker serves at once. Its lanes are sized for as many, so it also decides how much
  memory is set aside.
* `queue_size`: requests that may wait beyond those. The next one is refused at once ("busy"), not kept hanging.

So `max_workers * concurrency` requests sound together and `queue_size` wait. A page that has its own queue in front of
the pool (Gradio) should let `max_workers * concurrency` through at once and keep its own `max_size` at `queue_size`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from inference.types import RequestError

if TYPE_CHECKING:
    from inference.models.config import ModelConfig

GIB = 2**30
MAX_CONTEXT = 32768  # positions the language model was made for
# A prompt of 30 s (750 tokens) and its transcript, 80 text tokens, and 20 speech tokens for each of these.
USUAL_CONTEXT = 3072
USUAL_REQUESTS = 64  # that a worker on a GPU serves at once unless told otherwise; others have fewer places
LOW_MEMORY_BYTES = 8 * GIB  # a device with less is treated as a small one
_KV_SHARE = 0.3  # of the free memory that the language model's keys and values may take
# Of the free memory that the streams' pages may grow to: on the CPU, and on CUDA.
_CPU_FLOW_CACHE_SHARE, _FLOW_CACHE_SHARE = 0.25, 0.2
_USUAL_STREAM_SECONDS = 14
# So few requests at once leave the GPU time to compute streams anew; only their voices' prompts are worth memory.
_FEW_REQUESTS = 8
_PAGES_OF_FEW = 6
_PAGES_OF_SMALL, _SMALL_FLOW_CACHE_SHARE = 4, 0.12
_CPU_FLOW_CACHE = GIB // 2  # a minute of the bundled model's sound


@dataclass(frozen=True)
class BackendSettings:
    """What computes the vocoder's convolutions and the flow's velocity on CUDA: names of `runtime.backends`.

    `model_dir` is what a background build of engines loads; without one none is started.
    """

    vocoder: str = "auto"
    flow: str = "auto"
    model_dir: str | None = None
    precision: str = "auto"


@dataclass(frozen=True)
class LaneSettings:
    """What one worker's two lanes may use.

    `slots`: segments whose speech tokens are drawn at once; `context`: positions of the longest of them (prompt, text
    and speech); `prefill_tokens`: prompt symbols taken in between two decode steps; `max_batch`: segments or chunks of
    one token-to-wave batch; `max_batch_frames`: mel frames of it, prompt and padding included; `flow_cache_bytes`:
    what the streams' pages may grow to, 0 for none; `graphs`: capture CUDA graphs; `compile`: use torch.compile;
    `threads`: CPU threads of the token-to-wave lane; `backends`: on CUDA.
    """

    slots: int = 8
    context: int = USUAL_CONTEXT
    prefill_tokens: int = 1024
    max_batch: int = 8
    max_batch_frames: int = 8192
    flow_cache_bytes: int = 0
    graphs: bool = False
    compile: bool = False
    threads: int = 1
    backends: BackendSettings = BackendSettings()


@dataclass(frozen=True)
class PoolSettings:
    """Everything about a pool that can be chosen. Times are in seconds.

    `devices`: names such as "cuda:0" or "cpu", one worker each; a name may occur more than once. "auto" stands for all
    CUDA devices, or the CPU, and "cuda" for all CUDA devices. `max_workers` 0 takes one worker a device.
    `concurrency` 0 and `lanes` None are chosen by each worker for its device, model and free memory (`settings_for`).
    `low_memory` chooses for a 6 GB card; `memory`: bytes of its device that a worker may take, model included, 0 for
    all that is free (CUDA only). `front_end_threads`: clips and texts prepared at once by a worker, 0 for half of its
    cores, 2 to 8. `run_ahead`: segments of one text that may be drawn before their turn.
    """

    model_dir: Path
    devices: tuple[str, ...] = ("auto",)
    lexicon: Path | None = None  # the user's readings of words
    precision: str = "auto"
    vocoder_backend: str = "auto"  # see `runtime.backends`
    flow_backend: str = "auto"
    max_workers: int = 0
    concurrency: int = 0
    queue_size: int = 32
    lanes: LaneSettings | None = None
    low_memory: bool = False
    memory: int = 0
    warm_up: bool = True
    front_end_threads: int = 0
    run_ahead: int = 2
    start_timeout: float = 900.0  # load, capture and compile
    heartbeat: float = 1.0
    silence_timeout: float = 60.0  # a ready worker silent for so long is killed, a loading one after three
    stall_timeout: float = 300.0  # and so is one whose lane is stuck in one step
    longest_backoff: float = 30.0  # between two attempts to restart a worker
    listener_timeout: float = 600.0  # sound that nobody takes for so long is thrown away
    log_json: bool = False  # how workers write their log

    def __post_init__(self) -> None:
        """Raises `RequestError("bad_setting")`."""
        _check("devices", len(self.devices), 1)
        for name in ("max_workers", "concurrency", "queue_size", "memory", "front_end_threads", "run_ahead"):
            _check(name, getattr(self, name), 0)


def _check(name: str, value: int, least: int) -> None:
    if value < least:
        raise RequestError(
            "bad_setting", f"{name} is {value}; the least is {least}.", name=name, value=value, least=least
        )


def settings_for(
    device: str,
    config: ModelConfig,
    free_memory: int,
    *,
    threads: int = 1,
    concurrency: int = 0,
    half: bool = False,
    low_memory: bool = False,
) -> LaneSettings:
    """Sensible lanes for a device of which `free_memory` bytes are free once the model is loaded.

    `threads`: CPU cores to use; `concurrency`: requests to serve at once, 0 for as many as is sensible;
    `half`: the model runs in half precision.
    """
    if not device.startswith("cuda"):
        wanted = concurrency or max(8, 2 * threads)
        slots = _fitting_slots(config, wanted, USUAL_CONTEXT, int(free_memory * _KV_SHARE), 4)
        return LaneSettings(
            slots=slots,
            prefill_tokens=256,  # nano: some 50 ms on one core, for which running streams stand still
            max_batch=max(4, 2 * threads),
            flow_cache_bytes=min(_CPU_FLOW_CACHE, int(free_memory * _CPU_FLOW_CACHE_SHARE)),
            threads=threads,
        )
    bytes_each = 2 if half else 4
    small = low_memory or free_memory < LOW_MEMORY_BYTES
    wanted = concurrency or (8 if small else USUAL_REQUESTS)
    slots = _fitting_slots(config, wanted, USUAL_CONTEXT, int(free_memory * _KV_SHARE), bytes_each)
    page = _page_bytes(config, bytes_each)
    if small:
        return LaneSettings(
            slots=slots,
            prefill_tokens=512,
            max_batch=4,
            max_batch_frames=3072,
            flow_cache_bytes=min(int(free_memory * _SMALL_FLOW_CACHE_SHARE), _PAGES_OF_SMALL * page),
            graphs=True,
        )
    few = slots <= _FEW_REQUESTS
    return LaneSettings(
        slots=slots,
        prefill_tokens=2048 if few else 4096,
        max_batch=_FEW_REQUESTS if few else min(64, slots),
        max_batch_frames=6144 if few else 12288,
        flow_cache_bytes=min(int(free_memory * _FLOW_CACHE_SHARE), _flow_cache_pages(config, slots) * page),
        graphs=True,
    )


def slot_bytes(config: ModelConfig, context: int, bytes_each: int) -> int:
    """Keys and values of one slot of `context` positions."""
    lm = config.language_model
    return 2 * lm.num_layers * lm.num_kv_heads * lm.head_dim * context * bytes_each


def _flow_cache_pages(config: ModelConfig, slots: int) -> int:
    """For the prompts of a few voices, and for all of a usual stream's chunks beyond a few requests."""
    chunk = config.flow.encoder.chunk_tokens / config.token_rate  # seconds
    return _PAGES_OF_FEW + max(0, slots - _FEW_REQUESTS) * round(_USUAL_STREAM_SECONDS / chunk)


def _page_bytes(config: ModelConfig, bytes_each: int) -> int:
    """What the incremental flow keeps of a chunk (see `paged_memory`)."""
    from inference.runtime.paged_memory import PageShape

    return PageShape.of(config.flow).values * bytes_each


def _fitting_slots(config: ModelConfig, wanted: int, context: int, budget: int, bytes_each: int) -> int:
    return max(1, min(wanted, budget // max(1, slot_bytes(config, context, bytes_each))))


def with_workers(settings: PoolSettings, devices: tuple[str, ...]) -> PoolSettings:
    """`settings` with the devices that its workers run on, one each, once it is known which `devices` there are.

    `max_workers` beyond the number of CUDA devices is cut to it: two processes on one GPU only take turns. CPU
    workers are repeated as often as asked.
    """
    wanted = settings.max_workers or len(devices)
    chosen = list(devices[:wanted])
    on_cpu = [device for device in devices if device == "cpu"]
    while len(chosen) < wanted and on_cpu:
        chosen.append("cpu")
    return replace(settings, devices=tuple(chosen), max_workers=len(chosen))

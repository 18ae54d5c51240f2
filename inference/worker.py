"""The process around one scheduler: loads a model folder, serves what comes over the pipe, tells how it is.

Its life: `Loading`, `Ready`, then `Spoken`/`Failed`/`Prepared` for each key and a `Heartbeat` every second. SIGTERM or
`Drain` make it finish what is live and leave; `Stop`, a closed pipe or a dead parent end it at once. Exit codes are in
`inference.protocol`.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import sys
import threading
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from inference.collector import collector_off
from inference.devices import release_memory, share_freed_memory
from inference.logs import setup_logging
from inference.protocol import (
    DRAINED,
    FAULT,
    LOAD_FAILED,
    Broken,
    Cancel,
    Drain,
    Draining,
    Failed,
    FromWorker,
    Heartbeat,
    Loading,
    Prepare,
    Ready,
    Refused,
    Speak,
    Stop,
    ToWorker,
    WorkerSettings,
    WorkerStats,
)
from inference.types import EngineError, SynthesisError

# torch is imported by the functions that need it: the pipe is answered before, and the parent imports this file too.
if TYPE_CHECKING:
    from inference.loading import LoadedModels
    from inference.scheduler import Scheduler
    from inference.settings import LaneSettings

logger = logging.getLogger(__name__)

# A decode step takes 1 ms on a GPU and lets go of the interpreter some ten times: it must not wait 5 ms each time for
# another thread's Python.
_SWITCH_SECONDS = 0.0001
_FRONT_END_CORES = 4  # of one clip in work
_LAST_WORDS = 2.0  # seconds to get them out
# oneDNN makes its kernels anew for every length of sound, some 27 MB each time. Its own limit is 1024, many hundred MB;
# a piece of sound needs about 60.
_KERNELS_KEPT = "192"


def run_worker(connection: Connection, settings: WorkerSettings) -> None:
    """Entry point of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then tells us
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    sys.setswitchinterval(_SWITCH_SECONDS)
    share_freed_memory()
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", _KERNELS_KEPT)  # read when torch first needs one
    setup_logging(settings.log_json, logging.WARNING, settings.name)
    logging.getLogger("inference").setLevel(logging.INFO)  # how far a start has come
    _Worker(connection, settings).run()


class Outbox:
    """Messages to the parent in order, sent by a thread of its own: a slow reader never holds up a lane."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._queue: SimpleQueue[FromWorker | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._send, name="outbox", daemon=True)
        self._thread.start()

    def put(self, message: FromWorker) -> None:
        self._queue.put(message)

    def close(self, timeout: float) -> None:
        """Send what is left, for at most `timeout` seconds."""
        self._queue.put(None)
        self._thread.join(timeout)

    def _send(self) -> None:
        while (message := self._queue.get()) is not None:
            try:
                self._connection.send(message)
            except OSError:  # the parent has gone: the reader notices too
                return


class _Worker:
    def __init__(self, connection: Connection, settings: WorkerSettings) -> None:
        self._connection = connection
        self._settings = settings
        self._parent = os.getppid()
        self._begun = time.perf_counter()
        self._outbox = Outbox(connection)
        self._leave = threading.Event()
        self._accepting = threading.Lock()  # nothing is accepted once `_leave` is set
        self._scheduler: Scheduler | None = None

    def run(self) -> None:
        signal.signal(signal.SIGTERM, self._on_sigterm)
        self._in_thread(self._read)
        self._in_thread(self._beat)
        try:
            scheduler = self._load()
        except BaseException as error:
            self._exit(LOAD_FAILED, _last_words(error, "The worker could not start"))
        self._leave.wait()  # a signal's handler runs in this thread meanwhile
        with self._accepting:
            self._outbox.put(Draining())
        scheduler.drain()
        self._exit(DRAINED)

    # --------------------------------------------------------------------------------------------- loading
    def _load(self) -> Scheduler:
        self._outbox.put(Loading("loading"))
        from inference import device_memory

        chosen = self._settings
        on_cuda = chosen.device.startswith("cuda")
        growing = on_cuda and device_memory.choose_allocator(chosen.concurrency, chosen.low_memory)
        with collector_off():
            import torch

            from inference.frontend.lexicon import read_lexicon
            from inference.loading import load_models
            from inference.runtime.kernel_plan import build_kernels
            from inference.runtime.language_model_lane import LanguageModelLane, make_runner
            from inference.runtime.spare_cores import SpareCores
            from inference.runtime.wave_lane import WaveLane
            from inference.scheduler import Scheduler, SchedulerSettings

        # On the CPU each piece of work has one thread, so that its bits depend on nothing else and cores are shared by
        # many pieces. Beside a GPU the CPU has the front end alone.
        if growing:
            device_memory.settle_allocator(chosen.device)
        each = min(_FRONT_END_CORES, chosen.threads // chosen.front_end_threads) if on_cuda else 1
        torch.set_num_threads(max(1, each))
        words = None if chosen.lexicon is None else read_lexicon(Path(chosen.lexicon))
        models = load_models(
            chosen.model_dir,
            chosen.device,
            chosen.precision,
            threads=max(1, each),
            lexicon=words,
            vocoder_backend=chosen.vocoder_backend,
            flow_backend=chosen.flow_backend,
        )
        if on_cuda:  # whoever asks for the GPU in use means this one
            torch.cuda.set_device(models.device)
        if on_cuda and chosen.memory:
            device_memory.limit_memory(models.device, chosen.memory)
        self._tell_progress("loaded the model")
        lanes = self._with_backends(chosen.lanes or self._lanes_for(models))
        build_kernels(models.language_model, models.flow, models.vocoder, lanes, self._tell_progress)
        self._tell_progress("warming up")
        cores = None if on_cuda else SpareCores(max(1, lanes.threads))
        speech = LanguageModelLane(
            models.language_model, lanes, make_runner(models.language_model, lanes, cores)
        )
        device_memory.release(models.device, workspaces=True)
        self._tell_progress("warming up: the language model's lane is there")
        wave = WaveLane(models.flow, models.vocoder, lanes, cores=cores)
        self._tell_progress("warming up: the token-to-wave lane is there")
        scheduler = Scheduler(
            models.front_end,
            speech,
            wave,
            SchedulerSettings(
                sample_rate=models.config.sample_rate,
                lookahead=models.config.flow.pre_lookahead,
                slots=lanes.slots,
                max_batch=lanes.max_batch,
                front_end_threads=chosen.front_end_threads,
                run_ahead=chosen.run_ahead,
                warm_up=chosen.warm_up,
            ),
            emit=self._outbox.put,
            on_fault=self._on_fault,
            lane_scope=lambda: _lane_scope(models.device),
            progress=self._tell_progress,
        )
        # Self-tests leave a gigabyte of blocks behind that nobody will use.
        device_memory.release(models.device)
        scheduler.start()
        device_memory.release(models.device)
        release_memory()
        self._scheduler = scheduler
        self._outbox.put(
            Ready(
                device=str(models.device),
                sample_rate=models.config.sample_rate,
                presets=tuple(models.front_end.presets),
                concurrency=chosen.concurrency or lanes.slots,
                lanes=lanes,
                seconds=time.perf_counter() - self._begun,
                backends=models.backends(),
            )
        )
        return scheduler

    def _tell_progress(self, stage: str) -> None:
        logger.info("%s (%.1f s)", stage, time.perf_counter() - self._begun)
        self._outbox.put(Loading(stage))

    def _with_backends(self, lanes: LaneSettings) -> LaneSettings:
        """On the CPU the models themselves have theirs (`load_models`)."""
        from inference.settings import BackendSettings

        chosen = self._settings
        if not chosen.device.startswith("cuda"):
            return lanes
        names = BackendSettings(
            chosen.vocoder_backend, chosen.flow_backend, chosen.model_dir, chosen.precision
        )
        return replace(lanes, backends=names)

    def _lanes_for(self, models: LoadedModels) -> LaneSettings:
        import torch

        from inference.devices import free_memory
        from inference.settings import settings_for

        return settings_for(
            models.device.type,
            models.config,
            free_memory(models.device, self._settings.memory),
            threads=self._settings.threads,
            concurrency=self._settings.concurrency,
            half=models.language_model.dtype != torch.float32,
            low_memory=self._settings.low_memory,
        )

    # ------------------------------------------------------------------------------------------- messages
    def _read(self) -> None:
        while True:
            try:
                message: ToWorker = self._connection.recv()
            except (EOFError, OSError):
                os._exit(DRAINED)  # nobody is left to speak to
            self._handle(message)

    def _handle(self, message: ToWorker) -> None:
        if isinstance(message, (Speak, Prepare)):
            self._accept(message)
        elif isinstance(message, Cancel):
            if self._scheduler is not None:
                self._scheduler.cancel(message.key)
        elif isinstance(message, Drain):
            self._begin_to_leave()
        elif isinstance(message, Stop):
            os._exit(DRAINED)

    def _accept(self, message: Speak | Prepare) -> None:
        with self._accepting:
            scheduler = self._scheduler
            if self._leave.is_set() or scheduler is None:
                self._outbox.put(Refused(message.key))
                return
            try:
                content: Any = pickle.loads(message.payload)
                if isinstance(message, Speak):
                    scheduler.submit(message.key, content, message.waited)
                else:
                    scheduler.prepare_voice(message.key, *content)
            except Exception as error:
                logger.error("A message cannot be used.", exc_info=error)
                self._outbox.put(Failed(message.key, _last_words(error, "The request cannot be read")))

    # --------------------------------------------------------------------------------------------- leaving
    def _on_sigterm(self, number: int, frame: object) -> None:
        # In a thread: this one may hold the event's own lock just now.
        self._in_thread(self._begin_to_leave)

    def _begin_to_leave(self) -> None:
        if self._scheduler is None:
            os._exit(DRAINED)  # still loading: nothing is live
        self._leave.set()

    def _on_fault(self, error: BaseException) -> None:
        logger.error("A lane failed; the worker leaves to be started anew.", exc_info=error)
        self._exit(FAULT, _last_words(error, "The worker failed"))

    def _exit(self, code: int, error: SynthesisError | None = None) -> None:
        """Without Python's own clean-up, which may hang in a broken device context."""
        if error is not None:
            self._outbox.put(Broken(error))
        self._outbox.close(_LAST_WORDS)
        logging.shutdown()
        os._exit(code)

    # ------------------------------------------------------------------------------------------- heartbeat
    def _beat(self) -> None:
        busy = False
        while True:
            time.sleep(self._settings.heartbeat)
            if os.getppid() != self._parent:
                os._exit(DRAINED)
            stats = self._stats()
            self._outbox.put(Heartbeat(stats))
            before, busy = busy, bool(stats.live or stats.preparing)
            if before and not busy:
                release_memory()

    def _stats(self) -> WorkerStats:
        from inference.devices import allocated_memory, process_memory
        from inference.runtime.backend_report import REPORT

        scheduler = self._scheduler
        stats = WorkerStats() if scheduler is None else scheduler.stats()
        return replace(
            stats,
            memory_bytes=process_memory(),
            device_bytes=allocated_memory(self._settings.device) if scheduler else 0,
            vocoder_backend=REPORT.used().get("vocoder", "torch"),
            flow_backend=REPORT.used().get("flow", "torch"),
            backend_failures=REPORT.failures,
        )

    def _in_thread(self, work: Any) -> None:
        threading.Thread(target=work, name=work.__name__.strip("_"), daemon=True).start()


def _lane_scope(device: Any) -> AbstractContextManager[Any]:
    """A lane's thread works on its device, in a stream of its own; on the CPU it has one core."""
    import torch

    if device.type != "cuda":
        torch.set_num_threads(1)  # some libraries look at the thread's own setting
        return nullcontext()
    torch.cuda.set_device(device)
    return torch.cuda.stream(torch.cuda.Stream(device))


def _last_words(error: BaseException, what: str) -> SynthesisError:
    if isinstance(error, SynthesisError):
        if error.__cause__ is not None:  # stays behind when the error goes to the parent
            logger.error("%s: %s", what, error, exc_info=error)
        return error
    logger.error("%s.", what, exc_info=error)
    if _ran_out_of_memory(error):
        return EngineError(
            "too_little_memory",
            "There is too little free memory to load the model; close what else uses the device, or start with "
            "--low-memory.",
        )
    return EngineError("worker_failed", f"{what} ({type(error).__name__}); see the log.")


def _ran_out_of_memory(error: BaseException) -> bool:
    if "torch" not in sys.modules:  # it may be what could not be imported
        return isinstance(error, MemoryError)
    from inference.faults import is_out_of_memory

    return is_out_of_memory(error)

"""Building engines in a process beside the one that serves: a crash or a leak of the builder harms nobody."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from importlib.util import find_spec

import torch

from inference.runtime.tensorrt_api import MODULES
from inference.settings import LaneSettings

logger = logging.getLogger(__name__)

LEAST_FREE_BYTES = 6 << 30  # of the device: the builder loads flow and vocoder again and tries tactics
NICENESS = 10
QUIET_SECONDS = 60.0  # without engines to build, trying out backends can wait until nobody is in the way
LONGEST_SECONDS = 3600.0
_PARENT_SECONDS = 2.0


def command(settings: LaneSettings, device: torch.device) -> list[str]:
    """`build-engines` for the very shapes of this lane."""
    names = settings.backends
    return [
        sys.executable, "-m", "inference", "build-engines",
        "--model-dir", str(names.model_dir),
        "--device", str(device),
        "--precision", names.precision,
        "--max-batch", str(settings.max_batch),
        "--max-batch-frames", str(settings.max_batch_frames),
        "--beside", str(os.getpid()),
    ]  # fmt: skip


class BackgroundBuild:
    """A `build-engines` beside this process, which ends with this one at the latest.

    `begin` starts it (None: it makes no sense now), at once or when nobody was served for `quiet` seconds.
    """

    def __init__(self, begin: Callable[[], subprocess.Popen[bytes] | None], quiet: float = 0.0) -> None:
        self._begin = begin
        self._process: subprocess.Popen[bytes] | None = None
        self._over = threading.Event()
        self._busy = self._begun = time.monotonic()
        if quiet:
            threading.Thread(target=self._wait, args=(quiet,), name="measuring", daemon=True).start()
        else:
            self._start()

    @staticmethod
    def start(settings: LaneSettings, device: torch.device) -> BackgroundBuild | None:
        """None where there is nothing to build or to choose from."""
        if device.type != "cuda":
            return None
        engines = any(find_spec(name) for name in MODULES)
        if not engines and find_spec("triton") is None:  # torch.compile needs it, as our kernels do
            return None
        return BackgroundBuild(
            lambda: _begin(settings, device, engines), quiet=0.0 if engines else QUIET_SECONDS
        )

    def done(self, *, busy: bool = False) -> bool:
        """Whether it has ended, in whatever way. `busy`: somebody is being served."""
        if busy:
            self._busy = time.monotonic()
        process = self._process
        if process is None:
            return self._over.is_set()
        if process.poll() is None and time.monotonic() - self._begun > LONGEST_SECONDS:
            process.kill()
            process.wait()
        return process.poll() is not None

    def succeeded(self) -> bool:
        """Of one that is done; a failure is logged."""
        status = None if self._process is None else self._process.returncode
        if status:
            logger.warning("Engines could not be built (exit status %s); PyTorch goes on serving.", status)
        return status == 0

    def stop(self) -> None:
        """Nobody wants it any more."""
        self._over.set()
        if self._process is not None:
            self._process.kill()

    def _wait(self, quiet: float) -> None:
        while (rest := self._busy + quiet - time.monotonic()) > 0:
            if self._over.wait(rest):
                return
        self._start()

    def _start(self) -> None:
        self._begun = time.monotonic()
        self._process = self._begin()
        if self._process is None or self._over.is_set():
            self.stop()


def _begin(settings: LaneSettings, device: torch.device, engines: bool) -> subprocess.Popen[bytes] | None:
    free, _ = torch.cuda.mem_get_info(device)
    if free < LEAST_FREE_BYTES:
        logger.info("Too little free memory on %s to try out backends while serving.", device)
        return None
    if engines:
        logger.warning(
            "TensorRT engines are built in the background (minutes, once); PyTorch serves meanwhile."
        )
    else:
        logger.info("Backends are tried out in the background (a minute or two, once).")
    return run_beside(command(settings, device))


def run_beside(words: list[str]) -> subprocess.Popen[bytes]:
    """Start a Python process of this package's; what it prints is dropped, its log is not."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=environment)


def give_way(parent: int) -> None:
    """Called in that process: low priority, and an end when `parent` has gone."""
    if hasattr(os, "nice"):
        os.nice(NICENESS)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()

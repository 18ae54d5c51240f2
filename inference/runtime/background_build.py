"""Building engines in a process beside the one that serves: a crash or a leak of the builder harms nobody."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from importlib.util import find_spec

import torch

from inference.runtime.tensorrt_api import MODULES
from inference.settings import LaneSettings

logger = logging.getLogger(__name__)

LEAST_FREE_BYTES = 6 << 30  # of the device: the builder loads flow and vocoder again and tries tactics
NICENESS = 10
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
    """A running `build-engines`. It ends with this process at the latest."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @staticmethod
    def start(settings: LaneSettings, device: torch.device) -> BackgroundBuild | None:
        """None where it makes no sense: TensorRT is not installed, or the device has too little free memory."""
        if device.type != "cuda" or not any(find_spec(name) for name in MODULES):
            return None
        free, _ = torch.cuda.mem_get_info(device)
        if free < LEAST_FREE_BYTES:
            logger.info("Too little free memory on %s to build engines while serving.", device)
            return None
        logger.warning(
            "TensorRT engines are built in the background (minutes, once); PyTorch serves meanwhile."
        )
        return BackgroundBuild(run_beside(command(settings, device)))

    def done(self) -> bool:
        return self._process.poll() is not None

    def succeeded(self) -> bool:
        """Of one that is done; a failure is logged."""
        status = self._process.returncode
        if status:
            logger.warning("Engines could not be built (exit status %s); PyTorch goes on serving.", status)
        return status == 0


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

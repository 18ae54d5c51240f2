"""What every test shares: one CPU thread, fixed seeds, where CUDA is."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"  # no test may reach for a hub
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _fixed_seeds() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    # What a program under test sets up writes to an output that ends with its test.
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(scope="session", autouse=True)
def _graphs_of_this_run(tmp_path_factory: pytest.TempPathFactory) -> None:
    # Graphs, engines and choices of the tests' networks; workers inherit it.
    os.environ["COSYVOICE_GRAPHS"] = str(tmp_path_factory.mktemp("graphs"))


@pytest.fixture(autouse=True)
def _exact_float32() -> None:
    # SPEC 8: parity needs TF32 off; torch turns it on for convolutions by itself.
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False


@pytest.fixture
def cuda() -> torch.device:
    """The CUDA device; skips the test on a machine without one."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return torch.device("cuda")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    """Runs a test on the CPU and, marked `gpu`, on CUDA."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return torch.device(request.param)


@pytest.fixture(scope="session")
def random_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete, tiny model folder with random weights; not to be changed."""
    from tests.model_folder import write_random_folder

    return write_random_folder(tmp_path_factory.mktemp("random-model"))

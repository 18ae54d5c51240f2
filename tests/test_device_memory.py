"""What a worker sets before it uses its GPU."""

from __future__ import annotations

import pytest

from inference.device_memory import choose_allocator, settle_allocator

pytestmark = pytest.mark.unit


def test_segments_grow_and_the_users_own_choice_stays() -> None:
    environment: dict[str, str] = {}
    assert choose_allocator(0, False, environment)
    assert environment == {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    environment = {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}
    assert not choose_allocator(64, False, environment)
    assert environment == {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}


@pytest.mark.parametrize(
    ("concurrency", "low_memory", "small"),
    [(8, False, True), (0, True, True), (9, False, False), (0, False, False)],
)
def test_libraries_get_small_workspaces_where_few_are_served(
    concurrency: int, low_memory: bool, small: bool
) -> None:
    environment: dict[str, str] = {}
    choose_allocator(concurrency, low_memory, environment)
    assert ("CUBLAS_WORKSPACE_CONFIG" in environment) is small
    choose_allocator(concurrency, low_memory, kept := {"CUBLAS_WORKSPACE_CONFIG": ":16:8"})
    assert kept["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"


class _Driver:
    """Gives memory, or fails so many times."""

    def __init__(self, failures: int, words: str = "CUDA driver error: operation not supported") -> None:
        self.calls, self._failures, self._words = 0, failures, words

    def __call__(self, device: str) -> None:
        self.calls += 1
        if self.calls <= self._failures:
            raise RuntimeError(self._words)


@pytest.mark.parametrize(
    ("failures", "words", "calls", "growing", "warned"),
    [
        (0, "", 1, True, False),
        (1, "CUDA driver error: operation not supported", 2, False, True),
        (
            9,
            "CUDA driver error: no such device",
            2,
            False,
            False,
        ),  # not the segments' fault: told by who uses it
        (9, "CUDA out of memory.", 1, True, False),
    ],
)
def test_segments_stay_as_they_are_where_they_cannot_grow(
    failures: int, words: str, calls: int, growing: bool, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    environment: dict[str, str] = {}
    choose_allocator(0, False, environment)
    driver = _Driver(failures, words)
    settle_allocator("cuda:0", driver, environment)
    assert driver.calls == calls
    assert environment["PYTORCH_ALLOC_CONF"] == f"expandable_segments:{growing}"
    assert ("cannot grow" in caplog.text) is warned

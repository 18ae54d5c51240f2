"""What a worker sets before it uses its GPU."""

from __future__ import annotations

import pytest

from inference.device_memory import choose_allocator

pytestmark = pytest.mark.unit


def test_segments_grow_and_the_users_own_choice_stays() -> None:
    environment: dict[str, str] = {}
    choose_allocator(0, False, environment)
    assert environment == {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    environment = {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}
    choose_allocator(64, False, environment)
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

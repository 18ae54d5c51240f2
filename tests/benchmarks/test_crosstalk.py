"""What tells one answer from another."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.crosstalk import compare, fingerprint, requests_of
from inference.types import Int16Audio

pytestmark = pytest.mark.unit


def sound(seed: int, seconds: float = 1.0) -> Int16Audio:
    """Tones that come and go."""
    random = np.random.default_rng(seed)
    time = np.arange(int(24000 * seconds)) / 24000
    pitch = np.repeat(random.uniform(200, 6000, len(time) // 2400), 2400)
    return (8000 * np.sin(2 * np.pi * np.cumsum(pitch) / 24000)).astype(np.int16)


def test_answers_that_are_their_own() -> None:
    alone = [sound(seed) for seed in range(4)]
    assert compare(alone, alone) == {"same_samples": 4, "same_length": 4, "nearest_is_own": 4}


def test_rounding_is_told_from_a_swap() -> None:
    alone = [sound(seed) for seed in range(4)]
    rounded = [pcm + 1 for pcm in alone]
    assert compare(alone, rounded) == {"same_samples": 0, "same_length": 4, "nearest_is_own": 4}
    swapped = [alone[1], alone[0], alone[2], alone[3]]
    assert compare(alone, swapped) == {"same_samples": 2, "same_length": 4, "nearest_is_own": 2}


def test_a_piece_of_another_is_not_ones_own() -> None:
    alone = [sound(seed, 2.0) for seed in range(3)]
    mixed = [np.concatenate((alone[0][:12000], alone[1][12000:])), alone[1], alone[2]]
    assert compare(alone, mixed)["nearest_is_own"] == 2


def test_no_answer_is_nobodys() -> None:
    alone = [sound(0), sound(1)]
    assert compare(alone, [alone[0], np.zeros(0, np.int16)])["nearest_is_own"] == 1
    assert len(fingerprint(np.zeros(10, np.int16))) == 0


def test_no_two_requests_are_alike() -> None:
    requests = requests_of(60, 5, 5)
    assert len({(request.text, request.seed) for request in requests}) == 60
    assert {request.stream for request in requests} == {True, False}
    assert len({request.mode for request in requests}) == 2

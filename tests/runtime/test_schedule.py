"""Chunk borders of a stream against the recorded schedules of the original."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inference.runtime.schedule import ChunkSchedule
from tests.golden_data import golden_folder

LOOKAHEAD = 3


def _recorded_cases() -> list[dict[str, Any]]:
    file = golden_folder() / "stream_schedule.json"
    if not file.exists():
        return []
    cases: list[dict[str, Any]] = json.loads(file.read_text())["cases"]
    return cases


def _run(tokens: int, prompt: int, first_hop: int) -> tuple[list[dict[str, Any]], int]:
    schedule = ChunkSchedule(prompt, LOOKAHEAD, first_hop)
    calls: list[dict[str, Any]] = []
    while (call := schedule.next_call(tokens, finished=True)) is not None:
        frames = 2 * (call.token_count if call.final else call.token_count - LOOKAHEAD)
        calls.append(
            {
                "n_token": call.token_count,
                "streaming": not call.final,
                "finalize": call.final,
                "mel_frames": frames,
            }
        )
    return calls, schedule.hop


@pytest.mark.golden
@pytest.mark.skipif(not _recorded_cases(), reason="no stream_schedule.json in the golden folder")
@pytest.mark.parametrize("case", _recorded_cases())
def test_recorded_schedule(case: dict[str, Any]) -> None:
    calls, hop = _run(case["n_tokens"], case["n_prompt_tokens"], case["hop_before"])
    assert calls == case["flow_calls"]
    assert hop == case["hop_after"]


@pytest.mark.unit
@pytest.mark.parametrize("prompt", [0, 1, 24, 25, 87, 250])
def test_borders_fall_on_chunks_and_arrival_order_does_not_matter(prompt: int) -> None:
    total = 333
    at_once = [call["n_token"] for call in _run(total, prompt, 25)[0]]
    schedule = ChunkSchedule(prompt, LOOKAHEAD)
    one_by_one = []
    for ready in range(1, total + 1):
        while (call := schedule.next_call(ready, finished=False)) is not None:
            one_by_one.append(call.token_count)
    last = schedule.next_call(total, finished=True)
    assert last is not None and last.final
    assert [*one_by_one, last.token_count] == at_once
    assert all((prompt + count - LOOKAHEAD) % 25 == 0 for count in one_by_one)


@pytest.mark.unit
def test_every_request_starts_early() -> None:
    for _ in range(3):
        assert ChunkSchedule(0, LOOKAHEAD).tokens_needed() == 28

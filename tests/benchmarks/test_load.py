"""What many users at once are told about: percentiles, stalls, errors; what is measured of the machine."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks.load import Answer, Load, percentile, summary
from benchmarks.soak_cases import bad_requests, good_requests
from benchmarks.watch import Watch, process_tree
from inference import CosyVoice
from inference.types import AudioChunk, EngineError, Mode, SynthesisError, SynthesisRequest

pytestmark = pytest.mark.unit

RATE = 24000


def request_of(user: int, turn: int) -> SynthesisRequest:
    return SynthesisRequest(Mode.PRESET, f"{user}", "someone", seed=turn)


def second_of_sound(request: SynthesisRequest) -> Iterator[AudioChunk]:
    for index in range(4):
        yield AudioChunk(np.zeros(RATE // 4, np.int16), RATE, index, request.text, index == 3)


def test_every_user_gets_every_round() -> None:
    load = Load(second_of_sound, request_of, users=5, rounds=3, limit=60.0)
    found = summary(load, load.run(), expected_audio=1.0)
    assert (found["requests"], found["complete"], found["users_served"]) == (15, 15, 5)
    assert found["audio"] == 15.0 and found["errors"] == {} and found["wrong_length"] == 0
    assert found["throughput"] == pytest.approx(15.0 / found["elapsed"])
    assert {(answer.user, answer.turn) for answer in load.answers} == {
        (u, t) for u in range(5) for t in range(3)
    }


def test_users_are_there_at_the_same_time() -> None:
    all_there = threading.Barrier(6, timeout=20)

    def speak(request: SynthesisRequest) -> Iterator[AudioChunk]:
        all_there.wait()
        yield from second_of_sound(request)

    load = Load(speak, request_of, users=6, rounds=2, limit=60.0)
    load.run()
    assert sum(answer.complete for answer in load.answers) == 12


def test_errors_and_the_time_limit_are_told() -> None:
    def speak(request: SynthesisRequest) -> Iterator[AudioChunk]:
        if request.text == "1":
            raise EngineError("no_sound", "None.")
        yield from second_of_sound(request)

    load = Load(speak, request_of, users=2, rounds=1, limit=60.0)
    found = summary(load, load.run(), expected_audio=2.0)
    assert found["errors"] == {"no_sound": 1} and found["users_served"] == 1 and found["wrong_length"] == 1
    assert found["first"]["p50"] is not None and found["first"]["p99"] is None  # one never heard anything
    late = Load(second_of_sound, request_of, users=1, rounds=3, limit=-1.0)
    assert summary(late, late.run(), 1.0)["requests"] == 0


def test_a_pause_that_outlasts_the_sound_is_a_stall() -> None:
    quick = Answer(0, 0, 0.0, first=0.1, total=0.5, audio=1.0)
    slow = Answer(1, 0, 0.0, first=0.1, total=3.0, audio=1.0, stall=0.5)
    load = Load(second_of_sound, request_of, 2, 1, 1.0, [quick, slow])
    assert summary(load, 3.0, 1.0)["stalled"] == 1


def test_percentiles() -> None:
    values = [float(n) for n in range(1, 101)]
    assert [percentile(values, share) for share in (0.5, 0.95, 0.99, 1.0)] == [50.0, 95.0, 99.0, 100.0]
    assert percentile([3.0], 0.5) == percentile([3.0], 0.99) == 3.0
    assert percentile([1.0, math.inf], 0.5) == 1.0 and percentile([1.0, math.inf], 0.99) is None
    assert percentile([], 0.5) is None


def test_a_process_and_its_children_are_seen() -> None:
    before = process_tree()
    assert before.resident_mb > 10 and before.threads >= 1 and before.files >= 3
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert process_tree().processes == before.processes + 1
        assert process_tree(child.pid).processes == 1
    finally:
        child.communicate(b"\n")
    assert process_tree().processes == before.processes


def test_work_is_seen() -> None:
    with Watch("cpu", interval=0.01) as watch:
        np.linalg.eigvals(np.random.default_rng(0).random((300, 300)))
    report = watch.report()
    busy, cores = report["busy"], report["cpu_cores_used"]
    assert busy is not None and cores is not None and cores > 0 and busy > 0
    assert report["device_peak_mb"] is None and report["resident_peak_mb"]


# -------------------------------------------------------------------------------------------------- the soak
@pytest.mark.e2e
def test_the_soak_s_mistakes_are_refused_as_it_expects(random_model_dir: Path) -> None:
    engine = CosyVoice(random_model_dir, device="cpu")
    for bad in bad_requests():
        with pytest.raises(SynthesisError) as raised:
            list(engine.synthesize(bad.request))
        assert raised.value.code in bad.codes


def test_the_soak_s_requests_are_of_all_kinds_and_the_same_each_time() -> None:
    requests = good_requests(20, seed=3, presets=["someone"])
    assert requests == good_requests(20, seed=3, presets=["someone"])
    assert {request.mode for request in requests} == set(Mode)
    assert {request.stream for request in requests} == {True, False}
    assert len({request.speed for request in requests}) > 1
    assert len({(request.seed, request.mode) for request in requests}) == 20

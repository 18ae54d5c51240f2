"""The studio: chunks, files, turns, and what is left after failures."""

from __future__ import annotations

import re
import threading
import wave
from pathlib import Path

import numpy as np
import pytest

from inference.types import AudioChunk, EngineError, RequestError
from tests.webui.fake_engine import RATE, FakeEngine, request, spoken, tone
from webui.studio import Studio, Take

pytestmark = pytest.mark.unit


def read(path: Path) -> tuple[np.ndarray, int]:
    with wave.open(str(path)) as sound:
        return np.frombuffer(sound.readframes(sound.getnframes()), np.int16), sound.getframerate()


def take_of(studio: Studio, seed: int = 1) -> Take:
    last = list(studio.speak(request(seed=seed)))[-1]
    assert isinstance(last, Take)
    return last


def test_chunks_come_as_they_are_made_and_then_the_file(tmp_path: Path) -> None:
    engine = FakeEngine(chunks=3)
    *chunks, take = Studio(engine, tmp_path).speak(request(seed=5))
    assert all(isinstance(chunk, AudioChunk) and len(chunk.pcm) for chunk in chunks)
    assert len(chunks) == 3  # the engine's empty last chunk is nothing to play
    np.testing.assert_array_equal(chunks[1].pcm, tone(5, 1))
    assert isinstance(take, Take)
    pcm, rate = read(take.path)
    assert rate == RATE
    np.testing.assert_array_equal(pcm, spoken(5))
    assert take.duration == pytest.approx(0.6)
    assert 0 < take.first_audio <= take.elapsed
    assert take.real_time_factor == pytest.approx(take.elapsed / 0.6)


def test_file_names_tell_mode_and_seed_and_cannot_be_guessed(tmp_path: Path) -> None:
    studio = Studio(FakeEngine(), tmp_path)
    names = {take_of(studio, seed=42).path.name for _ in range(5)}
    assert len(names) == 5
    assert all(re.fullmatch(r"\d{8}-\d{6}_cross_lingual_42_[0-9a-f]{8}\.wav", name) for name in names)
    assert {path.name for path in tmp_path.iterdir()} == names  # no partial file is left


def test_warnings_about_the_clip_reach_the_take(tmp_path: Path) -> None:
    assert take_of(Studio(FakeEngine(warnings=("short", "noisy")), tmp_path)).warnings == ("short", "noisy")


def test_a_refused_request_leaves_nothing_and_the_next_one_works(tmp_path: Path) -> None:
    studio = Studio(FakeEngine(), tmp_path)
    with pytest.raises(RequestError) as raised:
        list(studio.speak(request(text="")))
    assert raised.value.code == "empty_text"
    assert list(tmp_path.iterdir()) == []
    take_of(studio)


def test_a_failure_in_the_middle_passes_the_turn_on(tmp_path: Path) -> None:
    engine = FakeEngine(fail_after=1)
    studio = Studio(engine, tmp_path)
    with pytest.raises(ZeroDivisionError):
        list(studio.speak(request()))
    assert list(tmp_path.iterdir()) == []
    engine.fail_after = None
    take_of(studio)


def test_no_sound_at_all_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EngineError) as raised:
        list(Studio(FakeEngine(chunks=0), tmp_path).speak(request()))
    assert raised.value.code == "no_sound"


def test_a_visitor_who_leaves_ends_the_work_and_the_turn(tmp_path: Path) -> None:
    engine = FakeEngine(chunks=1000)
    studio = Studio(engine, tmp_path)
    parts = studio.speak(request())
    next(parts)
    assert engine.running == 1
    parts.close()
    assert (engine.running, engine.closed) == (0, 1)
    assert list(tmp_path.iterdir()) == []
    engine.chunks = 2
    take_of(studio)


def test_visitors_take_turns_and_get_their_own_sound(tmp_path: Path) -> None:
    engine = FakeEngine(chunks=20)
    studio = Studio(engine, tmp_path)
    takes: dict[int, Take] = {}

    def visit(seed: int) -> None:
        takes[seed] = take_of(studio, seed)

    threads = [threading.Thread(target=visit, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert sorted(takes) == list(range(6))
    assert engine.most_running == 1
    for seed, take in takes.items():
        np.testing.assert_array_equal(read(take.path)[0], spoken(seed, 20))


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(EngineError) as raised:
        Studio(FakeEngine(), tmp_path / "file" / "outputs")
    assert raised.value.code == "output_not_writable"


def test_a_folder_that_went_away_is_told(tmp_path: Path) -> None:
    studio = Studio(FakeEngine(), tmp_path / "outputs")
    (tmp_path / "outputs").rmdir()
    with pytest.raises(EngineError) as raised:
        take_of(studio)
    assert raised.value.code == "output_not_writable"
    assert str(tmp_path / "outputs") in raised.value.message

"""The studio: chunks, files, places in the queue, and what is left after failures."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inference.types import AudioChunk, EngineError, Reference, RequestError, Voice
from tests.webui.fake_pool import RATE, FakePool, request, spoken, tone
from webui import speaking as speaking_module
from webui.limits import VisitorLimits
from webui.outputs import Retention
from webui.page.output_part import place_words
from webui.studio import Studio, Take, Waiting

pytestmark = pytest.mark.unit

Part = Waiting | AudioChunk | Take


def read(path: Path) -> tuple[np.ndarray, int]:
    with wave.open(str(path)) as sound:
        return np.frombuffer(sound.readframes(sound.getnframes()), np.int16), sound.getframerate()


async def parts_of(studio: Studio, seed: int = 1, text: str = "Hello.") -> list[Part]:
    return [part async for part in studio.speak(request(text=text, seed=seed))]


def take_of(studio: Studio, seed: int = 1) -> Take:
    last = asyncio.run(parts_of(studio, seed))[-1]
    assert isinstance(last, Take)
    return last


def test_chunks_come_as_they_are_made_and_then_the_file(tmp_path: Path) -> None:
    *chunks, take = asyncio.run(parts_of(Studio(FakePool(chunks=3), tmp_path), seed=5))
    assert len(chunks) == 3  # the engine's empty last chunk is nothing to play
    assert all(isinstance(chunk, AudioChunk) and len(chunk.pcm) for chunk in chunks)
    second = chunks[1]
    assert isinstance(second, AudioChunk)
    np.testing.assert_array_equal(second.pcm, tone(5, 1))
    assert isinstance(take, Take)
    pcm, rate = read(take.path)
    assert rate == RATE
    np.testing.assert_array_equal(pcm, spoken(5))
    assert take.duration == pytest.approx(0.6)
    assert 0 < take.first_audio <= take.elapsed
    assert take.real_time_factor == pytest.approx(take.elapsed / 0.6)


def kept(folder: Path) -> set[str]:
    """What lies in the output folder, beside the studio's own notes."""
    return {path.name for path in folder.iterdir()} - {".studio"}


def test_file_names_tell_mode_and_seed(tmp_path: Path) -> None:
    studio = Studio(FakePool(), tmp_path)
    names = {take_of(studio, seed=42).path.name for _ in range(5)}
    assert len(names) == 5
    assert all(re.fullmatch(r"\d{8}-\d{6}_cross-lingual_42(-\d)?\.wav", name) for name in names)
    assert kept(tmp_path) == names  # no partial file is left


def speak(studio: Studio, text: str = "Hello.", **given: Any) -> Take:
    async def last() -> Part:
        return [part async for part in studio.speak(request(text=text, seed=3), **given)][-1]

    take = asyncio.run(last())
    assert isinstance(take, Take)
    return take


def test_a_saved_voice_and_a_format_are_in_the_name(tmp_path: Path) -> None:
    take = speak(Studio(FakePool(), tmp_path), audio_format="flac", voice_name="小美 2")
    assert re.fullmatch(r"\d{8}-\d{6}_cross-lingual_小美-2_3\.flac", take.path.name)
    assert take.audio_format == "flac" and take.path.read_bytes()[:4] == b"fLaC"


def test_a_visitor_s_takes_go_to_their_history_and_nobody_else_s(tmp_path: Path) -> None:
    studio = Studio(FakePool(), tmp_path)
    take = speak(studio, visitor="ann", voice_name="anna", settings={"speed": 1.5})
    speak(studio)  # of a client that keeps no cookies
    (found,) = studio.history.takes("ann")
    assert (found.path, found.seed, found.voice, found.text) == (take.path, 3, "anna", "Hello.")
    assert found.settings == {"speed": 1.5} and found.mode == "cross_lingual"
    assert studio.history.takes("bob") == []
    studio.close()


def test_limits_are_each_caller_s(tmp_path: Path) -> None:
    pool = FakePool(chunks=1000)
    studio = Studio(pool, tmp_path, limits=VisitorLimits(characters=20, requests=1))
    with pytest.raises(RequestError) as raised:
        speak(studio, "x" * 21, caller="ann")
    assert raised.value.code == "text_too_long" and pool.requests == []

    async def visit() -> None:
        mine = studio.speak(request(), caller="ann")
        await anext(mine)
        with pytest.raises(RequestError) as raised:
            await anext(studio.speak(request(), caller="ann"))
        assert raised.value.code == "visitor_busy"
        other = studio.speak(request(), caller="bob")
        await anext(other)
        await mine.aclose()
        mine = studio.speak(request(), caller="ann")  # the place is free again
        await anext(mine)
        await mine.aclose()
        await other.aclose()

    asyncio.run(visit())
    assert pool.running == 0


def test_a_history_that_cannot_be_written_does_not_cost_the_sound(tmp_path: Path) -> None:
    studio = Studio(FakePool(), tmp_path)
    studio.history.close()
    assert speak(studio, visitor="ann").path.is_file()


def test_cleaning_forgets_what_the_retention_removed(tmp_path: Path) -> None:
    studio = Studio(FakePool(), tmp_path, retention=Retention(seconds=100))
    take = speak(studio, visitor="ann")
    os.utime(take.path, (1, 1))
    studio.clean()
    assert kept(tmp_path) == set() and studio.history.takes("ann") == [] and studio.history.forget() == 0


def test_warnings_about_the_clip_reach_the_take(tmp_path: Path) -> None:
    assert take_of(Studio(FakePool(warnings=("short", "noisy")), tmp_path)).warnings == ("short", "noisy")


class _BusyPool(FakePool):
    async def voice(self, reference: Reference) -> Voice:
        raise RequestError("busy", "Too many requests.", ahead=9)


def test_a_pool_too_busy_for_the_warnings_does_not_cost_the_sound(tmp_path: Path) -> None:
    assert take_of(Studio(_BusyPool(), tmp_path)).warnings == ()


def test_a_refused_request_leaves_nothing_and_the_next_one_works(tmp_path: Path) -> None:
    studio = Studio(FakePool(), tmp_path)
    with pytest.raises(RequestError) as raised:
        asyncio.run(parts_of(studio, text=""))
    assert raised.value.code == "empty_text"
    assert kept(tmp_path) == set()
    take_of(studio)


def test_a_failure_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    pool = FakePool(fail_after=1)
    studio = Studio(pool, tmp_path)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(parts_of(studio))
    assert kept(tmp_path) == set() and pool.running == 0
    pool.fail_after = None
    take_of(studio)


def test_no_sound_at_all_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EngineError) as raised:
        asyncio.run(parts_of(Studio(FakePool(chunks=0), tmp_path)))
    assert raised.value.code == "no_sound"


def test_the_place_in_the_queue_is_told_while_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speaking_module, "SIGN_SECONDS", 0.001)
    parts = asyncio.run(parts_of(Studio(FakePool(position=3, pause=0.02), tmp_path)))
    places = [part.position for part in parts if isinstance(part, Waiting)]
    assert places[0] == 3 and places[-1] == 0 and places == sorted(places, reverse=True)
    first_sound = next(index for index, part in enumerate(parts) if isinstance(part, AudioChunk))
    assert any(isinstance(part, Waiting) for part in parts[first_sound:])  # a sign of life between chunks
    assert isinstance(parts[-1], Take)


def test_while_the_model_is_loading_that_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speaking_module, "SIGN_SECONDS", 0.001)
    pool = FakePool(position=3, pause=0.02)
    pool.ready = False
    waits = [part for part in asyncio.run(parts_of(Studio(pool, tmp_path))) if isinstance(part, Waiting)]
    assert waits[0] == Waiting(3, loading=True)
    assert all(
        part.loading == (part.position > 0) for part in waits
    )  # what is being spoken waits for no model
    told = [place_words(part, "en") for part in (waits[0], Waiting(2), Waiting(0))]
    assert "loading" in told[0] and "2" in told[1] and told[2] not in told[:2]
    assert "加载" in place_words(waits[0], "zh")


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_visitor_who_leaves_ends_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """Whether the page notices at a sign of life or while a chunk is awaited."""
    monkeypatch.setattr(speaking_module, "SIGN_SECONDS", 0.005)
    pool = FakePool(chunks=1000, pause=0.02)

    async def leave() -> None:
        parts = Studio(pool, tmp_path).speak(request())
        for _ in range(1 + 3 * after):
            await anext(parts)
        assert pool.running == 1
        await parts.aclose()

    asyncio.run(leave())
    assert (pool.running, pool.closed) == (0, 1)
    assert kept(tmp_path) == set()


def test_stop_cancels_a_request_that_is_being_awaited(tmp_path: Path) -> None:
    pool = FakePool(chunks=5, pause=30.0)

    async def stop() -> None:
        running = asyncio.ensure_future(parts_of(Studio(pool, tmp_path)))
        while not pool.running:
            await asyncio.sleep(0.001)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(stop())
    assert (pool.running, pool.closed) == (0, 1)


def test_visitors_are_served_side_by_side_and_get_their_own_sound(tmp_path: Path) -> None:
    pool = FakePool(chunks=20)
    studio = Studio(pool, tmp_path)

    async def visit() -> list[list[Part]]:
        return await asyncio.gather(*(parts_of(studio, seed) for seed in range(6)))

    for seed, parts in enumerate(asyncio.run(visit())):
        take = parts[-1]
        assert isinstance(take, Take) and take.seed == seed
        np.testing.assert_array_equal(read(take.path)[0], spoken(seed, 20))
    assert pool.most_running == 6


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(EngineError) as raised:
        Studio(FakePool(), tmp_path / "file" / "outputs")
    assert raised.value.code == "output_not_writable"


def test_a_folder_that_went_away_is_told(tmp_path: Path) -> None:
    studio = Studio(FakePool(), tmp_path / "outputs")
    shutil.rmtree(tmp_path / "outputs")
    with pytest.raises(EngineError) as raised:
        take_of(studio)
    assert raised.value.code == "output_not_writable"
    assert str(tmp_path / "outputs") in raised.value.message

"""What a browser has had made: its own, kept across restarts, gone when deleted."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from inference.types import RequestError
from webui.history import History

pytestmark = pytest.mark.unit


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path / ".studio" / "history.sqlite3", tmp_path)


def add(history: History, folder: Path, visitor: str, name: str, **given: object) -> int:
    (folder / name).write_bytes(b"sound")
    facts = {"mode": "clone", "text": "Hello.", "seed": 7, "duration": 1.5, **given}
    return history.add(visitor, folder / name, **facts)  # type: ignore[arg-type]


def test_the_newest_comes_first_with_all_its_facts(history: History, tmp_path: Path) -> None:
    add(history, tmp_path, "ann", "1.wav")
    settings = {"text": "你好", "speed": 1.25, "voice": None}
    add(history, tmp_path, "ann", "2.wav", voice="小美", seed=2**63 - 1, settings=settings)
    newest, oldest = history.takes("ann")
    assert (newest.path, newest.voice, newest.seed) == (tmp_path / "2.wav", "小美", 2**63 - 1)
    assert newest.settings == settings and newest.created >= oldest.created
    assert (oldest.mode, oldest.text, oldest.duration, oldest.settings) == ("clone", "Hello.", 1.5, {})


def test_nobody_sees_or_deletes_what_is_another_s(history: History, tmp_path: Path) -> None:
    mine = add(history, tmp_path, "ann", "1.wav")
    assert history.takes("bob") == [] and history.takes("") == []
    for visitor in ("bob", ""):
        for act in (history.find, history.delete):
            with pytest.raises(RequestError) as raised:
                act(visitor, mine)
            assert raised.value.code == "take_unknown"
    assert history.clear("bob") == 0
    assert history.find("ann", mine).path.exists()


def test_takes_without_an_owner_belong_to_nobody(history: History, tmp_path: Path) -> None:
    number = add(history, tmp_path, "", "1.wav")
    assert history.takes("") == []
    with pytest.raises(RequestError):
        history.find("", number)


def test_deleting_removes_the_sound(history: History, tmp_path: Path) -> None:
    first, second = (add(history, tmp_path, "ann", f"{number}.wav") for number in (1, 2))
    history.delete("ann", first)
    assert [take.id for take in history.takes("ann")] == [second]
    assert not (tmp_path / "1.wav").exists()
    assert history.clear("ann") == 1 and not (tmp_path / "2.wav").exists() and history.takes("ann") == []


def test_what_the_retention_removed_is_not_shown_and_then_forgotten(history: History, tmp_path: Path) -> None:
    gone, there = (add(history, tmp_path, "ann", f"{number}.wav") for number in (1, 2))
    (tmp_path / "1.wav").unlink()
    assert [take.id for take in history.takes("ann")] == [there]
    with pytest.raises(RequestError):
        history.find("ann", gone)
    assert history.forget() == 1 and history.forget() == 0


def test_it_outlives_a_restart(history: History, tmp_path: Path) -> None:
    add(history, tmp_path, "ann", "1.wav")
    history.close()
    again = History(tmp_path / ".studio" / "history.sqlite3", tmp_path)
    assert len(again.takes("ann")) == 1
    assert add(again, tmp_path, "ann", "2.wav") > 1  # numbers are not given twice


def test_a_broken_file_is_an_error_and_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "history.sqlite3"
    file.write_bytes(b"this is no database " * 100)
    with pytest.raises(sqlite3.Error):
        History(file, tmp_path)
    assert file.read_bytes().startswith(b"this is no")


def test_only_so_many_are_shown(history: History, tmp_path: Path) -> None:
    numbers = [add(history, tmp_path, "ann", f"{number}.wav") for number in range(5)]
    assert [take.id for take in history.takes("ann", most=2)] == numbers[:-3:-1]


# ------------------------------------------------------------------------------------------------ reference clips
def clip_of(folder: Path, name: str = "me.wav", content: bytes = b"my voice") -> Path:
    path = folder / "uploads" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return path


def kept_clips(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / ".studio" / "clips").rglob("*") if path.is_file())


def test_a_clip_outlives_its_upload_and_goes_with_its_last_take(history: History, tmp_path: Path) -> None:
    clip = clip_of(tmp_path)
    first = add(history, tmp_path, "ann", "1.wav", clip=clip)
    second = add(history, tmp_path, "ann", "2.wav", clip=clip)
    clip.unlink()
    for number in (first, second):
        kept = history.find("ann", number).clip
        assert kept is not None and kept.name == "me.wav" and kept.read_bytes() == b"my voice"
    assert kept_clips(tmp_path) == ["me.wav"]
    assert (tmp_path / ".studio" / "clips").stat().st_mode & 0o077 == 0
    history.delete("ann", first)
    assert history.find("ann", second).clip is not None
    history.delete("ann", second)
    assert kept_clips(tmp_path) == []


def test_clearing_or_forgetting_takes_leaves_the_clips_of_others(history: History, tmp_path: Path) -> None:
    for visitor, name in (("ann", "1.wav"), ("bob", "2.wav"), ("eve", "3.wav")):
        add(history, tmp_path, visitor, name, clip=clip_of(tmp_path, f"{visitor}.wav"))
    history.clear("ann")
    assert kept_clips(tmp_path) == ["bob.wav", "eve.wav"]
    (tmp_path / "2.wav").unlink()
    history.forget()
    assert kept_clips(tmp_path) == ["eve.wav"]


def test_a_clip_that_cannot_be_kept_costs_nothing(
    history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webui.clips.LARGEST", 10)
    for name, clip in (
        ("1.wav", clip_of(tmp_path, content=b"x" * 11)),
        ("2.wav", tmp_path / "gone.wav"),
        ("3.wav", clip_of(tmp_path, "empty.wav", b"")),
    ):
        number = add(history, tmp_path, "ann", name, clip=clip)
        assert history.find("ann", number).clip is None
    assert add(history, tmp_path, "ann", "4.wav") and history.takes("ann")[0].clip is None


def test_a_history_from_before_clips_were_kept_is_taken_over(tmp_path: Path) -> None:
    from webui.history import _MIGRATIONS

    file = tmp_path / ".studio" / "history.sqlite3"
    file.parent.mkdir()
    old = sqlite3.connect(file)
    old.executescript(f"BEGIN; {_MIGRATIONS[0]}; PRAGMA user_version = 1; COMMIT;")
    row = ("ann", 1.0, "clone", "", "Hello.", 7, 1.5, "1.wav", "{}")
    old.execute(
        "INSERT INTO takes (visitor, created, mode, voice, text, seed, duration, file, settings)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        row,
    )
    old.commit()
    old.close()
    (tmp_path / "1.wav").write_bytes(b"sound")
    (take,) = History(file, tmp_path).takes("ann")
    assert (take.text, take.clip) == ("Hello.", None)


def test_clips_take_no_more_than_their_share_of_the_disk(
    history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webui.clips.MOST", 25)
    numbers = []
    for count in range(4):
        clip = clip_of(tmp_path, f"{count}.wav", b"ten bytes " + bytes([count]))
        numbers.append(add(history, tmp_path, "ann", f"take{count}.wav", clip=clip))
        for kept in (tmp_path / ".studio" / "clips").iterdir():  # a moment passes
            os.utime(kept, (kept.stat().st_mtime - 10,) * 2)
    assert kept_clips(tmp_path) == ["2.wav", "3.wav"]
    assert [history.find("ann", number).clip is None for number in numbers] == [True, True, False, False]

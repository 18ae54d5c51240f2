"""Files of finished sound: their names, that they are whole, and how long they stay."""

from __future__ import annotations

import os
import re
import threading
import time
from pathlib import Path

import av
import numpy as np
import pytest

from inference.types import EngineError, Mode, RequestError
from tests.webui.fake_pool import RATE, spoken
from webui import outputs as outputs_module
from webui.outputs import Outputs, Retention, file_word, hand_out, output_stem, take_back

pytestmark = pytest.mark.unit


def save(outputs: Outputs, **given: object) -> Path:
    return outputs.save(spoken(1), RATE, **{"mode": Mode.CLONE, "seed": 7, **given})  # type: ignore[arg-type]


def test_a_name_tells_time_mode_voice_and_seed() -> None:
    moment = time.mktime((2026, 11, 30, 3, 15, 0, 0, 0, -1))
    assert output_stem(Mode.CLONE, 7, "anna", moment) == "20261130-031500_clone_anna_7"
    assert output_stem(Mode.CROSS_LINGUAL, 0, "", moment) == "20261130-031500_cross-lingual_0"


@pytest.mark.parametrize(
    ("voice", "word"),
    [("小美", "小美"), ("../../etc/passwd", "etc-passwd"), ("a_b c", "a-b-c"), ("..", ""), ("x" * 90, "x" * 24),
     ("a" * 23 + " b", "a" * 23), ("nul\0:*?", "nul")],
)  # fmt: skip
def test_a_voice_s_name_is_safe_in_a_file_s_name(voice: str, word: str) -> None:
    assert file_word(voice) == word


@pytest.mark.parametrize("audio_format", ["wav", "flac", "mp3", "ogg"])
def test_every_format_is_the_whole_sound(audio_format: str, tmp_path: Path) -> None:
    path = save(Outputs(tmp_path), audio_format=audio_format)
    assert path.suffix == f".{audio_format}"
    with av.open(str(path)) as sound:
        stream = sound.streams.audio[0]
        samples = sum(frame.samples for frame in sound.decode(stream))
        seconds = samples / stream.rate
    assert seconds == pytest.approx(len(spoken(1)) / RATE, abs=0.1)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_names_that_are_taken_get_a_number_and_nothing_is_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs_module, "output_stem", lambda *_: "20261130-031500_clone_7")
    outputs, found = Outputs(tmp_path), []
    threads = [threading.Thread(target=lambda: found.append(save(outputs))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    endings = sorted(path.name.removeprefix("20261130-031500_clone_7") for path in found)
    assert endings == sorted([".wav", *(f"-{number}.wav" for number in range(2, 9))])
    assert all(path.stat().st_size == found[0].stat().st_size for path in found)


def test_a_file_system_without_links_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(outputs_module, "output_stem", lambda *_: "name")
    outputs = Outputs(tmp_path)
    assert {save(outputs).name, save(outputs).name} == {"name.wav", "name-2.wav"}
    assert len(list(tmp_path.iterdir())) == 2


def test_an_unknown_format_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(RequestError) as raised:
        save(Outputs(tmp_path), audio_format="wma")
    assert raised.value.code == "audio_format_unknown" and list(tmp_path.iterdir()) == []


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Path, data: bytes) -> int:
        self.touch()
        raise OSError(28, "No space left on device")

    outputs = Outputs(tmp_path)
    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(EngineError, match="No space left") as raised:
        save(outputs)
    assert raised.value.code == "output_not_writable" and list(tmp_path.iterdir()) == []


def aged(path: Path, seconds: float) -> Path:
    os.utime(path, (time.time() - seconds,) * 2)
    return path


def test_old_sound_goes_and_what_is_not_ours_stays(tmp_path: Path) -> None:
    outputs = Outputs(tmp_path, Retention(seconds=100))
    old, new = aged(save(outputs, voice="anna"), 200), aged(save(outputs), 50)
    mine = tmp_path / "my holiday.wav"
    mine.write_bytes(b"mine")
    aged(mine, 10_000)
    assert outputs.clean() == [old]
    assert new.exists() and mine.exists()


def test_beyond_the_size_the_oldest_go_first(tmp_path: Path) -> None:
    outputs = Outputs(tmp_path)
    paths = [aged(save(outputs, seed=seed), 100 - seed) for seed in range(4)]
    size = paths[0].stat().st_size
    outputs.retention = Retention(bytes=2 * size)
    assert outputs.clean() == paths[:2]
    assert outputs.clean() == []


def test_without_a_bound_all_stays(tmp_path: Path) -> None:
    outputs = Outputs(tmp_path)
    aged(save(outputs), 10**8)
    assert outputs.clean() == []


def test_what_a_killed_studio_left_half_written_goes(tmp_path: Path) -> None:
    outputs = Outputs(tmp_path)
    left, current = tmp_path / ".aa.part", tmp_path / ".bb.part"
    for path in (left, current):
        path.touch()
    aged(left, 100_000)
    outputs.clean()
    assert not left.exists() and current.exists()


def test_names_made_are_names_cleaned() -> None:
    for stem in (output_stem(Mode.CLONE, 1), output_stem(Mode.CROSS_LINGUAL, 2**40, "小 美")):
        for ending in ("wav", "mp3"):
            assert re.fullmatch(outputs_module._NAME, f"{stem}.{ending}")
            assert re.fullmatch(outputs_module._NAME, f"{stem}-2.{ending}")
    assert not re.fullmatch(outputs_module._NAME, "20261130_clone.wav")


def test_sound_is_int16_as_it_came(tmp_path: Path) -> None:
    path = save(Outputs(tmp_path))
    np.testing.assert_array_equal(np.frombuffer(path.read_bytes()[44:], np.int16), spoken(1))


def test_what_is_handed_out_is_a_copy_that_can_be_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gradio")
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "cache"))
    path = save(Outputs(tmp_path / "outputs"))
    copy = Path(hand_out(path))
    assert copy.name == path.name and copy.read_bytes() == path.read_bytes()
    assert copy.is_relative_to(tmp_path / "cache") and len(copy.parent.name) >= 32
    assert hand_out(path) == str(copy)
    take_back(path)
    assert not copy.exists() and path.exists()
    path.unlink()
    take_back(path)

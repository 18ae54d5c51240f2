"""The track of a subtitle file: each line at its time, none over another."""

from __future__ import annotations

import io
import wave
import zipfile
from pathlib import Path

import numpy as np
import pytest

from inference.frontend.encode import encode_audio
from tests.webui.fake_pool import RATE
from webui.batch import timeline as timeline_module
from webui.batch.job import BatchSettings, Job
from webui.batch.rows import Row, read_rows
from webui.batch.timeline import Line, make_track

pytestmark = pytest.mark.unit


def line(folder: Path, value: int, seconds: float, start: float) -> Line:
    path = folder / f"{value}.wav"
    path.write_bytes(encode_audio(np.full(round(seconds * RATE), value, np.int16), RATE, "wav"))
    return Line(path, f"Line {value}.", start)


def test_lines_begin_at_their_times_or_when_the_one_before_has_ended(tmp_path: Path) -> None:
    lines = [line(tmp_path, 300, 0.5, 2.0), line(tmp_path, 100, 1.0, 0.25), line(tmp_path, 200, 0.5, 1.0)]
    track = make_track(lines)
    assert track is not None and track.sample_rate == RATE
    expected = np.zeros(round(2.5 * RATE), np.int16)
    for value, begin, end in ((100, 0.25, 1.25), (200, 1.25, 1.75), (300, 2.0, 2.5)):
        expected[round(begin * RATE) : round(end * RATE)] = value
    assert len(track.pcm) == len(expected)
    assert np.abs(track.pcm.astype(int) - expected).max() <= 1
    rows = read_rows("t.srt", track.subtitles.encode())
    assert [(row.text, row.start, row.end) for row in rows] == [
        ("Line 100.", 0.25, 1.25), ("Line 200.", 1.25, 1.75), ("Line 300.", 2.0, 2.5)
    ]  # fmt: skip


def test_no_track_of_nothing_or_of_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert make_track([]) is None
    assert make_track([line(tmp_path, 1, 0.1, 86400.0)]) is None
    monkeypatch.setattr(timeline_module, "LONGEST_SECONDS", 1.0)
    assert make_track([line(tmp_path, 1, 0.9, 0.5)]) is None


def test_the_archive_of_subtitles_has_it_and_a_row_s_name_cannot_take_its_place(tmp_path: Path) -> None:
    rows = [Row("One.", name="timeline", start=1.0, end=2.0), Row("Two.", start=5.0), Row("Lost.", start=9.0)]
    job = Job.create(tmp_path / "job", "ann", "a.srt", BatchSettings(), rows)
    for index in (0, 1):
        job.add_sound(index, encode_audio(np.full(RATE, 50, np.int16), RATE, "wav"), 1.0)
    with zipfile.ZipFile(job.archive()) as archive:
        names = archive.namelist()
        data = archive.read("timeline.wav")
    assert names == ["0001_timeline.wav", "0002_Two.wav", "report.csv", "timeline.wav", "timeline.srt"]
    with wave.open(io.BytesIO(data)) as sound:
        assert sound.getnframes() == 6 * RATE
    plain = Job.create(tmp_path / "plain", "ann", "a.txt", BatchSettings(), [Row("One.")])
    plain.add_sound(0, encode_audio(np.full(RATE, 50, np.int16), RATE, "wav"), 1.0)
    with zipfile.ZipFile(plain.archive()) as archive:
        assert archive.namelist() == ["0001_One.wav", "report.csv"]

"""The zip of a batch: its sound, a report, and the track of a subtitle file."""

from __future__ import annotations

import csv
import io
import os
import threading
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from inference.frontend.encode import encode_audio
from webui.batch.files import RowResult
from webui.batch.rows import Row
from webui.batch.timeline import Line, make_track
from webui.outputs import file_word

_LONGEST_NAME = 60
_TRACK = "timeline"


def write_archive(
    path: Path, sound: Path, rows: Sequence[Row], results: Mapping[int, RowResult], audio_format: str
) -> None:
    """Write the zip of what lies in the folder `sound`, whole or not at all. Raises `OSError`."""
    partial = path.with_name(f".{os.getpid()}-{threading.get_ident()}.part")
    try:
        with zipfile.ZipFile(partial, "w") as archive:
            for index in sorted(results):
                if results[index].file:
                    archive.write(sound / results[index].file, results[index].file)
            # For Excel, which takes a file without a mark for the local encoding.
            archive.writestr("report.csv", report(rows, results).encode("utf-8-sig"), zipfile.ZIP_DEFLATED)
            for name, data in _track(sound, rows, results, audio_format).items():
                archive.writestr(name, data)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _track(
    sound: Path, rows: Sequence[Row], results: Mapping[int, RowResult], audio_format: str
) -> dict[str, bytes]:
    """Files of the track of a subtitle file."""
    lines = [
        Line(sound / results[index].file, row.text, row.start)
        for index, row in enumerate(rows)
        if row.start is not None and index in results and results[index].file
    ]
    track = make_track(lines)
    if track is None:
        return {}
    data = encode_audio(track.pcm, track.sample_rate, audio_format)
    return {f"{_TRACK}.{audio_format}": data, f"{_TRACK}.srt": track.subtitles.encode("utf-8")}


def report(rows: Sequence[Row], results: Mapping[int, RowResult]) -> str:
    """A CSV with a line for each row: what has become of it."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["row", "file", "seconds", "error", "text"])
    for index, row in enumerate(rows):
        result = results.get(index)
        if result is None:
            table.writerow([index + 1, "", "", "not spoken yet", _harmless(row.text)])
        else:
            seconds = result.seconds if result.file else ""
            table.writerow([index + 1, result.file, seconds, _harmless(result.message), _harmless(row.text)])
    return text.getvalue()


def file_names(rows: Sequence[Row], audio_format: str) -> list[str]:
    """A name for each row: its own if it has one, else its number and first words. No name comes twice."""
    taken = {_TRACK}
    names = []
    width = max(4, len(str(len(rows))))
    for number, row in enumerate(rows, 1):
        own = "_".join(filter(None, (file_word(part) for part in _without_ending(row.name).split("_"))))
        name = own[:_LONGEST_NAME]
        if not name or name.lower() in taken:
            name = "_".join(filter(None, (f"{number:0{width}d}", name or file_word(row.text))))
        taken.add(name.lower())
        names.append(f"{name}.{audio_format}")
    return names


def _without_ending(name: str) -> str:
    path = Path(name.replace("\\", "/"))
    return path.stem if path.suffix.lower() in (".wav", ".mp3", ".flac", ".ogg", ".txt") else path.name


def _harmless(text: str) -> str:
    """Text that no spreadsheet program takes for a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text

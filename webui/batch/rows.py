"""Reads a batch file (text, CSV, TSV, JSONL or SRT) into rows."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference.types import Mode, RequestError

MOST_ROWS = 5000
MOST_BYTES = 20_000_000
_ENCODINGS = ("utf-8-sig", "utf-16", "gb18030")


@dataclass(frozen=True)
class Row:
    """One thing to say. What is empty or None is taken from the settings of the batch."""

    text: str
    name: str = ""  # of the file, without ending
    voice: str = ""  # name or id of a saved voice
    instruction: str = ""
    mode: str = ""
    seed: int | None = None
    speed: float | None = None
    start: float | None = None  # seconds, from a subtitle file
    end: float | None = None


# What people call the columns, in lower case.
_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "text": ("text", "tts_text", "sentence", "content", "文本", "文字", "内容"),
    "name": ("name", "file", "filename", "id", "文件名", "编号"),
    "voice": ("voice", "speaker", "音色", "声音"),
    "instruction": ("instruction", "instruct", "style", "指令"),
    "mode": ("mode", "模式"),
    "seed": ("seed", "种子"),
    "speed": ("speed", "rate", "语速"),
    "start": ("start",),
    "end": ("end",),
}
_FIELD_OF = {word: field for field, words in _COLUMNS.items() for word in words}


def read_rows(name: str, data: bytes) -> list[Row]:
    """The rows of a file; its ending says what it is.

    Raises `RequestError`: batch_format (unknown ending), batch_unreadable, batch_empty, batch_too_large or
    batch_row (with `row`, counted as a person does).
    """
    kind = Path(name).suffix.lower().lstrip(".")
    readers: dict[str, Callable[[str], Iterable[Row]]] = {
        "txt": _text_rows,
        "csv": _csv_rows,
        "tsv": _csv_rows,
        "jsonl": _jsonl_rows,
        "srt": _srt_rows,
    }
    if kind not in readers:
        raise RequestError("batch_format", "A batch is a .txt, .csv, .tsv, .jsonl or .srt file.", ending=kind)
    if len(data) > MOST_BYTES:
        raise _too_large()
    rows = []
    for row in readers[kind](_decode(data)):
        rows.append(row)
        if len(rows) > MOST_ROWS:
            raise _too_large()
    if not rows:
        raise RequestError("batch_empty", "The file holds no text to speak.")
    return rows


def row_of(values: Mapping[str, Any], number: int) -> Row:
    """A row from named values, as in a CSV line, a JSON object or a request of the API; unknown names are ignored.

    Raises `RequestError("batch_row")`.
    """
    found = {
        field: value
        for key, value in values.items()
        if (field := _FIELD_OF.get(str(key).strip().lower())) and value not in (None, "")
    }
    if not isinstance(found.get("text", ""), str):
        raise _bad_row(number, "its text is no text")
    mode = str(found.get("mode", "")).strip().lower()
    if mode and mode not in [known.value for known in Mode]:
        raise _bad_row(number, f"unknown mode {mode[:40]!r}")
    return Row(
        text=found.get("text", ""),
        name=str(found.get("name", "")),
        voice=str(found.get("voice", "")),
        instruction=str(found.get("instruction", "")),
        mode=mode,
        seed=_number(found.get("seed"), int, "seed", number),
        speed=_number(found.get("speed"), float, "speed", number),
        start=_number(found.get("start"), float, "start", number),
        end=_number(found.get("end"), float, "end", number),
    )


def _number(value: Any, kind: Callable[[Any], Any], name: str, number: int) -> Any:
    if value is None:
        return None
    try:
        return kind(value)
    except (TypeError, ValueError, OverflowError):
        raise _bad_row(number, f"{name} is {str(value)[:40]!r}, which is no number") from None


def _text_rows(text: str) -> Iterable[Row]:
    return (Row(line.strip()) for line in text.splitlines() if line.strip())


def _csv_rows(text: str) -> Iterable[Row]:
    """With a heading that names a text column; else the first column is the text, or name and text of two."""
    lines = list(csv.reader(io.StringIO(text), _dialect(text)))
    lines = [line for line in lines if any(cell.strip() for cell in line)]
    if not lines:
        return
    heading = [_FIELD_OF.get(cell.strip().lower(), "") for cell in lines[0]]
    if "text" in heading:
        keys = [cell.strip().lower() for cell in lines[0]]
        for number, line in enumerate(lines[1:], 1):
            yield row_of(dict(zip(keys, line)), number)
        return
    for line in lines:
        yield Row(line[0].strip()) if len(line) == 1 else Row(line[1].strip(), name=line[0].strip())


def _dialect(text: str) -> type[csv.Dialect]:
    class Found(csv.excel):
        pass

    first = text.splitlines()[0] if text else ""
    Found.delimiter = max(",\t;", key=first.count)
    return Found


def _jsonl_rows(text: str) -> Iterable[Row]:
    lines = (line for line in text.splitlines() if line.strip())
    for number, line in enumerate(lines, 1):
        try:
            values = json.loads(line)
        except ValueError:
            raise _bad_row(number, "it is no JSON") from None
        if isinstance(values, str):
            values = {"text": values}
        if not isinstance(values, dict):
            raise _bad_row(number, "it is neither an object nor a text")
        yield row_of(values, number)


_TIMES = re.compile(r"(\d+):(\d\d):(\d\d)[,.](\d{1,3})\s*-->\s*(\d+):(\d\d):(\d\d)[,.](\d{1,3})")
_TAGS = re.compile(r"</?[a-zA-Z][^>]*>|\{\\[^}]*\}")


def _srt_rows(text: str) -> Iterable[Row]:
    blocks = re.split(r"\n\s*\n", text.replace("\r\n", "\n").replace("\r", "\n").strip())
    for number, block in enumerate(blocks, 1):
        lines = [line.strip() for line in block.splitlines() if line.strip()]
        place = next((index for index, line in enumerate(lines) if _TIMES.search(line)), None)
        if place is None:
            raise _bad_row(number, "it has no line of times")
        match = _TIMES.search(lines[place])
        spoken = _TAGS.sub("", " ".join(lines[place + 1 :])).strip()
        if match and spoken:
            yield Row(spoken, start=_seconds(match.groups()[:4]), end=_seconds(match.groups()[4:]))


def _seconds(parts: Iterable[str]) -> float:
    hours, minutes, seconds, fraction = parts
    return int(hours) * 3600 + int(minutes) * 60 + int(seconds) + int(fraction.ljust(3, "0")) / 1000


def _decode(data: bytes) -> str:
    for encoding in _ENCODINGS:
        if encoding == "utf-16" and not data.startswith((b"\xff\xfe", b"\xfe\xff")):
            continue
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError:
            continue
        if "\0" not in text:
            return text
    raise RequestError("batch_unreadable", "The file is no text; save it as UTF-8.")


def _too_large() -> RequestError:
    return RequestError(
        "batch_too_large", f"The file is too large; a batch has at most {MOST_ROWS} rows.", limit=MOST_ROWS
    )


def _bad_row(number: int, reason: str) -> RequestError:
    return RequestError("batch_row", f"Row {number} cannot be used: {reason}.", row=number, reason=reason)

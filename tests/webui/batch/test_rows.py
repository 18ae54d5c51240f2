"""Batch files of every kind, as people and their programs write them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.types import RequestError
from webui.batch import rows as rows_module
from webui.batch.rows import Row, read_rows

pytestmark = pytest.mark.unit


def code_of(name: str, data: bytes) -> RequestError:
    with pytest.raises(RequestError) as raised:
        read_rows(name, data)
    return raised.value


def test_text_is_a_row_a_line() -> None:
    assert read_rows("a.TXT", "你好。\r\n\r\n  Two.  \n".encode()) == [Row("你好。"), Row("Two.")]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "gb18030"])
def test_the_encodings_of_common_programs(encoding: str) -> None:
    assert read_rows("a.txt", "第一句。\n第二句。".encode(encoding))[1].text == "第二句。"


def test_a_table_with_headings_in_either_language() -> None:
    data = 'id,文本,Voice,语速,seed\r\na1,"你好, ""朋友""\n们",小美,1.5,7\r\nb2,Bye,,,\r\n'
    first, second = read_rows("a.csv", data.encode("utf-8-sig"))
    assert first == Row('你好, "朋友"\n们', name="a1", voice="小美", speed=1.5, seed=7)
    assert second == Row("Bye", name="b2")


@pytest.mark.parametrize("mark", [",", "\t", ";"])
def test_a_table_without_headings(mark: str) -> None:
    assert read_rows("a.csv", f"n1{mark}One.\nn2{mark}Two.".encode()) == [
        Row("One.", "n1"),
        Row("Two.", "n2"),
    ]
    assert read_rows("a.tsv", b"One.\nTwo.") == [Row("One."), Row("Two.")]


def test_json_lines() -> None:
    lines = [
        json.dumps({"text": "One.", "speed": 2, "mode": "instruct", "instruction": "slowly", "other": [1]}),
        json.dumps("Two."),
    ]
    assert read_rows("a.jsonl", "\n\n".join(lines).encode()) == [
        Row("One.", speed=2.0, mode="instruct", instruction="slowly"),
        Row("Two."),
    ]


def test_subtitles() -> None:
    data = "1\n00:00:01,500 --> 00:00:03,000\n<i>Good</i>\nmorning.\n\n2\n01:00:00.25 --> 01:00:01,000\n{\\an8}Bye.\n"
    assert read_rows("a.srt", data.replace("\n", "\r\n").encode()) == [
        Row("Good morning.", start=1.5, end=3.0),
        Row("Bye.", start=3600.25, end=3601.0),
    ]


def test_what_cannot_be_read_is_told() -> None:
    assert code_of("a.docx", b"text").code == "batch_format"
    assert code_of("a", b"text").code == "batch_format"
    assert code_of("a.txt", b" \n\n").code == "batch_empty"
    assert code_of("a.csv", b"text,seed\n").code == "batch_empty"
    assert code_of("a.txt", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR").code == "batch_unreadable"


@pytest.mark.parametrize(
    ("name", "data", "row"),
    [
        ("a.csv", "text,seed\nOne,1\nTwo,many\n", 2),
        ("a.csv", "text,mode\nOne,sing\n", 1),
        ("a.jsonl", '{"text": "One"}\n{"text": 5}\n', 2),
        ("a.jsonl", '"One"\n{half\n', 2),
        ("a.jsonl", "[1]\n", 1),
        ("a.srt", "1\n00:00:01,000 --> 00:00:02,000\nOne\n\nno times here\n", 2),
    ],
)
def test_a_bad_row_is_named(name: str, data: str, row: int) -> None:
    error = code_of(name, data.encode())
    assert (error.code, error.details["row"]) == ("batch_row", row)


def test_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "MOST_ROWS", 3)
    assert len(read_rows("a.txt", b"a\nb\nc")) == 3
    assert code_of("a.txt", b"a\nb\nc\nd").code == "batch_too_large"
    monkeypatch.setattr(rows_module, "MOST_BYTES", 3)
    assert code_of("a.txt", b"abcd").code == "batch_too_large"


@given(st.sampled_from(["txt", "csv", "jsonl", "srt"]), st.binary(max_size=300))
def test_any_bytes_are_rows_or_one_error(kind: str, data: bytes) -> None:
    try:
        rows = read_rows(f"a.{kind}", data)
    except RequestError:
        return
    assert rows and all(isinstance(row.text, str) for row in rows)

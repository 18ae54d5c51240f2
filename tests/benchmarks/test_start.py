"""The table of starts."""

from __future__ import annotations

import pytest

from benchmarks.start import build_parser, table

pytestmark = pytest.mark.unit


def test_a_line_a_start_and_the_medians() -> None:
    starts = [
        {"served": 2.0, "shown": 3.0, "usable": 4.0},
        {"served": 3.0, "usable": 9.0},
        {"served": 7.0, "usable": 5.0},
    ]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table(starts).splitlines()]
    assert lines[0][:4] == ["start", "served", "shown", "usable"]
    assert lines[3][:4] == ["2", "3.0", "", "9.0"]
    assert lines[-1][:4] == ["median", "3.0", "3.0", "5.0"] and len(lines) == 6
    assert len(table(starts[:1]).splitlines()) == 3


def test_flags() -> None:
    args = build_parser().parse_args(["--starts", "2", "--first", "--command", "bash run.sh"])
    assert args.starts == 2 and args.first and args.command == "bash run.sh"

"""Mandarin readings of dates, years and times of day."""

from __future__ import annotations

import re

from inference.frontend.date_patterns import (
    CLOCK,
    DAY_MONTH,
    HOUR,
    MONTH_DAY,
    YEAR_AND_MONTH,
    YEAR_FIRST,
    YEAR_LAST,
    calendar_date,
)
from inference.frontend.number_words import han_digits, mandarin_cardinal
from inference.frontend.rule import Rule


def _year(digits: str | None) -> str:
    return f"{han_digits(digits)}年" if digits else ""


def _date(match: re.Match[str]) -> str:
    found = calendar_date(match)
    if found is None:
        return match.group()
    in_year, month, day = found
    return f"{_year(in_year)}{mandarin_cardinal(month)}月{mandarin_cardinal(day)}日"


def _year_and_month(match: re.Match[str]) -> str:
    return f"{_year(match['year'])}{mandarin_cardinal(int(match['month']))}月"


def _clock(match: re.Match[str]) -> str:
    half = {"a": "上午", "p": "下午"}.get((match["half"] or "").lower(), "")
    minute = int(match["minute"])
    words = f"{half}{mandarin_cardinal(int(match['hour']), pair=True)}点" + ("整" if not minute else "")
    if minute:
        words += ("零" if minute < 10 else "") + mandarin_cardinal(minute) + "分"
    return words + (f"{mandarin_cardinal(int(match['second']))}秒" if match["second"] else "")


def _hour(match: re.Match[str]) -> str:
    half = "上午" if match["half"].lower() == "a" else "下午"
    return f"{half}{mandarin_cardinal(int(match['hour']), pair=True)}点"


DATES: list[Rule] = [
    (YEAR_FIRST, _date),
    (YEAR_LAST, _date),
    (YEAR_AND_MONTH, _year_and_month),
    (DAY_MONTH, _date),
    (MONTH_DAY, _date),
]
YEARS: list[Rule] = [
    (re.compile(r"(?<=[日号月年])\s?[-~—]\s?(?=\d)"), lambda m: "到"),
    (
        re.compile(r"(?<!\d)(\d{4})\s?[-~—]\s?(\d{4})(?=年)"),
        lambda m: f"{han_digits(m[1])}到{han_digits(m[2])}",
    ),
    (re.compile(r"(?<!\d)(\d0)(?=后)"), lambda m: han_digits(m[1])),
    (re.compile(r"(?<!\d)(\d{4})(?=年(?!前|后|来|级|[以之]|的历史))"), lambda m: han_digits(m[1])),
    (re.compile(r"(?<![\d.])(\d{2})(?=年(?:\d|[春夏秋冬初底末]))"), lambda m: han_digits(m[1])),
    (re.compile(r"(?<=[A-Z])(19\d\d|20\d\d)(?![\d.])"), lambda m: han_digits(m[1])),
]
TIMES: list[Rule] = [
    (CLOCK, _clock),
    (HOUR, _hour),
    (re.compile(r"(?<=[点分秒整])\s?[-~—]\s?(?=[零一二三四五六七八九十两上下])"), lambda m: "到"),
]

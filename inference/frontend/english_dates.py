"""English readings of dates, years, times of day and decades."""

from __future__ import annotations

import re

from inference.frontend.date_patterns import (
    CLOCK,
    HALF,
    HOUR,
    MONTHS,
    YEAR_AND_MONTH,
    YEAR_FIRST,
    YEAR_LAST,
    calendar_date,
)
from inference.frontend.number_words import english_cardinal as cardinal
from inference.frontend.number_words import english_ordinal as ordinal
from inference.frontend.number_words import english_year as year
from inference.frontend.rule import Rule

_SHORT = {name[:3]: name for name in MONTHS} | {"Sept": "September"}
_SHORT_MONTH = rf"(?P<month>{'|'.join(sorted(_SHORT, key=len, reverse=True))})\b\.?"
_MONTH = "|".join(MONTHS)
_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
_SHORT_DAYS = {name[:3]: name for name in _DAYS} | {
    "Tues": "Tuesday",
    "Thur": "Thursday",
    "Thurs": "Thursday",
}
_DAY = "|".join(sorted(_SHORT_DAYS, key=len, reverse=True))
_YEAR = r"1[1-9]\d\d|20\d\d"
_YEAR_WORDS = "in|since|by|of|until|from|year|before|after|during"


def _short_month(match: re.Match[str]) -> str:
    return _SHORT[match["month"]]


def _day_range(match: re.Match[str]) -> str:
    return f"{_SHORT_DAYS[match[1]]} to {_SHORT_DAYS[match[2]]}"


def _date(match: re.Match[str]) -> str:
    found = calendar_date(match)
    if found is None:
        return match.group()
    in_year, month, day = found
    return f"{MONTHS[month - 1]} {ordinal(day)}, {year(int(in_year))}"


def _year_and_month(match: re.Match[str]) -> str:
    return f"{MONTHS[int(match['month']) - 1]} {year(int(match['year']))}"


def _day_before_month(match: re.Match[str]) -> str:
    day = int(match["day"])
    if not 1 <= day <= 31:
        return match.group()
    said = f"{match['the'] or 'the '}{ordinal(day)} of {match['month']}"
    return f"{said}{match['comma'] or ''} {year(int(match['year']))}" if match["year"] else said


def _clock(match: re.Match[str]) -> str:
    hour, minute, half = int(match["hour"]), int(match["minute"] or 0), match["half"]
    words = cardinal(hour)
    if minute:
        words += " " + (cardinal(minute) if minute > 9 else f"oh {cardinal(minute)}")
    elif not half:
        words += " o'clock" if 1 <= hour <= 12 else " hundred hours"
    if match["second"]:
        words += f" and {cardinal(int(match['second']))} seconds"
    return f"{words} {half[0].upper()} M" if half else words


def _decade(match: re.Match[str]) -> str:
    tens = match["tens"]
    words = year(int(tens)) if len(tens) == 4 else cardinal(int(tens))
    return words[:-1] + "ies" if words.endswith("y") else words + "s"


DATES: list[Rule] = [
    (re.compile(rf"\b{_SHORT_MONTH}(?=,? ?\d)"), _short_month),
    (re.compile(rf"(?<=\d ){_SHORT_MONTH}"), _short_month),
    (re.compile(rf"\b({_DAY})\.?\s?-\s?({_DAY})\b\.?"), _day_range),
    (YEAR_FIRST, _date),
    (YEAR_LAST, _date),
    (YEAR_AND_MONTH, _year_and_month),
    (
        re.compile(
            rf"(?P<the>\b[Tt]he )?(?<![\d.,/:])\b(?P<day>\d{{1,2}})(?:st|nd|rd|th)?(?: of)? (?P<month>{_MONTH})\b"
            rf"(?:(?P<comma>,)? (?P<year>{_YEAR})\b(?![.,:]?\d))?"
        ),
        _day_before_month,
    ),
    (
        re.compile(rf"(\b(?:{_MONTH})(?: \d{{1,2}}(?:st|nd|rd|th)?)?,? )({_YEAR})\b(?![.,:]?\d)"),
        lambda m: m[1] + year(int(m[2])),
    ),
    (
        re.compile(rf"(\b(?:{_MONTH}) )(\d{{1,2}})\b(?![:.,]\d|(?:st|nd|rd|th)\b)"),
        lambda m: m[1] + ordinal(int(m[2])),
    ),
]
TIMES: list[Rule] = [
    (re.compile(r"(?<=\d)\s?-\s?(?=\d{1,2}:\d\d)|(?<=\d[aApP][mM])\s?-\s?(?=\d)"), lambda m: " to "),
    (CLOCK, _clock),
    (re.compile(rf"\b(?P<hour>1[0-2]|[1-9])\.(?P<minute>[0-5]\d)(?P<second>)\s?{HALF}"), _clock),
    (HOUR, _clock),
]
YEARS: list[Rule] = [
    (re.compile(r"(?<![\w.,])'?(?P<tens>(?:1[1-9]\d|20\d|[2-9])0)s\b"), _decade),
    (re.compile(rf"(\b(?:{_YEAR_WORDS}) )({_YEAR})\b(?![.,:]?\d)", re.I), lambda m: m[1] + year(int(m[2]))),
    (re.compile(r"(?<![\w.,:/$-])(19\d\d|20\d\d)\b(?![.,:/]?\d|[-%])"), lambda m: year(int(m[1]))),
    (re.compile(r"(?<=[A-Z])(19\d\d|20\d\d)\b(?![.,:/]?\d|[-%])"), lambda m: f" {year(int(m[1]))}"),
]

"""What all languages share about dates and times written in digits: how they look and what they mean."""

from __future__ import annotations

import re

YEAR_FIRST = re.compile(
    r"(?<![\d.,/-])(?P<year>[12]\d{3})(?P<mark>[-/.])(?P<second>\d{1,2})(?P=mark)(?P<third>\d{1,2})(?![\d-])(?!\.\d)"
)
YEAR_LAST = re.compile(
    r"(?<![\d.,/-])(?P<first>\d{1,2})(?P<mark>[/.-])(?P<second>\d{1,2})(?P=mark)(?P<year>(?:19|20)\d\d|(?<=/)\d\d)"
    r"(?![\d/-])(?!\.\d)"
)
YEAR_AND_MONTH = re.compile(
    r"(?<![\d.,/-])(?P<year>(?:19|20)\d\d)[-/](?P<month>0[1-9]|1[0-2])(?![\d/-])(?!\.\d)"
)
HALF = r"(?P<half>[aApP])\.?[mM](?![A-Za-z])(?:\.(?! [A-Z]|$))?"
CLOCK = re.compile(
    r"(?<![\d:：.])(?P<hour>[01]?\d|2[0-4])[:：](?P<minute>[0-5]\d)(?:[:：](?P<second>[0-5]\d))?(?![\d:：])"
    rf"(?:\s?{HALF})?"
)
HOUR = re.compile(rf"(?<![\w.:])(?P<hour>1[0-2]|[1-9])(?P<minute>)(?P<second>)\s?{HALF}", re.A)

MONTHS = "January February March April May June July August September October November December".split()
MONTH_NUMBERS = {name: number for number, name in enumerate(MONTHS, 1)}
MONTH_NUMBERS |= {name[:3]: number for name, number in MONTH_NUMBERS.items()} | {"Sept": 9}
_MONTH = rf"(?P<month>{'|'.join(sorted(MONTH_NUMBERS, key=len, reverse=True))})(?![A-Za-z])\.?"
_YEAR = r"1[1-9]\d\d|20\d\d"
# 5 December 2024 and December 5, 2024 in a text of another language
DAY_MONTH = re.compile(
    rf"(?<![\d.,/:])(?P<day>\d{{1,2}})(?:st|nd|rd|th)?(?: of)? ?{_MONTH}(?:,? ?(?P<year>{_YEAR})(?!\d))?"
)
MONTH_DAY = re.compile(
    rf"(?<![A-Za-z]){_MONTH} ?(?P<day>\d{{1,2}})(?:st|nd|rd|th)?(?![\d.:])(?:,? (?P<year>{_YEAR})(?!\d))?"
)


def calendar_date(match: re.Match[str]) -> tuple[str, int, int] | None:
    """(year in four digits or "", month, day) of a match of the patterns above; None when there is no such day.

    12/25/2024 is read as in America; 25/12/2024 can only, 25.12.2024 does mostly mean the day first.
    """
    found = match.groupdict()
    year = found["year"] or ""
    if match.re in (DAY_MONTH, MONTH_DAY):
        month, day = MONTH_NUMBERS[found["month"]], int(found["day"])
    elif match.re is YEAR_FIRST:
        month, day = int(found["second"]), int(found["third"])
    else:
        month, day = int(found["first"]), int(found["second"])
        if month > 12 or (found["mark"] == "." and day <= 12):
            month, day = day, month
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return None
    return ("20" + year if len(year) == 2 else year), month, day

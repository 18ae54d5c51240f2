"""Korean readings of numbers, units, addresses and signs."""

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
from inference.frontend.korean_numbers import korean_cardinal as cardinal
from inference.frontend.korean_numbers import korean_count as count
from inference.frontend.korean_numbers import korean_digits as digits_in_words
from inference.frontend.rule import ADDRESS, NUMBER, SPELLED, Rule, apply

_UNITS = {
    "km²": "제곱킬로미터",
    "m²": "제곱미터",
    "m³": "세제곱미터",
    "m/s": "미터 퍼 세컨드",
    "km": "킬로미터",
    "cm": "센티미터",
    "mm": "밀리미터",
    "kg": "킬로그램",
    "mg": "밀리그램",
    "ml": "밀리리터",
    "mL": "밀리리터",
    "GHz": "기가헤르츠",
    "MHz": "메가헤르츠",
    "Hz": "헤르츠",
    "TB": "테라바이트",
    "GB": "기가바이트",
    "MB": "메가바이트",
    "kW": "킬로와트",
    "W": "와트",
    "V": "볼트",
    "L": "리터",
    "°C": "도",
    "℃": "도",
    "°F": "화씨도",
    "℉": "화씨도",
    "°": "도",
    "%": "퍼센트",
    "m": "미터",
    "g": "그램",
}
_CURRENCIES = {"$": "달러", "€": "유로", "£": "파운드", "￥": "엔", "₩": "원"}
_SIGNS = {
    "+": "플러스",
    "=": "는",
    "×": "곱하기",
    "÷": "나누기",
    "±": "플러스마이너스",
    "&": "앤드",
    "@": "골뱅이",
}
_SIGNS |= {"%": "퍼센트", "#": "샵", "℃": "도", "°": "도", "²": "제곱", "³": "세제곱", **_CURRENCIES}
_MARKS = {".": "점", "@": "골뱅이", "/": "슬래시", "-": "하이픈", "_": "언더바", ":": "콜론"}
_MONTHS = {6: "유월", 10: "시월"}
_COUNTERS = "개|명|살|마리|권|병|잔|장|대|시간|달|그루|송이|켤레|가지|사람|채|척|벌|쌍|군데|배|곳|줄|통|봉지|조각|번째"
_TIMES = "번(?!\\s?(?:출구|버스|문제|트랙|홈|게이트|타자|선수|방|국도|호선))"  # 3번 출구 is number three


def say_korean(text: str) -> str:
    """`text` with every number, unit and sign in words; words and punctuation stay."""
    return apply(_RULES, text)


def _number(digits: str) -> str:
    whole, _, decimals = digits.replace(",", "").partition(".")
    words = (
        digits_in_words(whole)
        if len(whole) > 20 or (len(whole) > 1 and whole[0] == "0")
        else cardinal(int(whole or "0"))
    )
    return f"{words} 점 {digits_in_words(decimals)}" if decimals else words


def _address(match: re.Match[str]) -> str:
    bare = re.sub(r"^https?://", "", match.group()).rstrip("/")
    spaced = re.sub(r"\d+", lambda digits: f" {digits_in_words(digits.group())} ", bare)
    return re.sub(r"[^\w\s]|_", lambda mark: f" {_MARKS.get(mark.group(), '')} ", spaced)


def _spelled(match: re.Match[str]) -> str:
    plus = "플러스 " if match.group().startswith("+") else ""
    groups = re.findall(r"\d+|X", match.group())
    return plus + ", ".join(
        digits_in_words(group, telephone=True) if group.isdigit() else group for group in groups
    )


def _month(month: int) -> str:
    return _MONTHS.get(month) or f"{cardinal(month)}월"


def _date(match: re.Match[str]) -> str:
    found = calendar_date(match)
    if found is None:
        return match.group()
    year, month, day = found
    return (
        f"{cardinal(int(year))}년 {_month(month)} {cardinal(day)}일"
        if year
        else f"{_month(month)} {cardinal(day)}일"
    )


def _clock(match: re.Match[str]) -> str:
    half = {"a": "오전 ", "p": "오후 "}.get((match["half"] or "").lower(), "")
    hour = int(match["hour"])
    words = f"{half}{count(hour) if 1 <= hour <= 12 else cardinal(hour)} 시"
    if int(match["minute"] or 0):
        words += f" {cardinal(int(match['minute']))} 분"
    return words + (f" {cardinal(int(match['second']))} 초" if match["second"] else "")


def _money(match: re.Match[str]) -> str:
    amount = re.sub(r"\.?0+$", "", match["amount"]) if "." in match["amount"] else match["amount"]
    return f"{_number(amount)}{match['scale'] or ''} {_CURRENCIES[match['sign']]}"


def _counted(match: re.Match[str]) -> str:
    until = f"에서 {count(int(match['until']))}" if match["until"] else ""
    return f"{count(int(match['amount']))}{until} {match['counter']}"


def _fraction(match: re.Match[str]) -> str:
    whole = f"{_number(match[1])}와 " if match[1] else ""
    return f"{whole}{_number(match[3])}분의 {_number(match[2])}"


_UNIT = "|".join(re.escape(unit) for unit in sorted(_UNITS, key=len, reverse=True))
_RULES: list[Rule] = [
    (ADDRESS, _address),
    *((pattern, _spelled) for pattern in SPELLED),
    *((pattern, _date) for pattern in (YEAR_FIRST, YEAR_LAST, DAY_MONTH, MONTH_DAY)),
    (YEAR_AND_MONTH, lambda m: f"{cardinal(int(m['year']))}년 {_month(int(m['month']))}"),
    (CLOCK, _clock),
    (HOUR, _clock),
    (re.compile(rf"(?P<sign>[$€£￥₩])\s?(?P<amount>{NUMBER})\s?(?P<scale>[만억조])?"), _money),
    (re.compile(r"(?<!\d)(0?6|10)월"), lambda m: _MONTHS[int(m[1])]),
    (re.compile(r"(?<![\d.:])(1[0-2]|[1-9])\s?시(?!간)"), lambda m: f"{count(int(m[1]))} 시"),
    (
        re.compile(
            rf"(?<![\d.,제-])(?P<amount>[1-9]\d?)(?:\s?[-~]\s?(?P<until>[1-9]\d?))?\s?(?P<counter>{_COUNTERS}|{_TIMES})"
        ),
        _counted,
    ),
    (re.compile(rf"(?<![\d.])({NUMBER})\s?km/h"), lambda m: f"시속 {_number(m[1])} 킬로미터"),
    (re.compile(r"(?<![\w.)])-(?=\.?\d)", re.A), lambda m: "마이너스 "),
    (re.compile(rf"(?<![\d.])({NUMBER})\s?[-~—]\s?(?={NUMBER})"), lambda m: f"{_number(m[1])}에서 "),
    (
        re.compile(rf"(?<![\d.])({NUMBER})\s?({_UNIT})(?![A-Za-z²³])"),
        lambda m: f"{_number(m[1])} {_UNITS[m[2]]}",
    ),
    (re.compile(r"(?<![\d/.,])(?:(\d{1,4}) )?(\d{1,4})/(\d{1,4})(?![\d/])"), _fraction),
    (re.compile(r"(?<=\d):(?=\d)"), lambda m: " 대 "),
    (
        re.compile(r"(?<![\d.])\d+(?:\.\d+){2,}"),
        lambda m: " 점 ".join(_number(part) for part in m.group().split(".")),
    ),
    (re.compile(r"(?<=[A-Za-z])-(?=\d)"), lambda m: " "),
    (re.compile(NUMBER), lambda m: _number(m.group())),
    (re.compile(r"[$€£￥₩%&+=×÷±²³@#℃°]"), lambda m: f" {_SIGNS[m.group()]} "),
    (re.compile(r"\s*—+\s*"), lambda m: ", "),
    (re.compile(r"[<>|~^√/\\_]"), lambda m: " "),
]

"""Japanese readings of numbers, units, addresses and signs."""

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
from inference.frontend.number_words import han_digits
from inference.frontend.number_words import japanese_cardinal as cardinal
from inference.frontend.rule import ADDRESS, NUMBER, SPELLED, Rule, apply

_UNITS = {
    "km²": "平方キロメートル",
    "m²": "平方メートル",
    "m³": "立方メートル",
    "km": "キロメートル",
    "cm": "センチメートル",
    "mm": "ミリメートル",
    "kg": "キログラム",
    "mg": "ミリグラム",
    "ml": "ミリリットル",
    "mL": "ミリリットル",
    "GHz": "ギガヘルツ",
    "MHz": "メガヘルツ",
    "Hz": "ヘルツ",
    "TB": "テラバイト",
    "GB": "ギガバイト",
    "MB": "メガバイト",
    "kW": "キロワット",
    "W": "ワット",
    "V": "ボルト",
    "L": "リットル",
    "°C": "度",
    "℃": "度",
    "°F": "度",
    "℉": "度",
    "°": "度",
    "%": "パーセント",
    "m": "メートル",
    "g": "グラム",
}
_CURRENCIES = {"$": "ドル", "€": "ユーロ", "£": "ポンド", "￥": "円", "₩": "ウォン"}
_SIGNS = {"+": "プラス", "=": "イコール", "×": "かける", "÷": "割る", "±": "プラスマイナス", "&": "アンド"}
_SIGNS |= {
    "%": "パーセント",
    "#": "シャープ",
    "℃": "度",
    "°": "度",
    "²": "の二乗",
    "³": "の三乗",
    "@": "アットマーク",
}
_SIGNS |= _CURRENCIES
_MARKS = {
    ".": "ドット",
    "@": "アットマーク",
    "/": "スラッシュ",
    "-": "ハイフン",
    "_": "アンダーバー",
    ":": "コロン",
}


def say_japanese(text: str) -> str:
    """`text` with every number, unit and sign in words; words and punctuation stay."""
    return apply(_RULES, text)


def _digits(digits: str) -> str:
    return han_digits(digits).replace("零", "ゼロ")


def _number(digits: str) -> str:
    whole, _, decimals = digits.replace(",", "").partition(".")
    words = (
        _digits(whole)
        if len(whole) > 20 or (len(whole) > 1 and whole[0] == "0")
        else cardinal(int(whole or "0"))
    )
    return f"{words}点{_digits(decimals)}" if decimals else words


def _address(match: re.Match[str]) -> str:
    bare = re.sub(r"^https?://", "", match.group()).rstrip("/")
    digits = re.sub(r"\d+", lambda found: _digits(found.group()), bare)
    return re.sub(r"[^\w\s]|_", lambda mark: _MARKS.get(mark.group(), ""), digits)


def _spelled(match: re.Match[str]) -> str:
    plus = "プラス" if match.group().startswith("+") else ""
    groups = re.findall(r"\d+|X", match.group())
    return plus + "、".join(_digits(group) if group.isdigit() else group for group in groups)


def _date(match: re.Match[str]) -> str:
    found = calendar_date(match)
    if found is None:
        return match.group()
    year, month, day = found
    return (f"{cardinal(int(year))}年" if year else "") + f"{cardinal(month)}月{cardinal(day)}日"


def _clock(match: re.Match[str]) -> str:
    half = {"a": "午前", "p": "午後"}.get((match["half"] or "").lower(), "")
    words = f"{half}{cardinal(int(match['hour']))}時"
    if int(match["minute"] or 0):
        words += f"{cardinal(int(match['minute']))}分"
    return words + (f"{cardinal(int(match['second']))}秒" if match["second"] else "")


def _money(match: re.Match[str]) -> str:
    amount = re.sub(r"\.?0+$", "", match["amount"]) if "." in match["amount"] else match["amount"]
    return f"{_number(amount)}{match['scale'] or ''}{_CURRENCIES[match['sign']]}"


def _fraction(match: re.Match[str]) -> str:
    whole = f"{_number(match[1])}と" if match[1] else ""
    return f"{whole}{_number(match[3])}分の{_number(match[2])}"


_UNIT = "|".join(re.escape(unit) for unit in sorted(_UNITS, key=len, reverse=True))
_RULES: list[Rule] = [
    (ADDRESS, _address),
    *((pattern, _spelled) for pattern in SPELLED),
    *((pattern, _date) for pattern in (YEAR_FIRST, YEAR_LAST, DAY_MONTH, MONTH_DAY)),
    (YEAR_AND_MONTH, lambda m: f"{cardinal(int(m['year']))}年{cardinal(int(m['month']))}月"),
    (CLOCK, _clock),
    (HOUR, _clock),
    (re.compile(r"(?<!\d)0(?=[1-9][時分秒月日])"), lambda m: ""),  # 3時05分
    (re.compile(rf"(?P<sign>[$€£￥₩])\s?(?P<amount>{NUMBER})\s?(?P<scale>[万億兆])?(?:円)?"), _money),
    (re.compile(rf"(?<![\d.])({NUMBER})\s?km/h"), lambda m: f"時速{_number(m[1])}キロメートル"),
    (re.compile(r"(?<![\w.)])-(?=\.?\d)", re.A), lambda m: "マイナス"),
    (re.compile(rf"(?<![\d.])({NUMBER})\s?[-~—]\s?(?={NUMBER})"), lambda m: f"{_number(m[1])}から"),
    (
        re.compile(rf"(?<![\d.])({NUMBER})\s?({_UNIT})(?![A-Za-z²³])"),
        lambda m: f"{_number(m[1])}{_UNITS[m[2]]}",
    ),
    (re.compile(r"(?<![\d/.,])(?:(\d{1,4}) )?(\d{1,4})/(\d{1,4})(?![\d/])"), _fraction),
    (re.compile(r"(?<=\d):(?=\d)"), lambda m: "対"),
    (
        re.compile(r"(?<![\d.])\d+(?:\.\d+){2,}"),
        lambda m: "点".join(_number(part) for part in m.group().split(".")),
    ),
    (re.compile(r"(?<=[A-Za-z])-(?=\d)"), lambda m: ""),
    (re.compile(NUMBER), lambda m: _number(m.group())),
    (re.compile(r"[$€£￥₩%&+=×÷±²³@#℃°]"), lambda m: _SIGNS[m.group()]),
    (re.compile(r"\s*—+\s*"), lambda m: "、"),
    (re.compile(r"[<>|~^√\\_]"), lambda m: " "),
]

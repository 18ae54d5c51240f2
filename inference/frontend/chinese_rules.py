"""Mandarin readings of numbers, units, addresses and signs."""

from __future__ import annotations

import re

from inference.frontend.chinese_amounts import (
    AMOUNTS,
    COUNTS,
    CURRENCIES,
    HAN_NUMBER,
    MONEY,
    PERCENT,
    POLARITY,
    spoken_number,
)
from inference.frontend.chinese_codes import ADDRESSES, CODES, TELEPHONES, VERSIONS
from inference.frontend.chinese_dates import DATES, TIMES, YEARS
from inference.frontend.number_words import han_digits
from inference.frontend.rule import NUMBER, Rule, apply

_SIGNS = {
    "+": "加",
    "=": "等于",
    "×": "乘",
    "÷": "除以",
    "±": "正负",
    "²": "平方",
    "³": "立方",
    "≈": "约等于",
}
_SIGNS |= {
    "≤": "小于等于",
    "≥": "大于等于",
    "≠": "不等于",
    "→": "到",
    "&": "和",
    "%": "百分号",
    "‰": "千分号",
}
_SIGNS |= {"℃": "摄氏度", "℉": "华氏度", "°": "度", "№": "号", "#": "井号", "@": "艾特", **CURRENCIES}
_COMPARED = {"<": "小于", ">": "大于", "~": "约"}
_REST: list[Rule] = [
    (re.compile(r"(?<=\d)[:：](?=\d)"), lambda m: "比"),
    (re.compile(r"(?<![\d.])(\d{1,2})\.(?=[\u4e00-\u9fff])"), lambda m: f"{spoken_number(m[1])}，"),  # 1.首先
    (re.compile(r"(?<![\w)])([<>~])\s?(?=\d)", re.A), lambda m: _COMPARED[m[1]]),
    (re.compile(r"(?<![A-Za-z0-9%)])[+±-](?=\.?\d)"), lambda m: POLARITY[m.group()]),
    (re.compile(r"(?<=[A-Za-z])-(?=\d)|(?<=\d)-(?=[A-Za-z])"), lambda m: ""),
    *COUNTS,
    (re.compile(r"(?<![\w.])\.(\d+)", re.A), lambda m: f"零点{han_digits(m[1])}"),
    (re.compile(NUMBER), lambda m: spoken_number(m.group())),
    (re.compile(rf"(?<=[{HAN_NUMBER}])\s?\*\s?(?=[{HAN_NUMBER}])"), lambda m: "乘"),
    (re.compile(rf"(?<=[{HAN_NUMBER}])/(?=[{HAN_NUMBER}])"), lambda m: "除以"),
    (re.compile(r"[$€£￥₩%‰&+=×÷±²³≈≤≥≠→@#№℃℉°]"), lambda m: _SIGNS[m.group()]),
    (re.compile(r"(?<=[元克升米吨里次])/(?=[\u4e00-\u9fff])"), lambda m: "每"),
    (re.compile(r"(?<=[\u4e00-\u9fff])/(?=[\u4e00-\u9fff])"), lambda m: "、"),
    (re.compile(r"\s*(?:—+|\s-+\s)\s*"), lambda m: "，"),
    (re.compile(r"[<>|~^√\\_]"), lambda m: " "),
]
# Spelled things first, as their digits are no amounts; bare numbers last.
_RULES = [
    *ADDRESSES,
    *CODES,
    *PERCENT,
    *DATES,
    *TELEPHONES,
    *MONEY,
    *YEARS,
    *VERSIONS,
    *TIMES,
    *AMOUNTS,
    *_REST,
]


def say_chinese(text: str) -> str:
    """`text` with every number, unit and sign in words; words and punctuation stay."""
    return apply(_RULES, text)

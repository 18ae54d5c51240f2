"""English readings of numbers, units, addresses and signs."""

from __future__ import annotations

import re

from inference.frontend.english_amounts import AMOUNTS, MONEY, spoken_number
from inference.frontend.english_codes import ADDRESSES, CODES, MODELS
from inference.frontend.english_dates import DATES, TIMES, YEARS
from inference.frontend.number_words import english_digits as digits_in_words
from inference.frontend.rule import NUMBER, Rule, apply

_SIGNS = {"&": "and", "+": "plus", "=": "equals", "×": "times", "÷": "divided by", "±": "plus or minus"}
_SIGNS |= {
    "²": "squared",
    "³": "cubed",
    "≈": "about",
    "≤": "at most",
    "≥": "at least",
    "≠": "is not",
    "→": "to",
}
_SIGNS |= {
    "@": "at",
    "%": "percent",
    "#": "number",
    "№": "number",
    "℃": "degrees Celsius",
    "℉": "degrees Fahrenheit",
}
_SIGNS |= {
    "°": "degrees",
    "€": "euros",
    "£": "pounds",
    "$": "dollars",
    "￥": "yuan",
    "₩": "won",
    "‰": "per mille",
}
_COMPARED = {"<": "less than", ">": "more than", "~": "about"}
_REST: list[Rule] = [
    (re.compile(r"(?<![\w)])([<>~])\s?(?=\d)"), lambda m: f"{_COMPARED[m[1]]} "),
    (re.compile(r"[$€£￥₩%‰&+=×÷±²³≈≤≥≠→@#№℃℉°]"), lambda m: f" {_SIGNS[m.group()]} "),
    (re.compile(r"\b(?:and/or|[A-Za-z]/[A-Za-z])\b"), lambda m: m.group().replace("/", " ")),
    (re.compile(r"(?<=\w)/(?=\w)"), lambda m: " slash "),
    (re.compile(r"(?<=\d):(?=\d)"), lambda m: " to "),
    (re.compile(r"(?<=\d)(?=[A-Za-z])"), lambda m: " "),
    (re.compile(r"(?<=\d)\s?\*\s?(?=\d)"), lambda m: " times "),
    (re.compile(r"(?<![\w.])\.(\d+)"), lambda m: f"point {digits_in_words(m[1])}"),
    (re.compile(NUMBER), lambda m: spoken_number(m.group())),
    (re.compile(r"\s*—+\s*|\s+-+\s+"), lambda m: ", "),
    (re.compile(r"…+"), lambda m: "..."),
    (re.compile(r"[<>|~^√/\\_*]"), lambda m: " "),
]
# Spelled things first, as their digits are no amounts; bare numbers last.
_RULES = [*ADDRESSES, *CODES[:1], *MONEY, *DATES, *TIMES, *CODES[1:], *AMOUNTS, *YEARS, *MODELS, *_REST]


def say_english(text: str) -> str:
    """`text` with every number, unit and sign in words; words and punctuation stay."""
    return re.sub(r" +([,.?!;:])", r"\1", re.sub(r"\s+", " ", apply(_RULES, text))).strip()

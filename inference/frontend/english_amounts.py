"""English readings of money, measures, fractions, powers and sums."""

from __future__ import annotations

import re

from inference.frontend.number_words import english_cardinal as cardinal
from inference.frontend.number_words import english_digits as digits_in_words
from inference.frontend.number_words import english_ordinal as ordinal
from inference.frontend.rule import NUMBER, Rule

_CURRENCIES = {
    "$": ("dollar", "dollars", "cent", "cents"),
    "€": ("euro", "euros", "cent", "cents"),
    "£": ("pound", "pounds", "penny", "pence"),
    "￥": ("yuan", "yuan", "fen", "fen"),
    "₩": ("won", "won", "jeon", "jeon"),
}
_CODES = {
    "USD": "$",
    "US$": "$",
    "EUR": "€",
    "GBP": "£",
    "CNY": "￥",
    "RMB": "￥",
    "KRW": "₩",
}
_UNITS = {
    "mmHg": "millimeters of mercury",
    "km/h": "kilometers per hour",
    "m/s": "meters per second",
    "km²": "square kilometers",
    "cm²": "square centimeters",
    "m²": "square meters",
    "m³": "cubic meters",
    "km": "kilometers",
    "cm": "centimeters",
    "mm": "millimeters",
    "nm": "nanometers",
    "kg": "kilograms",
    "mg": "milligrams",
    "ml": "milliliters",
    "mL": "milliliters",
    "L": "liters",
    "kWh": "kilowatt hours",
    "mAh": "milliampere hours",
    "kW": "kilowatts",
    "MW": "megawatts",
    "W": "watts",
    "kcal": "kilocalories",
    "GHz": "gigahertz",
    "MHz": "megahertz",
    "kHz": "kilohertz",
    "Hz": "hertz",
    "dB": "decibels",
    "Gbps": "gigabits per second",
    "Mbps": "megabits per second",
    "kbps": "kilobits per second",
    "fps": "frames per second",
    "rpm": "revolutions per minute",
    "bpm": "beats per minute",
    "GB": "gigabytes",
    "MB": "megabytes",
    "TB": "terabytes",
    "KB": "kilobytes",
    "ms": "milliseconds",
    "mph": "miles per hour",
    "ft": "feet",
    "lbs": "pounds",
    "lb": "pounds",
    "oz": "ounces",
    "°C": "degrees Celsius",
    "℃": "degrees Celsius",
    "°F": "degrees Fahrenheit",
    "℉": "degrees Fahrenheit",
    "°": "degrees",
    "%": "percent",
    "‰": "per mille",
    "m": "meters",
    "g": "grams",
    "h": "hours",
    "min": "minutes",
}
_SINGULARS = {"feet": "foot", "hertz": "hertz", "percent": "percent"}
_SCALES = {"k": "thousand", "m": "million", "b": "billion", "bn": "billion"}
_PARTS = {2: "half", 4: "quarter"} | {under: ordinal(under) for under in (3, 5, 6, 7, 8, 9, 10, 12, 16, 32)}
_SAID_AS_IT_IS = {"24/7": "twenty four seven", "9/11": "nine eleven", "50/50": "fifty fifty"}


def spoken_number(digits: str) -> str:
    """`"1,305"`, `"3.14"` or `"007"` as a speaker would say it."""
    whole, _, decimals = digits.replace(",", "").partition(".")
    read_singly = len(whole) > 15 or (len(whole) > 1 and whole[0] == "0")
    words = digits_in_words(whole) if read_singly else cardinal(int(whole or "0"))
    return f"{words} point {digits_in_words(decimals)}" if decimals else words


def _money(match: re.Match[str]) -> str:
    found = match.groupdict()
    sign, amount, scale = found["sign"], found["amount"].replace(",", ""), found.get("scale")
    one, many, small, smalls = _CURRENCIES[_CODES.get(sign, sign)]
    if found.get("until"):
        scale = f" {_scale(scale)}" if scale else ""
        return f"{spoken_number(amount)} to {spoken_number(found['until'])}{scale} {many}"
    if scale:
        return f"{spoken_number(amount)} {_scale(scale)} {many}"
    whole, _, cents = amount.partition(".")
    words = f"{spoken_number(whole)} {one if whole == '1' else many}"
    if len(cents) != 2:
        return f"{spoken_number(amount)} {many}" if cents else words
    if cents == "00":
        return words
    rest = f"{cardinal(int(cents))} {small if cents == '01' else smalls}"
    return rest if int(whole) == 0 else f"{words} and {rest}"


def _scale(word: str) -> str:
    return _SCALES.get(word.lower(), word)


def _large(match: re.Match[str]) -> str:
    """100k, 5M; but 4K is a picture size."""
    amount, letter = match[1], match[2]
    if letter == "K" and float(amount) < 10:
        return f"{spoken_number(amount)} K"
    return f"{spoken_number(amount)} {_SCALES[letter.lower()]}"


def _measure(match: re.Match[str]) -> str:
    unit = _UNITS[match["unit"]]
    if match["amount"] == "1" and not match["over"]:
        first, _, rest = unit.partition(" ")
        single = _SINGULARS.get(first) or re.sub(r"s$", "", first)
        if first in ("square", "cubic"):
            single, rest = first, re.sub(r"s$", "", rest)
        unit = f"{single} {rest}".strip()
    over = f" over {spoken_number(match['over'])}" if match["over"] else ""
    return f"{spoken_number(match['amount'])}{over} {unit}"


def _fraction(match: re.Match[str]) -> str:
    over, under = int(match["over"]), int(match["under"])
    if match.group() in _SAID_AS_IT_IS:
        return _SAID_AS_IT_IS[match.group()]
    whole = f"{spoken_number(match['whole'])} and " if match["whole"] else ""
    if over < under and under in _PARTS:
        name = _PARTS[under]
        plural = {"half": "halves"}.get(name, name + "s")
        one = "a" if whole else "one"
        return f"{whole}{one if over == 1 else cardinal(over)} {name if over == 1 else plural}"
    blank = f"{spoken_number(match['whole'])} " if match["whole"] else ""
    return f"{blank}{spoken_number(match['over'])} over {spoken_number(match['under'])}"


def _power(match: re.Match[str]) -> str:
    base = f"{spoken_number(match['base'])} " if match["base"] else ""
    exponent = int(match["exponent"])
    if exponent in (2, 3):
        return (
            f"{base}{'squared' if exponent == 2 else 'cubed'}"
            if base
            else f" {['squared', 'cubed'][exponent - 2]}"
        )
    sign = "minus " if exponent < 0 else ""
    return f"{base or ' '}to the power of {sign}{cardinal(abs(exponent))}"


def _scientific(match: re.Match[str]) -> str:
    exponent = int(match[2])
    sign = "minus " if exponent < 0 else ""
    return f"{spoken_number(match[1])} times ten to the power of {sign}{cardinal(abs(exponent))}"


def _signed(match: re.Match[str]) -> str:
    return {"+": "plus ", "-": "minus ", "±": "plus or minus "}[match.group()]


_SIGN = "|".join(re.escape(sign) for sign in ("US$", *_CURRENCIES))
_CODE = "|".join(code for code in _CODES if code.isalpha())
_SCALE = r"(?:\s?(?P<scale>thousand|million|billion|trillion|bn|[kKmMbB])\b)?"
_UNIT = "|".join(re.escape(unit) for unit in sorted(_UNITS, key=len, reverse=True))
_PERIOD = "(?:second|minute|hour|day|night|week|month|year|person|kg|km|user|page|seat)"
MONEY: list[Rule] = [
    (re.compile(r"(?<![\d.,])\d{1,3}(?: 000)+(?! ?\d)"), lambda m: m.group().replace(" ", "")),  # 100 000
    (re.compile(rf"(?<=\d)\s?[-~—]\s?(?=(?:{_SIGN})\s?\d)"), lambda m: " to "),
    (
        re.compile(
            rf"(?P<sign>{_SIGN}|\b(?:{_CODE})\b(?= ?\d))\s?(?P<amount>{NUMBER})"
            rf"(?:\s?[-~—]\s?(?P<until>{NUMBER}))?{_SCALE}"
        ),
        _money,
    ),
    (re.compile(rf"(?<![\d.,])(?P<amount>{NUMBER})\s?(?P<sign>[€£￥₩]|(?:{_CODE})\b)"), _money),
]
AMOUNTS: list[Rule] = [
    (re.compile(r"(?<![\d.])(\d+(?:\.\d+)?)[eE]([+-]?\d{1,3})\b"), _scientific),
    (re.compile(r"(?P<base>\d+(?:\.\d+)?)?\^(?P<exponent>-?\d{1,9})\b"), _power),
    (re.compile(r"(?<=\d)\s*[-—]\s*(?=\d+(?:\.\d+)?\s*=)"), lambda m: " minus "),
    (re.compile(r"(?<=\d)\s?[x*×]\s?(?=\d+(?:\.\d+)?\s*=)"), lambda m: " times "),
    (re.compile(r"(?<=\d)x(?=\d)|(?<=\d) x (?=\d)"), lambda m: " by "),
    (
        re.compile(r"(?<![\w.])(\d{1,2})'\s?(\d{1,2})(?:\"|'')"),
        lambda m: f"{cardinal(int(m[1]))} foot {cardinal(int(m[2]))}",
    ),
    (re.compile(rf"(\d\s?(?:{_UNIT}))\s?[-~—]\s?(?=\d)"), lambda m: f"{m[1]} to "),
    (re.compile(r"(?<![\w.)])[+±-](?=\.?\d)"), _signed),
    (re.compile(r"(?<=\d)\s?[-~]\s?(?=\d)|(?<=\d)—(?=\d)|(?<=[%°])\s?[-~]\s?(?=\d)"), lambda m: " to "),
    (re.compile(rf"(?<![\w.])({NUMBER})x\b"), lambda m: f"{spoken_number(m[1])} times"),
    (
        re.compile(rf"(?<![\w.])(?P<amount>{NUMBER})(?:/(?P<over>{NUMBER}))?\s?(?P<unit>{_UNIT})(?![\w²³])"),
        _measure,
    ),
    (re.compile(r"(?<![\w.,])(\d{1,3}(?:\.\d+)?)([kKM])\b"), _large),
    (re.compile(r"(?<=\d\.\d)/(?=\d)"), lambda m: " out of "),
    (re.compile(rf"(?<=[a-z])/(?={_PERIOD}\b)"), lambda m: " per "),
    (re.compile(r"\b(\d{1,15})(?:st|nd|rd|th)\b"), lambda m: ordinal(int(m[1]))),
    (
        re.compile(
            r"(?<![\d/.,])(?:(?P<whole>\d{1,4}) )?(?P<over>\d{1,4})\s?/\s?(?P<under>\d{1,4})(?![\d/])"
        ),
        _fraction,
    ),
]

"""English readings of numbers, units, addresses and signs."""

from __future__ import annotations

import re
from collections.abc import Callable

from inference.frontend.number_words import english_cardinal as cardinal
from inference.frontend.number_words import english_digits as digits_in_words
from inference.frontend.number_words import english_ordinal as ordinal
from inference.frontend.number_words import english_year as year

NUMBER = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?"
_MONTHS = "January February March April May June July August September October November December".split()
_MONTH = "|".join(_MONTHS) + r"|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec"
_CURRENCIES = {
    "$": ("dollar", "dollars", "cent", "cents"),
    "€": ("euro", "euros", "cent", "cents"),
    "£": ("pound", "pounds", "penny", "pence"),
    "￥": ("yuan", "yuan", "fen", "fen"),
    "₩": ("won", "won", "jeon", "jeon"),
}
_UNITS = {
    "mmHg": "millimeters of mercury",
    "km/h": "kilometers per hour",
    "m/s": "meters per second",
    "km²": "square kilometers",
    "m²": "square meters",
    "m³": "cubic meters",
    "km": "kilometers",
    "cm": "centimeters",
    "mm": "millimeters",
    "kg": "kilograms",
    "mg": "milligrams",
    "ml": "milliliters",
    "mL": "milliliters",
    "kWh": "kilowatt hours",
    "GHz": "gigahertz",
    "MHz": "megahertz",
    "kHz": "kilohertz",
    "Hz": "hertz",
    "GB": "gigabytes",
    "MB": "megabytes",
    "TB": "terabytes",
    "KB": "kilobytes",
    "ms": "milliseconds",
    "mph": "miles per hour",
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
_ABBREVIATIONS = {
    "Dr.": "Doctor",
    "Mr.": "Mister",
    "Mrs.": "Missus",
    "Ms.": "Miz",
    "Prof.": "Professor",
    "vs.": "versus",
    "etc.": "et cetera",
    "e.g.": "for example",
    "i.e.": "that is",
    "approx.": "approximately",
}
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
_ADDRESS_MARKS = {
    ".": "dot",
    "@": "at",
    "/": "slash",
    "-": "dash",
    "_": "underscore",
    ":": "colon",
    "?": "question mark",
}
_ADDRESS_MARKS |= {"=": "equals", "&": "and", "#": "hash", "%": "percent", "+": "plus", "~": "tilde"}

Rule = tuple[re.Pattern[str], Callable[[re.Match[str]], str]]


def say_english(text: str) -> str:
    """`text` with every number, unit and sign in words; words and punctuation stay."""
    for pattern, say in _RULES:
        text = pattern.sub(say, text)
    return re.sub(r" +([,.?!;:])", r"\1", re.sub(r"\s+", " ", text)).strip()


def spoken_number(digits: str) -> str:
    """`"1,305"`, `"3.14"` or `"007"` as a speaker would say it."""
    whole, _, decimals = digits.replace(",", "").partition(".")
    read_singly = len(whole) > 15 or (len(whole) > 1 and whole[0] == "0")
    words = digits_in_words(whole) if read_singly else cardinal(int(whole or "0"))
    return f"{words} point {digits_in_words(decimals)}" if decimals else words


def _address(match: re.Match[str]) -> str:
    bare = re.sub(r"^https?://", "", match.group()).rstrip("/")
    spaced = re.sub(r"\d+", lambda digits: f" {digits.group()} ", bare)
    return re.sub(r"[^\w\s]|_", lambda mark: f" {_ADDRESS_MARKS.get(mark.group(), '')} ", spaced)


def _money(match: re.Match[str]) -> str:
    sign, amount, scale = match["sign"], match["amount"].replace(",", ""), match["scale"]
    one, many, small, smalls = _CURRENCIES[sign]
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
    return {"k": "thousand", "m": "million", "b": "billion", "bn": "billion"}.get(word.lower(), word)


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


def _iso_date(match: re.Match[str]) -> str:
    month, day = int(match["month"]), int(match["day"])
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return digits_in_words("".join(re.findall(r"\d", match.group())))
    return f"{_MONTHS[month - 1]} {ordinal(day)}, {year(int(match['year']))}"


def _telephone(match: re.Match[str]) -> str:
    plus = "plus " if match.group().startswith("+") else ""
    return plus + ", ".join(digits_in_words(group) for group in re.findall(r"\d+", match.group()))


def _measure(match: re.Match[str]) -> str:
    unit = _UNITS[match["unit"]]
    if match["amount"] == "1" and not match["over"]:
        unit = re.sub(r"^(\w+)s\b", r"\1", unit)
    over = f" over {spoken_number(match['over'])}" if match["over"] else ""
    return f"{spoken_number(match['amount'])}{over} {unit}"


def _signed(match: re.Match[str]) -> str:
    return {"+": "plus ", "-": "minus ", "±": "plus or minus "}[match.group()]


def _fraction(match: re.Match[str]) -> str:
    over, under = int(match[1]), int(match[2])
    if match.group() == "24/7":
        return "twenty four seven"
    if over < under and under in (2, 3, 4, 5, 8, 10):
        name = {2: "half", 4: "quarter"}.get(under) or ordinal(under)
        plural = {"half": "halves"}.get(name, name + "s")
        return f"{cardinal(over)} {name if over == 1 else plural}"
    return f"{spoken_number(match[1])} over {spoken_number(match[2])}"


def _dotted(match: re.Match[str]) -> str:
    parts = match.group().split(".")
    say = digits_in_words if max(map(len, parts)) > 2 else spoken_number
    return " point ".join(say(part) for part in parts)


def _mixed(match: re.Match[str]) -> str:
    """A room or model number: `705A` → "seven oh five A"."""
    digits, letters = match[1], match[2]
    words = digits_in_words(digits).replace("zero", "oh") if len(digits) >= 3 else spoken_number(digits)
    return f"{words} {' '.join(letters)}"


def _decade(match: re.Match[str]) -> str:
    words = year(int(match[1] + "0"))
    return words[:-1] + "ies" if words.endswith("y") else words + "s"


_HOST = r"[\w-]+(?:\.[\w-]+)+(?::\d+)?(?:/[\w./?=&#%~+-]*\w)?"
_ENDINGS = "com|org|net|io|cn|ai|edu|gov|dev|app"
_YEAR_BEFORE = (
    rf"in|since|by|of|until|from|year|before|after|during|(?:{_MONTH})\.?(?: \d{{1,2}}(?:st|nd|rd|th)?,?)?"
)
_UNIT = "|".join(re.escape(unit) for unit in _UNITS)
_RULES: list[Rule] = [
    (re.compile(rf"https?://{_HOST}|[\w.+-]+@[\w-]+(?:\.[\w-]+)+|www\.{_HOST}", re.A), _address),
    (re.compile(rf"\b[a-zA-Z][\w-]*(?:\.[\w-]+)*\.(?:{_ENDINGS})\b(?:/[\w./?=&#%-]*\w)?", re.A), _address),
    (
        re.compile("|".join(rf"(?<!\w){re.escape(word)}" for word in _ABBREVIATIONS)),
        lambda m: _ABBREVIATIONS[m.group()],
    ),
    (
        re.compile(
            rf"(?P<sign>[$€£￥₩])\s?(?P<amount>{NUMBER})"
            r"(?:\s?(?P<scale>thousand|million|billion|trillion|bn|[kKmMbB])\b)?"
        ),
        _money,
    ),
    (re.compile(r"(?P<year>\b[12]\d{3})[-/.](?P<month>\d{1,2})[-/.](?P<day>\d{1,2})\b(?![.-]\d)"), _iso_date),
    (
        re.compile(
            r"(?<![\d:])(?P<hour>[01]?\d|2[0-4]):(?P<minute>[0-5]\d)(?::(?P<second>[0-5]\d))?(?![\d:])"
            r"(?:\s?(?P<half>[aApP])\.?[mM]\b\.?)?"
        ),
        _clock,
    ),
    (re.compile(r"\b(?P<hour>1[0-2]|[1-9])(?P<minute>)(?P<second>)\s?(?P<half>[aApP])\.?[mM]\b"), _clock),
    (
        re.compile(
            r"(?<![\d.])\+\d[\d -]{7,}\d|(?<![\d.-])(?:\d{3}[- ])?\d{3}-\d{4}(?![\d-])|\b\d{2,5}(?:-\d{2,5}){2,}\b"
        ),
        _telephone,
    ),
    (re.compile(r"(?<![\w.)])[+±-](?=\d)"), _signed),
    (re.compile(r"(?<=\d)\s?[-~]\s?(?=\d)|(?<=[%°])\s?[-~]\s?(?=\d)"), lambda m: " to "),
    (
        re.compile(rf"(?<![\w.])(?P<amount>{NUMBER})(?:/(?P<over>{NUMBER}))?\s?(?P<unit>{_UNIT})(?![\w²³])"),
        _measure,
    ),
    (re.compile(r"\b(\d{1,15})(?:st|nd|rd|th)\b"), lambda m: ordinal(int(m[1]))),
    (re.compile(r"\b((?:1[1-9]|20)\d)0s\b"), _decade),
    (
        re.compile(rf"(\b(?:{_YEAR_BEFORE}) )(1[1-9]\d\d|20\d\d)\b(?![.,:]?\d)", re.I),
        lambda m: m[1] + year(int(m[2])),
    ),
    (re.compile(rf"(\b(?:{_MONTH})\.? )(\d{{1,2}})\b"), lambda m: m[1] + ordinal(int(m[2]))),
    (re.compile(r"(?<![\d/])(\d{1,4})/(\d{1,4})(?![\d/])"), _fraction),
    (re.compile(r"(?<=[A-Za-z])-?(?=\d)"), lambda m: " "),
    (re.compile(r"(?<![\d.])\d+(?:\.\d+){2,}"), _dotted),
    (re.compile(r"(?<![\w.,])(\d{1,4})([A-Z]{1,2})\b"), _mixed),
    (re.compile(r"[$€£￥₩%‰&+=×÷±²³≈≤≥≠→@#№℃℉°]"), lambda m: f" {_SIGNS[m.group()]} "),
    (re.compile(r"(?<=\w)/(?=\w)"), lambda m: " slash "),
    (re.compile(r"(?<=\d)(?=[A-Za-z])"), lambda m: " "),
    (re.compile(r"(?<=\d)\s?\*\s?(?=\d)"), lambda m: " times "),
    (re.compile(NUMBER), lambda m: spoken_number(m.group())),
    (re.compile(r"\s*—+\s*|\s+-+\s+"), lambda m: ", "),
    (re.compile(r"…+"), lambda m: "..."),
    (re.compile(r"[<>|~^√/\\_*]"), lambda m: " "),
]

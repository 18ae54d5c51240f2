"""English readings of what is spelled rather than counted: addresses, telephone and serial numbers, kings, tags."""

from __future__ import annotations

import re

from inference.frontend.english_amounts import spoken_number
from inference.frontend.number_words import english_cardinal as cardinal
from inference.frontend.number_words import english_digits as digits_in_words
from inference.frontend.number_words import english_ordinal as ordinal
from inference.frontend.number_words import english_year as year
from inference.frontend.roman import ROMAN, roman_value
from inference.frontend.rule import ADDRESS, Rule

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
_RULERS = (
    "Alexander Alfonso Benedict Catherine Charles Christian Clement Edward Elizabeth Francis Frederick George Gregory "
    "Gustav Henry Innocent Ivan James Leo Leopold Louis Mary Napoleon Nicholas Otto Paul Peter Philip Pius Ptolemy "
    "Ramesses Richard Wilhelm William"
).split()
_RULER = rf"(?:{'|'.join(_RULERS)})|(?:King|Queen|Pope|Emperor|Tsar|Prince|Duke) [A-Z][a-z]+"
_SPELLED = (
    "zip|zip code|postal code|pin|pin code|passcode|password|code|account|order|tracking|serial|extension|ext\\.|"
    "room|flight|suite|apartment|apt\\.|area code"
)


def _address(match: re.Match[str]) -> str:
    bare = re.sub(r"^https?://", "", match.group()).rstrip("/")
    spaced = re.sub(r"\d+", lambda digits: f" {digits.group()} ", bare)
    return re.sub(r"[^\w\s]|_", lambda mark: f" {_ADDRESS_MARKS.get(mark.group(), '')} ", spaced)


def _groups(match: re.Match[str]) -> str:
    """Digit by digit, with a pause where a mark or blank was."""
    plus = "plus " if match.group().startswith("+") else ""
    return plus + ", ".join(_letter_or_digits(group) for group in re.findall(r"\d+|X", match.group()))


def _letter_or_digits(group: str) -> str:
    return digits_in_words(group) if group.isdigit() else group


def _isbn(match: re.Match[str]) -> str:
    return f"{match['name']} {_groups_of(match['digits'])}"


def _groups_of(text: str) -> str:
    return ", ".join(_letter_or_digits(group) for group in re.findall(r"\d+|X", text))


def _spelled(match: re.Match[str]) -> str:
    return match[1] + digits_in_words(match[2]).replace("zero", "oh")


def _ruler(match: re.Match[str]) -> str:
    return f"{match[1]} the {ordinal(roman_value(match[2]))}"


def _dotted(match: re.Match[str]) -> str:
    parts = match["parts"].split(".")
    say = digits_in_words if max(map(len, parts)) > 2 else spoken_number
    port = f" colon {digits_in_words(match['port'])}" if match["port"] else ""
    return " point ".join(say(part) for part in parts) + port


def _mixed(match: re.Match[str]) -> str:
    """A room or model number: `705A` → "seven oh five A"."""
    digits, letters = match[1], match[2]
    words = digits_in_words(digits).replace("zero", "oh") if len(digits) >= 3 else spoken_number(digits)
    return f"{words} {' '.join(letters)}"


def _model(match: re.Match[str]) -> str:
    """Digits behind letters: `BA2490` → "two four nine zero", but `H100` → "one hundred" and `mid-2024` a year."""
    digits = match.group().lstrip("-")
    if re.fullmatch(r"19\d\d|20\d\d", digits):
        return f" {year(int(digits))}"
    return (
        f" {cardinal(int(digits)) if digits.endswith('00') and digits[0] != '0' else digits_in_words(digits)}"
    )


def _hashtag(match: re.Match[str]) -> str:
    words = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Za-z])(?=\d)|_", " ", match[1])
    return f"hashtag {words}"


ADDRESSES: list[Rule] = [
    (ADDRESS, _address),
    (
        re.compile("|".join(rf"(?<!\w){re.escape(word)}" for word in _ABBREVIATIONS)),
        lambda m: _ABBREVIATIONS[m.group()],
    ),
    (re.compile(r"\b[Nn]o(s?)\.\s?(?=\d)"), lambda m: f"number{m[1]} "),
    (re.compile(r"\b([CF])#(?!\w)"), lambda m: f"{m[1]} sharp"),
    (re.compile(r"(?<![\w&])#([A-Za-z]\w*)"), _hashtag),
]
CODES: list[Rule] = [
    (
        re.compile(r"\b(?P<name>ISBN(?:-1[03])?:?) ?(?P<digits>\d[\d -]{8,15}[\dX])\b"),
        _isbn,
    ),
    (
        re.compile(
            r"(?<![\d.])\+\d[\d -]{7,}\d|(?<![\d.-])(?:\d{3}[- .])?\d{3}-\d{4}(?![\d-])"
            r"|(?<![\d.-])\d{3}([ .])\d{3}\1\d{4}(?![\d-])|(?<![\d.,-])0\d{1,4}(?: \d{2,4}){2,4}(?![\d-])"
            r"|(?<![\w.])\d{1,7}(?:-\d{1,7}){2,}(?:-X)?\b"
        ),
        _groups,
    ),
    (
        re.compile(rf"(\b(?:{_SPELLED})(?: number| no\.)?(?: is)?:? )(\d{{3,}})\b(?![.,:/-]\d)", re.I),
        _spelled,
    ),
    (re.compile(rf"\b({_RULER}) ({ROMAN}|V)\b"), _ruler),
    (re.compile(rf"\b({ROMAN}|V|X) (?=[Cc]entury\b)"), lambda m: f"{ordinal(roman_value(m[1]))} "),
    (re.compile(rf"(?<=[A-Za-z]) ({ROMAN})\b"), lambda m: f" {cardinal(roman_value(m[1]))}"),
]
MODELS: list[Rule] = [
    (re.compile(r"(?<=[A-Za-z])-?(?:\d{3,})\b(?![.,:]\d)"), _model),
    (re.compile(r"(?<=[A-Za-z])-?(?=\d)"), lambda m: " "),
    (re.compile(r"(?<![\d.])(?P<parts>\d+(?:\.\d+){2,})(?::(?P<port>\d{1,5}))?"), _dotted),
    (re.compile(r"(?<![\w.,])(\d{1,4})([A-Z]{1,2})\b"), _mixed),
]

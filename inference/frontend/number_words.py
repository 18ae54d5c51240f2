"""Numbers in words: English, Mandarin and Japanese."""

from __future__ import annotations

_ENGLISH_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
).split()
_ENGLISH_TENS = "_ _ twenty thirty forty fifty sixty seventy eighty ninety".split()
_ENGLISH_SCALES = (
    "_ thousand million billion trillion quadrillion quintillion sextillion septillion octillion nonillion decillion"
).split()
_IRREGULAR_ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}
LONGEST_CARDINAL = 3 * len(_ENGLISH_SCALES)  # digits; more are read one by one

_HAN_DIGITS = "零一二三四五六七八九"
_HAN_PLACES = ("", "十", "百", "千")
_HAN_SCALES = ("", "万", "亿", "万亿", "亿亿")
_HAN_LONGEST = 4 * len(_HAN_SCALES)
_JAPANESE_SCALES = ("", "万", "億", "兆", "京")


def english_cardinal(number: int, *, hyphen: str = " ", comma: str = "") -> str:
    """1305 → "one thousand three hundred and five". `hyphen` joins tens and ones, `comma` follows a scale word.

    Up to `LONGEST_CARDINAL` digits; longer numbers are read digit by digit.
    """
    if number < 20:
        return _ENGLISH_SMALL[number]
    digits = str(number)
    if len(digits) > LONGEST_CARDINAL:
        return english_digits(digits)
    groups = []
    while number:
        number, group = divmod(number, 1000)
        groups.append(group)
    words = ""
    for scale in range(len(groups) - 1, -1, -1):
        group = groups[scale]
        if not group:
            continue
        if words:
            words += " and " if scale == 0 and group < 100 else f"{comma} "
        words += _english_group(group, hyphen) + (f" {_ENGLISH_SCALES[scale]}" if scale else "")
    return words


def _english_group(group: int, hyphen: str) -> str:
    hundreds, rest = divmod(group, 100)
    words = []
    if hundreds:
        words.append(f"{_ENGLISH_SMALL[hundreds]} hundred")
    if rest:
        tens, ones = divmod(rest, 10)
        below = (
            _ENGLISH_SMALL[rest]
            if rest < 20
            else _ENGLISH_TENS[tens] + (f"{hyphen}{_ENGLISH_SMALL[ones]}" if ones else "")
        )
        words.append(below)
    return " and ".join(words)


def english_ordinal(number: int) -> str:
    """21 → "twenty first"."""
    head, _, last = english_cardinal(number).rpartition(" ")
    if last in _IRREGULAR_ORDINALS:
        last = _IRREGULAR_ORDINALS[last]
    else:
        last = f"{last[:-1]}ieth" if last.endswith("y") else f"{last}th"
    return f"{head} {last}".strip()


def english_digits(digits: str) -> str:
    """ "705" → "seven zero five"."""
    return " ".join(_ENGLISH_SMALL[int(digit)] for digit in digits)


def english_year(year: int) -> str:
    """1905 → "nineteen oh five", 2008 → "two thousand and eight", 2024 → "twenty twenty four"."""
    century, rest = divmod(year, 100)
    if year < 1000 or year % 1000 < 10 or century > 99:
        return english_cardinal(year)
    if not rest:
        return f"{english_cardinal(century)} hundred"
    return f"{english_cardinal(century)} {'oh ' if rest < 10 else ''}{english_cardinal(rest)}"


def mandarin_cardinal(number: int, *, pair: bool = False) -> str:
    """1305 → "一千三百零五"; 2000 → "两千". With `pair` a lone 2 is 两, as before a measure word."""
    if number == 2 and pair:
        return "两"
    digits = str(number)
    if len(digits) > _HAN_LONGEST:
        return han_digits(digits)
    words = ""
    skipped = False  # a place was empty: say one 零 before the next digit
    for place, digit in zip(range(len(digits) - 1, -1, -1), digits):
        scale, within = divmod(place, 4)
        if digit != "0":
            words += ("零" if skipped and words else "") + _mandarin_digit(digit, within, scale, words)
            skipped = False
        else:
            skipped = True
        if within == 0 and scale and int(digits[: len(digits) - place][-4:]):
            words += _HAN_SCALES[scale]
    return words or "零"


def _mandarin_digit(digit: str, within: int, scale: int, before: str) -> str:
    if digit == "2" and not before and (within >= 2 or (scale and not within)):
        return "两" + _HAN_PLACES[within]
    if digit == "1" and within == 1 and not before:
        return "十"  # 12 is 十二, 112 is 一百一十二
    return _HAN_DIGITS[int(digit)] + _HAN_PLACES[within]


def han_digits(digits: str, *, telephone: bool = False) -> str:
    """ "110" → "一一零", or "幺幺零" as in telephone numbers."""
    words = "".join(_HAN_DIGITS[int(digit)] for digit in digits)
    return words.replace("一", "幺") if telephone else words


def japanese_cardinal(number: int) -> str:
    """1305 → "千三百五"."""
    digits = str(number)
    if len(digits) > 4 * len(_JAPANESE_SCALES):
        return han_digits(digits)
    words = ""
    for place, digit in zip(range(len(digits) - 1, -1, -1), digits):
        scale, within = divmod(place, 4)
        if digit != "0":
            silent_one = digit == "1" and within and not (within == 3 and scale)
            words += ("" if silent_one else _HAN_DIGITS[int(digit)]) + _HAN_PLACES[within]
        if within == 0 and scale and int(digits[: len(digits) - place][-4:]):
            words += _JAPANESE_SCALES[scale]
    return words or "零"

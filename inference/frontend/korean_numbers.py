"""Numbers in Korean words: Chinese-born ones for money and minutes, native ones for what is counted."""

from __future__ import annotations

_DIGITS = "영일이삼사오육칠팔구"
_PLACES = ("", "십", "백", "천")
_SCALES = ("", "만", "억", "조", "경")
_ONES = ("", "한", "두", "세", "네", "다섯", "여섯", "일곱", "여덟", "아홉")
_TENS = ("", "열", "스물", "서른", "마흔", "쉰", "예순", "일흔", "여든", "아흔")
LARGEST_NATIVE = 99


def korean_cardinal(number: int) -> str:
    """1305 → "천삼백오"."""
    digits = str(number)
    if len(digits) > 4 * len(_SCALES):
        return korean_digits(digits)
    words = ""
    for place, digit in zip(range(len(digits) - 1, -1, -1), digits):
        scale, within = divmod(place, 4)
        if digit != "0":
            words += ("" if digit == "1" and within else _DIGITS[int(digit)]) + _PLACES[within]
        if within == 0 and scale and int(digits[: len(digits) - place][-4:]):
            words = "" if words == "일" and scale == 1 else words  # 10000 is 만
            words += _SCALES[scale]
    return words or "영"


def korean_count(number: int) -> str:
    """A number before what it counts: 3 → "세", 20 → "스무", 21 → "스물한". Above 99 as `korean_cardinal`."""
    if not 1 <= number <= LARGEST_NATIVE:
        return korean_cardinal(number)
    tens, ones = divmod(number, 10)
    return "스무" if number == 20 else _TENS[tens] + _ONES[ones]


def korean_digits(digits: str, *, telephone: bool = False) -> str:
    """ "010" → "영일영", or "공일공" as in telephone numbers."""
    words = "".join(_DIGITS[int(digit)] for digit in digits)
    return words.replace("영", "공") if telephone else words

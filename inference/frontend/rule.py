"""What a reading rule is, how a list of them is applied, and patterns that several languages share."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

Rule = tuple[re.Pattern[str], Callable[[re.Match[str]], str]]

NUMBER = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?"
HOST = r"[\w-]+(?:\.[\w-]+)+(?::\d+)?(?:/[\w./?=&#%~+-]*\w)?"
ENDINGS = "com|org|net|io|cn|ai|edu|gov|dev|app"
ADDRESS = re.compile(
    rf"https?://{HOST}|[\w.+-]+@[\w-]+(?:\.[\w-]+)+|www\.{HOST}"
    rf"|(?<![\w.])[a-zA-Z][\w-]*(?:\.[\w-]+)*\.(?:{ENDINGS})(?!\w)(?:/[\w./?=&#%-]*\w)?",
    re.A,
)
# Digit groups that are spelled: books, telephones.
SPELLED = (
    re.compile(r"(?<=ISBN)(?:-1[03])?[:：]? ?\d[\d -]{8,15}[\dX](?!\d)"),
    re.compile(
        r"(?<![\d.])\+\d[\d -]{7,}\d|(?<![\d.,-])0\d{1,3}-?\d{3,4}-\d{4}(?![\d-])"
        r"|(?<![\w.-])(?!(?:19|20)\d\d-\d\d?-\d\d?(?!\d))(?!\d\d?-\d\d?-(?:19|20)\d\d(?!\d))\d{1,7}(?:-\d{1,7}){2,}(?![\w-])",
        re.A,
    ),
)


def apply(rules: Sequence[Rule], text: str) -> str:
    """`text` after every rule in turn: what one rule wrote, the next ones see."""
    for pattern, say in rules:
        text = pattern.sub(say, text)
    return text

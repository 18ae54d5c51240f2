"""Takes out of a user's text what cannot be spoken, remembering where every character came from."""

from __future__ import annotations

import re
import unicodedata

from inference.frontend.tokenizer import VOCAL_TAGS
from inference.frontend.traced import Traced

TAG = "|".join(re.escape(tag) for tag in VOCAL_TAGS)
_TAG = re.compile(TAG)
_CONTROL = re.compile(r"<\|[^<>|\s]{0,40}\|>")
_CHARACTERS = {
    **dict.fromkeys("“”„‟«»「」『』〝〞＂", '"'),
    **dict.fromkeys("‘’‚‛＇′", "'"),
    **dict.fromkeys("‐‑‒–−﹣－", "-"),
    **dict.fromkeys("―⸺", "—"),
    **dict.fromkeys("\r\v\f\x85\u2028\u2029", "\n"),
    **dict.fromkeys("（【［｛〔〖", "("),
    **dict.fromkeys("）】］｝〕〗", ")"),
    **dict.fromkeys("～〜∼", "~"),
    "…": "…",
    "㎡": "m²",
    "㎏": "kg",
    "㎞": "km",
    "㎝": "cm",
    "㎜": "mm",
    "º": "°",
    "¥": "￥",
    "×": "×",
    "∶": ":",
    "％": "%",
    "﹪": "%",
    "．": ".",
    "＋": "+",
    "／": "/",
    "＠": "@",
    "＜": "<",
    "＞": ">",
    "｜": "|",
    "＝": "=",
    "＄": "$",
    "＆": "&",
    "＃": "#",
    "￡": "£",
    "\u3000": " ",
    "\t": " ",
}
_KEPT_SYMBOLS = frozenset("+=<>|~$€£￥₩%‰°℃℉×÷±²³&@#№/^√≤≥≈≠→")


def without_control_tokens(text: str) -> str:
    """`text` without anything of the form `<|word|>`, also what forms when such a thing is taken out."""
    return _without_control(_plain_characters(Traced.of(text))).text


def clean(text: str) -> Traced:
    """Plain quotes, dashes and half-width letters; no control tokens, emoji, markup or invisible characters."""
    aligned = _without_control(_plain_characters(Traced.of(text)))
    aligned = aligned.sub(_AREA_CODE, lambda match: f"{match[1]}-")
    aligned = aligned.sub(_MARKUP, lambda match: match.group() if _TAG.fullmatch(match.group()) else "")
    return aligned.sub(_BRACKETS, lambda match: match.group() if _TAG.fullmatch(match.group()) else ",")


_MARKUP = re.compile(
    rf"{TAG}|```|`|\*\*+|__+|^#{{1,6}} |^[*>-] |(?<=\s)\*(?=\S)|(?<=\S)\*(?=\s|$)", re.MULTILINE
)
_AREA_CODE = re.compile(r"\((\d{3})\)\s?(?=\d{3}-\d{4})")
_BRACKETS = re.compile(rf"{TAG}|[()\[\]{{}}]")


def _plain_characters(aligned: Traced) -> Traced:
    return aligned.sub(re.compile(r".", re.DOTALL), lambda match: _plain(match.group()))


def _plain(character: str) -> str:
    if character in _CHARACTERS:
        return _CHARACTERS[character]
    if character.isascii():
        return character if character.isprintable() or character == "\n" else ""
    if "０" <= character <= "９" or "Ａ" <= character <= "Ｚ" or "ａ" <= character <= "ｚ":
        return chr(ord(character) - 0xFEE0)
    category = unicodedata.category(character)
    if category == "Zs":
        return " "
    if category[0] == "C" or "\ufe00" <= character <= "\ufe0f":
        return ""
    if category[0] == "S" and character not in _KEPT_SYMBOLS:
        return " "
    return character


def _without_control(aligned: Traced) -> Traced:
    while True:
        shorter = aligned.sub(_CONTROL, lambda match: "")
        if len(shorter.text) == len(aligned.text):
            return aligned
        aligned = shorter

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
    aligned = Traced.of(text).sub(_NUMBER_SIGN, _plain_number)
    aligned = _without_control(_plain_characters(aligned))
    aligned = aligned.sub(_AREA_CODE, lambda match: f"{match[1] or match[2]}-")
    aligned = aligned.sub(_MARKUP, lambda match: match.group() if _TAG.fullmatch(match.group()) else "")
    return aligned.sub(_BRACKETS, lambda match: match.group() if _TAG.fullmatch(match.group()) else ",")


_MARKUP = re.compile(
    rf"{TAG}|```|`|\*\*+|__+|^#{{1,6}} |^[*>-] |(?<=\s)\*(?=\S)|(?<=\S)\*(?=\s|$)", re.MULTILINE
)
_AREA_CODE = re.compile(r"\((\d{3})\)[\s-]?(?=\d{3}-\d{4})|\((0\d{2,3})\)[\s-]?(?=\d{7,8})")
# ① Ⅳ ½ ⁵ ₂: characters that are a number, but no digit; ² and ³ are left to the rules for units.
_NUMBER_SIGN = re.compile(
    r"[\u2460-\u249b\u24ea-\u24f4\u24f5-\u24ff\u2776-\u2793\u3251-\u325f\u32b1-\u32bf][ \t]?"  # ① ⑴ ⒈ ❶ ㉑
    r"|[\u2160-\u217f]+|[\xbc-\xbe\u2150-\u215e\u2189]|[\u2080-\u2089]+|⁻?[\xb9\u2070\u2074-\u2079\xb2\xb3]+"
)
_BRACKETS = re.compile(rf"{TAG}|[()\[\]{{}}]")


def _plain_number(match: re.Match[str]) -> str | None:
    sign = match.group()
    if "\u2460" <= sign[0] <= "\u32bf":  # ①
        number = f"{unicodedata.numeric(sign[0]):.0f}"
        before = match.string[: match.start()].rstrip(" \t")
        listed = not before or before[-1] in "\n,，.。;；:：、!！?？"
        return f"{number}, " if listed else f" {number} "
    plain = unicodedata.normalize("NFKC", sign)
    if "\u2044" in plain:  # ½; behind a digit it is a mixed number
        blank = " " if match.string[: match.start()][-1:].isdigit() else ""
        return blank + plain.replace("\u2044", "/")
    if sign in ("²", "³"):
        return None
    if plain[-1].isdigit() and not "\u2080" <= sign[0] <= "\u2089":
        return "^" + plain.replace("\u2212", "-")
    return plain


_SPECIAL = re.compile(r"[^\n -~]")  # the rest stays as it is: most of a text, and each match costs time


def _plain_characters(aligned: Traced) -> Traced:
    return aligned.sub(_SPECIAL, lambda match: _plain(match.group()))


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

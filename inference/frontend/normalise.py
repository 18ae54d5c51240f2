"""How a cleaned piece of text is spoken, as it will be given to the tokenizer."""

from __future__ import annotations

import re
from collections.abc import Callable

from inference.frontend.chinese_rules import say_chinese
from inference.frontend.clean import TAG
from inference.frontend.english_rules import say_english
from inference.frontend.japanese_rules import say_japanese
from inference.frontend.korean_rules import say_korean

LANGUAGES = ("auto", "zh", "en", "ja", "ko")
STOPS = "。？！；.?!;"
_TAG = re.compile(f"({TAG})")
_ADDRESS = re.compile(r"https?:\S*|[\w+-]*[.@][\w.@/+-]+", re.A)
KANA = re.compile(r"[\u3041-\u3096\u30a1-\u30fa\u31f0-\u31ff]")
HANGUL = re.compile(r"[\uac00-\ud7a3\u1100-\u11ff]")
HAN = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af]")
_CJK = r"\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef"
_UNIT = re.compile(r"(?<=\d)(?:[A-Za-z°/]{1,4}| (?:k?m|km/h|[cm]m|[km]?g|ml|[GMT]B|[GMk]?Hz))(?![A-Za-z])")
_WORD = re.compile(r"[^\W\d_²³]{2}")
_KANA_SHARE = 0.1  # of kana and Han: a lone の in a Chinese sentence does not make it Japanese


def language_of(text: str, default: str = "") -> str:
    """By script: kana "ja", Hangul "ko", Han "zh", Latin and other letters "en"; `default` without letters.

    Letters of units or formulas, as in "5 km" and "x²", say nothing. Without a `default` the
    punctuation decides between "zh" and "en".
    """
    kana, hangul, han = (len(script.findall(text)) for script in (KANA, HANGUL, HAN))
    if hangul > han + kana:
        return "ko"
    if kana and kana >= _KANA_SHARE * (kana + han):
        return "ja"
    if han:
        return "zh"
    if _WORD.search(_UNIT.sub("", _TAG.sub("", text))):
        return "en"
    return default or ("zh" if re.search("[，。！？；：、]", text) else "en")


def _mostly_latin(text: str) -> bool:
    """A Chinese word in an English sentence does not make its numbers Chinese; names in capitals do not count."""
    plain = _UNIT.sub(" ", _ADDRESS.sub(" ", _TAG.sub(" ", text)))
    words = [word for word in re.findall(r"[A-Za-z']{2,}", plain) if not word.isupper()]
    return len(words) > len(HAN.findall(text))


def speakable(text: str) -> bool:
    """Whether anything in it can be heard: a letter, a digit or a sound such as [laughter]."""
    return any(character.isalnum() for character in text)


def spoken(text: str, language: str) -> str:
    """Numbers, units and signs in words of `language`; sound tags stay where they are."""
    say = _SPEAKERS["en" if language == "zh" and _mostly_latin(text) else language]
    parts = _TAG.split(text)
    # A tag must not switch normalisation off, nor be read by it.
    return tidy("".join(part if number % 2 else _keep_ends(part, say) for number, part in enumerate(parts)))


def tidy(text: str) -> str:
    """No doubled, leading or stray marks and blanks."""
    text = re.sub(r"\s+", " ", text)
    text = re.sub(rf"(?<=[{_CJK}]) | (?=[{_CJK}])", "", text)
    text = re.sub(rf"(?<=[{_CJK}]),|,(?=[{_CJK}])", "，", text)
    text = re.sub(rf"(?<=[{_CJK}])\.(?![\w.])", "。", text)
    text = re.sub(r" +(?=[,.?!;:](?![\w]))", "", text)
    text = re.sub(r"(?:[,，、:：]\s*)+(?=[,，、:：。？！；.?!;])", "", text)
    text = re.sub(r"(?<=[。？！；.?!;])(?:\s*[,，、])+", "", text)
    text = re.sub(r"([。？！；?!;])[。？！；?!;.]*(?=\1)", "", text)
    text = re.sub(r",(?=[^\s\d\"'])", ", ", text)
    return re.sub(r"^[\s,，、:：。；.;]+", "", text).rstrip()


def closed(text: str, language: str) -> str:
    """`text` with a full stop where it has none: without one the model may go on speaking."""
    bare = text.rstrip(" ,，、:：-—")
    core = re.sub(rf"(?:{TAG}|[\"'])+$", "", bare)
    if core and core[-1] in STOPS + "…":
        return bare
    return bare + ("。" if language in ("zh", "ja") else ".")


def _keep_ends(part: str, say: Callable[[str], str]) -> str:
    if not part.strip():
        return part
    head = part[: len(part) - len(part.lstrip())]
    tail = part[len(part.rstrip()) :]
    return head + say(part.strip()) + tail


_SPEAKERS: dict[str, Callable[[str], str]] = {
    "zh": say_chinese,
    "en": say_english,
    "ja": say_japanese,
    "ko": say_korean,
}

"""Every word the page shows, in Chinese and English."""

from __future__ import annotations

from collections.abc import Iterable

from inference.types import SynthesisError
from webui.page import texts_tabs
from webui.page.errors_zh import ERRORS_ZH
from webui.page.texts_monitor import TEXTS_MONITOR
from webui.page.texts_studio import TEXTS_STUDIO

LANGUAGES = ("zh", "en")

TEXTS = {**texts_tabs.TEXTS, **TEXTS_STUDIO, **TEXTS_MONITOR}
WARNINGS = texts_tabs.WARNINGS


def say(key: str, language: str) -> str:
    """The text `key` in `language` ("zh" or "en")."""
    return TEXTS[key][language]


def say_of(key: str, count: int, language: str) -> str:
    """The text `key` about so many, or `key` + "_one" about one."""
    return say(f"{key}_one" if count == 1 else key, language)


def explain(error: SynthesisError, language: str) -> str:
    """One sentence for the reader about what is wrong and what to do."""
    template = ERRORS_ZH.get(error.code) if language == "zh" else None
    if template is None:
        return error.message
    try:
        return template.format(**error.details)
    except (KeyError, IndexError, ValueError):
        return error.message


def explain_code(code: str, message: str, language: str) -> str:
    """The same of an error whose details are no longer known: its own English where the sentence needs them."""
    template = ERRORS_ZH.get(code, "{") if language == "zh" else "{"
    return message if "{" in template else template


def warn(codes: Iterable[str], language: str) -> str:
    """One sentence with all that was found about the reference clip; "" for nothing."""
    found = [WARNINGS[code][language] for code in codes if code in WARNINGS]
    if not found:
        return ""
    if language == "zh":
        return "提示：" + "；".join(found) + "。"
    return "Note: " + "; ".join(found) + "."


def language_of(accept_language: str) -> str:
    """ "zh" when the browser's first supported preference is Chinese, else "en"."""
    for part in accept_language.lower().split(","):
        tag = part.split(";")[0].strip()
        if tag.startswith(("zh", "yue")):
            return "zh"
        if tag.startswith("en"):
            return "en"
    return "en"

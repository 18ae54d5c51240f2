"""Every word and every error has a sentence in both languages."""

from __future__ import annotations

import ast
import string
from collections.abc import Iterator
from pathlib import Path

import pytest

from inference.types import EngineError, RequestError
from webui.page.errors_zh import ERRORS_ZH
from webui.page.texts import LANGUAGES, TEXTS, WARNINGS, explain, language_of, say, say_of, warn

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
ERRORS = ("RequestError", "CheckpointError", "EngineError")


def raised() -> Iterator[tuple[str, ast.Call]]:
    """(place, call) of every error that the engine and the page make."""
    for package in ("inference", "webui"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ERRORS:
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", node


def details_of_codes() -> dict[str, set[str]]:
    """The names of details that a code has wherever it is raised."""
    found: dict[str, set[str]] = {}
    for place, call in raised():
        code = call.args[0]
        assert isinstance(code, ast.Constant), f"{place}: the code is no literal, so nobody can translate it"
        names = {keyword.arg for keyword in call.keywords if keyword.arg}
        found[code.value] = found.get(code.value, names) & names
    return found


def placeholders(template: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(template) if name}


def test_every_error_code_has_a_chinese_sentence() -> None:
    codes = details_of_codes()
    assert len(codes) > 50  # the search finds them
    assert sorted(set(codes) - set(ERRORS_ZH)) == []


def test_chinese_sentences_use_only_details_that_the_error_has() -> None:
    codes = details_of_codes()
    wrong = {
        code: sorted(placeholders(template) - codes[code])
        for code, template in ERRORS_ZH.items()
        if code in codes and placeholders(template) - codes[code]
    }
    assert wrong == {}


@pytest.mark.parametrize("code", sorted(ERRORS_ZH))
def test_chinese_sentences_are_complete(code: str) -> None:
    template = ERRORS_ZH[code]
    sentence = template.format(**dict.fromkeys(placeholders(template), 7.0))
    assert sentence.endswith("。") and "{" not in sentence
    assert any("\u4e00" <= character <= "\u9fff" for character in sentence)


@pytest.mark.parametrize("table", [TEXTS, WARNINGS], ids=["texts", "warnings"])
def test_every_text_is_there_in_both_languages(table: dict[str, dict[str, str]]) -> None:
    for key, translations in table.items():
        assert set(translations) == set(LANGUAGES), key
        assert all(translations.values()), key
        assert placeholders(translations["zh"]) == placeholders(translations["en"]), key


def test_what_is_said_of_one_needs_what_is_said_of_many() -> None:
    ones = [key for key in TEXTS if key.endswith("_one") and key.removesuffix("_one") in TEXTS]
    assert {"batch_read_one", "batch_started_one", "batch_line_one", "history_kept_one"} <= set(ones)
    for key in ones:
        for language in LANGUAGES:
            assert placeholders(TEXTS[key][language]) == placeholders(
                TEXTS[key.removesuffix("_one")][language]
            )
    assert say_of("history_kept", 1, "en").format(days=1) == "Kept for 1 day"
    assert say_of("history_kept", 0, "en").format(days=0) == "Kept for 0 days"


def test_every_warning_of_a_reference_report_is_told() -> None:
    source = (ROOT / "inference/frontend/reference.py").read_text(encoding="utf-8")
    function = next(node for node in ast.walk(ast.parse(source)) if getattr(node, "name", "") == "_warnings")
    table = next(node for node in ast.walk(function) if isinstance(node, ast.Dict))
    codes = {key.value for key in table.keys if isinstance(key, ast.Constant)}
    assert codes | {"transcript_doubtful"} == set(WARNINGS)  # that one depends on the text, not on the clip


def test_warnings_make_one_sentence() -> None:
    assert warn((), "en") == ""
    assert warn(("quiet", "noisy"), "en") == "Note: the clip is quiet and was amplified; the clip is noisy."
    assert warn(("quiet",), "zh") == "提示：参考音频音量很小，已自动放大。"
    assert warn(("never_heard_of",), "zh") == ""


def test_errors_are_explained_in_the_readers_language() -> None:
    error = RequestError("bad_speed", "The speed must be between 0.5 and 2.0.", minimum=0.5, maximum=2.0)
    assert explain(error, "en") == error.message
    assert explain(error, "zh") == "语速必须在 0.5 到 2.0 之间。"


@pytest.mark.parametrize(
    "error",
    [
        EngineError("brand_new", "Something new."),
        RequestError("bad_speed", "No details."),
        RequestError("audio_too_long", "A word for a number.", limit="ten"),
    ],
)
def test_an_error_that_cannot_be_translated_keeps_its_english_sentence(error: RequestError) -> None:
    assert explain(error, "zh") == error.message


@pytest.mark.parametrize(
    ("header", "language"),
    [
        ("zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        ("zh-TW", "zh"),
        ("yue-HK,en;q=0.5", "zh"),
        ("en-US,en;q=0.9,zh;q=0.8", "en"),
        ("de-DE,de;q=0.9,zh;q=0.5", "zh"),
        ("fr", "en"),
        ("", "en"),
        (";;,,", "en"),
    ],
)
def test_the_language_of_a_browser(header: str, language: str) -> None:
    assert language_of(header) == language


def test_say() -> None:
    assert say("generate", "zh") == "生成音频" and say("generate", "en") == "Generate"

"""The page arrives in the language of its reader."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.webui.serving import Served, serving
from webui.page.first_language import COOKIE, wanted_language

pytest.importorskip("gradio")

pytestmark = pytest.mark.unit

CHINESE = re.compile("[\u4e00-\u9fff]")
OWN_NAMES = {"中文", "中 + EN", "日本語"}  # a language is named in itself


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("studio")) as studio:
        yield studio


def opened(url: str, **headers: str) -> tuple[str, dict[str, Any]]:
    """(language of the document, the page's configuration)."""
    html = httpx.get(url, headers=headers).text
    language = re.search(r'<html\s+lang="([^"]+)"', html)
    config = re.search(r"window\.gradio_config = (\{.*?\});</script>", html, re.DOTALL)
    assert language and config
    return language[1], json.loads(config[1])


def words(config: dict[str, Any]) -> list[str]:
    """What the components show before anything has happened."""
    found: list[str] = []

    def collect(value: Any) -> None:
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, list):
            for item in value:
                collect(item)

    for component in config["components"]:
        for name in ("label", "value", "placeholder", "choices"):
            collect(component["props"].get(name))
    return found


def test_an_english_reader_is_sent_no_chinese_word(served: Served) -> None:
    language, config = opened(served.url, **{"accept-language": "en-GB,en;q=0.8"})
    shown = words(config)
    assert language == "en" and {"3s Clone", "Generate", "Speed", "Pace"} <= set(shown)
    assert [word for word in shown if CHINESE.search(word) and word not in OWN_NAMES] == []


def test_a_chinese_reader_gets_chinese_with_its_placeholders(served: Served) -> None:
    language, config = opened(served.url, **{"accept-language": "zh-CN"})
    shown = words(config)
    assert language == "zh-CN" and {"3s极速复刻", "生成音频", "语速"} <= set(shown)
    assert any("在这里输入文字" in word for word in shown)


def test_the_switch_says_which_language_the_page_is_in(served: Served) -> None:
    for accepted, language in (("fr", "en"), ("zh-TW", "zh")):
        _, config = opened(served.url, **{"accept-language": accepted})
        (switch,) = [one for one in config["components"] if one["props"].get("elem_id") == "language"]
        assert switch["props"]["value"] == language


@pytest.mark.parametrize(
    ("usual", "cookie", "accepted", "language"),
    [
        ("auto", "", "zh", "zh"),
        ("auto", "", "", "en"),
        ("en", "", "zh", "en"),
        ("en", f"{COOKIE}=zh", "en", "zh"),
        ("auto", f"x=1; {COOKIE}=en", "zh", "en"),
        ("auto", f"{COOKIE}=fr", "zh", "zh"),
        ("auto", "a b=\x01; ;;", "zh", "zh"),
    ],
)
def test_the_visitor_s_choice_goes_first(usual: str, cookie: str, accepted: str, language: str) -> None:
    assert wanted_language({"cookie": cookie, "accept-language": accepted}, usual) == language


def test_other_answers_are_left_as_they_are(served: Served) -> None:
    answer = httpx.get(f"{served.url}/config", headers={"accept-language": "en"})
    assert answer.json()["components"] and "生成音频" in answer.text

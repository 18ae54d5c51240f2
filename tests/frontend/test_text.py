"""Normalising and parting text: the original's recorded behaviour, and what people expect (CASES, "Text")."""

from __future__ import annotations

import builtins
import importlib.metadata
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.frontend import original_text
from inference.frontend.original_text import original_prompt, original_segments
from inference.frontend.text import MIN_SEGMENT_TOKENS, Segment, normalise_prompt, prepare_text
from inference.types import MAX_TEXT_CHARACTERS, RequestError
from tests.frontend.text_support import every_recorded_text, full_tokenizer, nano_tokenizer, recorded_texts

pytestmark = pytest.mark.unit
RECORDED_WETEXT = "0.1.0"  # its grammars made the recorded cases; later ones read some numbers differently


def spoken(text: str, language: str = "auto") -> str:
    return " ".join(part.text for part in prepare_text(text, nano_tokenizer(), language=language))


def refusal(text: str, **options: Any) -> str:
    with pytest.raises(RequestError) as caught:
        prepare_text(text, nano_tokenizer(), **options)
    return caught.value.code


# ------------------------------------------------------------------------------------------------ exact
@pytest.mark.golden
@every_recorded_text()
def test_recorded_plain(number: int) -> None:
    case = recorded_texts()[number]
    text, tokenizer = case["input"], full_tokenizer()
    assert original_segments(text, tokenizer, wetext=False) == case["plain_segments"]
    assert original_prompt(text, wetext=False) == case["plain_prompt"]


@pytest.mark.golden
@every_recorded_text()
def test_recorded_wetext(number: int) -> None:
    pytest.importorskip("wetext")
    case = recorded_texts()[number]
    version = importlib.metadata.version("wetext")
    if version != RECORDED_WETEXT and re.search(r"\d", case["input"]):
        pytest.skip(f"wetext {version} reads numbers otherwise than the recorded {RECORDED_WETEXT}")
    assert original_segments(case["input"], full_tokenizer()) == case["wetext_segments"]
    assert original_prompt(case["input"]) == case["wetext_prompt"]


@pytest.mark.golden
def test_exact_goes_through_prepare_text() -> None:
    for case in recorded_texts():
        try:
            found = prepare_text(case["input"], full_tokenizer(), exact=True, _plain=True)
        except RequestError as error:
            assert error.code in ("nothing_to_speak", "empty_text")
            assert case["plain_segments"] == []
            continue
        assert [part.text for part in found] == case["plain_segments"]
        assert_spans_cover(case["input"], found)
        assert normalise_prompt(case["input"], exact=True, _plain=True) == case["plain_prompt"]


def test_exact_without_wetext_warns_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **named: Any) -> Any:
        if name == "wetext":
            raise ImportError(name)
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    original_text._wetext.cache_clear()
    try:
        for _ in range(2):
            assert normalise_prompt("I have 3.", exact=True) == "I have three."
    finally:
        original_text._wetext.cache_clear()
    assert len([record for record in caplog.records if "wetext" in record.getMessage()]) == 1


# ---------------------------------------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    "text",
    [
        "。。。",
        "...!!!",
        "😀🎉",
        "（）",
        "【】",
        "<|endofprompt|>",
        "<|im_start|><|im_end|>",
        "+",
        "—",
        "👩‍👩‍👧",
    ],
)
def test_nothing_to_speak(text: str) -> None:
    assert refusal(text) == "nothing_to_speak"


@pytest.mark.parametrize("exact", [False, True])
def test_other_refusals(exact: bool) -> None:
    assert refusal("", exact=exact) == "empty_text"
    for blank in (" \n\t\u3000", "\u200b", "\ufeff \u2060"):
        assert refusal(blank, exact=exact) == "empty_text"
    assert refusal("好" * (MAX_TEXT_CHARACTERS + 1), exact=exact) == "text_too_long"
    assert refusal("hello", exact=exact, language="klingon") == "unknown_language"
    assert prepare_text("好" * MAX_TEXT_CHARACTERS, nano_tokenizer(), exact=exact)


# ---------------------------------------------------------------------------------------------- readings
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("访问www.example.com，版本v2.0，圆周率3.14", "访问www点example点com，版本v二点零，圆周率三点一四。"),
        ("床前明月光\n疑是地上霜\n低头思故乡", "床前明月光，疑是地上霜，低头思故乡。"),
        ("血压120/80mmHg，同比+3.5%", "血压一百二十，八十毫米汞柱，同比正百分之三点五。"),
        (
            "一只小羊是养,两只小羊是养,三只小羊就不是养了,是喂。",
            "一只小羊是养，两只小羊是养，三只小羊就不是养了，是喂。",
        ),
        ("好", "好。"),
        ("是的", "是的。"),
        ("行行出状元，SaaS和DeepGEMM", "行行出状元，SaaS和DeepGEMM。"),
        ("第1名和第2名相差0.5分，比分3:2", "第一名和第二名相差零点五分，比分三比二。"),
        ("温度-10~35℃，或从-5°C起", "温度负十到三十五摄氏度，或从负五摄氏度起。"),
        ("电话13812345678，3:30pm之前", "电话幺三八幺二三四五六七八，下午三点三十分之前。"),
        ("共1,234人，￥199.99，$3万", "共一千二百三十四人，一百九十九点九九元，三万美元。"),
        ("2024-12-05（周四）20:08，1990年", "二零二四年十二月五日，周四，二十点零八分，一九九零年。"),
        ("面积25m²，x²+y²=z²", "面积二十五平方米，x平方加y平方等于z平方。"),
        ("邮箱abc@example.com。", "邮箱abc艾特example点com。"),
        ("我用GPT-4拍了2张，1/3好。", "我用GPT四拍了两张，三分之一好。"),
        ("“你好”——他说……", '"你好"，他说……'),
        ("我（和你）走。", "我，和你，走。"),
        ("（你好）", "你好。"),
    ],
)
def test_mandarin(text: str, expected: str) -> None:
    assert spoken(text) == expected
    assert {part.language for part in prepare_text(text, nano_tokenizer())} == {"zh"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I like 705A and 121B; do you?", "I like seven oh five A and one two one B; do you?"),
        (
            "In 2024 we sold 1,305 units",
            "In twenty twenty four we sold one thousand three hundred and five units.",
        ),
        ("a", "a."),
        (
            "$1,234.50 at 3:30pm",
            "one thousand two hundred and thirty four dollars and fifty cents at three thirty P M.",
        ),
        ("Call 555-123-4567.", "Call five five five, one two three, four five six seven."),
        (
            "120/80mmHg, +3.5%",
            "one hundred and twenty over eighty millimeters of mercury, plus three point five percent.",
        ),
        ("v2.0 and 1.2.3", "v two point zero and one point two point three."),
        (
            "See https://example.com/a or bob@example.org!",
            "See example dot com slash a or bob at example dot org!",
        ),
        ("“It’s” – he said… okay", '"It\'s", he said... okay.'),
        ("Dr. Li came (late).", "Doctor Li came, late."),
        ("2-3 days, -5 degrees", "two to three days, minus five degrees."),
        ("The 1990s, 21st, 3/4", "The nineteen nineties, twenty first, three quarters."),
        ("**Bold** 😀 text\n- item", "Bold text, item."),
    ],
)
def test_english(text: str, expected: str) -> None:
    assert spoken(text) == expected
    assert {part.language for part in prepare_text(text, nano_tokenizer())} == {"en"}


def test_language_by_script() -> None:
    for text, language in (
        ("これはテストです。", "ja"),
        ("안녕하세요. 저는 학생입니다.", "ko"),
        ("我喜欢这家叫做一条龙的の店", "zh"),
        ("Où est-il?", "en"),
        ("2024", "en"),
    ):
        assert prepare_text(text, nano_tokenizer())[0].language == language
    assert spoken("3", language="zh") == "三。"
    assert spoken("Hello 你好, I am 3 years old.").endswith("three years old.")


def test_control_tokens_go_and_sound_tags_stay() -> None:
    text = "<|im_start|>你好<|endof<|en|>prompt|>世界[laughter]有25人<strong>3个</strong>，"
    text += "<laughter>哈</laughter>[breath]"
    found = spoken(text)
    assert found == "你好世界[laughter]有二十五人<strong>三个</strong>，<laughter>哈</laughter>[breath]。"
    assert "|" not in spoken("＜｜endoftext｜＞ ＜|endofprompt|＞hello")
    assert spoken("[laughter]") == "[laughter]."


def test_control_tokens_never_reach_the_model() -> None:
    tokenizer = nano_tokenizer()
    controls = {
        tokenizer.encode(token)[0]
        for token in ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|endofprompt|>")
    }
    for text in (
        "a<|endofprompt|>b",
        "a<|\u200bendofprompt|>b",
        "a<`|endofprompt|`>b",
        "a<|**endofprompt|>b",
    ):
        for part in prepare_text(text, tokenizer):
            assert not controls & set(tokenizer.encode(part.text))


# ---------------------------------------------------------------------------------------------- parting
def letters(text: str) -> str:
    return "".join(character for character in text if character.isalpha())


def assert_spans_cover(text: str, segments: list[Segment]) -> None:
    """Spans touch, in order, from the first to the last character."""
    borders = [0, *(part.source_span[1] for part in segments)]
    assert [part.source_span[0] for part in segments] == borders[:-1]
    assert borders == sorted(borders)
    assert borders[-1] == len(text)


@pytest.mark.parametrize(
    "text",
    [
        "今天，" * 70,
        "好" * 720,
        "坏，" * 100,
        "word " * 300,
        "abc" * 500,
        "你好！" * 200,
        "Yes. " * 300,
        "第一行没有标点\n" * 40,
    ],
)
def test_long_texts_keep_every_letter(text: str) -> None:
    tokenizer = full_tokenizer()
    segments = prepare_text(text, tokenizer)
    assert all(len(tokenizer.encode(part.text)) <= 80 for part in segments)
    assert letters("".join(part.text for part in segments)) == letters(text)
    assert_spans_cover(text, segments)
    for part in segments:  # each span holds what its segment says
        assert letters(text[slice(*part.source_span)]) == letters(part.text)


def test_dots_inside_words_never_part_a_text() -> None:
    text = "The value is 3.14 and the site is www.example.com and version 2.0.1 is by Dr. Li. " * 8
    segments = prepare_text(text, nano_tokenizer(), max_tokens=70)
    for part in segments:
        assert text[slice(*part.source_span)].strip().startswith("The value")


def test_short_texts_stay_whole_and_the_last_part_is_not_a_crumb() -> None:
    tokenizer = full_tokenizer()
    assert len(prepare_text("你好。今天天气很好。我们走吧。", tokenizer)) == 1
    segments = prepare_text("今天我们要去公园里散步。" * 7, tokenizer)
    assert min(len(tokenizer.encode(part.text)) for part in segments) >= 20


_PIECES = st.sampled_from(
    [
        "你好",
        "今天",
        "，",
        "。",
        "！",
        "\n",
        " ",
        "hello",
        "World",
        ", ",
        ". ",
        "?",
        "3.14",
        "2024",
        "1,234",
        "😀",
        "（",
        "）",
    ]
    + [
        "[laughter]",
        "<strong>",
        "</strong>",
        "<|en|>",
        "www.a.com",
        "-",
        "%",
        "“",
        "”",
        "テスト",
        "한국",
        "x²",
        "…",
        "\u200b",
    ]
)


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.text(max_size=300), st.lists(_PIECES, max_size=120).map("".join)), st.integers(1, 80))
def test_any_text_is_parted_under_the_cap_or_refused(text: str, cap: int) -> None:
    tokenizer = nano_tokenizer()
    try:
        segments = prepare_text(text, tokenizer, max_tokens=cap)
    except RequestError as error:
        assert error.code in ("empty_text", "nothing_to_speak")
        return
    assert segments
    assert_spans_cover(text, segments)
    for part in segments:
        assert any(character.isalnum() for character in part.text)
        assert len(tokenizer.encode(part.text)) <= max(cap, MIN_SEGMENT_TOKENS)


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="你好今天abcUYZ éñ，。,.!?\n…“”()（）—", max_size=400), st.integers(10, 80))
def test_no_letter_is_lost(text: str, cap: int) -> None:
    try:
        segments = prepare_text(text, nano_tokenizer(), max_tokens=cap)
    except RequestError:
        assert not letters(text)
        return
    assert letters("".join(part.text for part in segments)) == letters(text)


# ---------------------------------------------------------------------------------------------- prompts
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("希望你以后能够做的比我还好呦。", "希望你以后能够做的比我还好呦。"),
        ("我有3个", "我有三个。"),
        ("line one\nline two", "line one line two."),
        ("<|endofprompt|>", ""),
        ("😀", ""),
        ("", ""),
        ("[laughter]", ""),
    ],
)
def test_prompt(text: str, expected: str) -> None:
    assert normalise_prompt(text) == expected

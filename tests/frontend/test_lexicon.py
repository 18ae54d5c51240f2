"""The user's own readings (CASES 9 and 17)."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.frontend import lexicon as lexicons
from inference.frontend.lexicon import Lexicon, find_lexicon, read_lexicon
from inference.frontend.text import prepare_text
from inference.types import RequestError
from tests.frontend.text_support import nano_tokenizer

pytestmark = pytest.mark.unit


def spoken(text: str, lexicon: Lexicon, exact: bool = False) -> str:
    parts = prepare_text(text, nano_tokenizer(), lexicon=lexicon, exact=exact)
    return " ".join(part.text for part in parts)


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "lexicon.txt"
    path.write_text(
        "\ufeff# 读法\n\nDeepGEMM = deep gemm\nSaaS=sass\n 行行出状元 = 航航出状元 \nE = mc = two\n",
        encoding="utf-8",
    )
    lexicon = read_lexicon(path)
    assert spoken("DeepGEMM和SaaS，行行出状元。", lexicon) == "deep gemm和sass，航航出状元。"
    assert spoken("An E here", lexicon) == "An mc equals two here."


def test_case_decides_only_for_words_with_capitals() -> None:
    lexicon = Lexicon({"sql": "sequel", "US": "you ess"})
    assert spoken("SQL and sql and Sql", lexicon) == "sequel and sequel and sequel."
    assert spoken("The US told us.", lexicon) == "The you ess told us."


def test_only_whole_words_are_replaced() -> None:
    lexicon = Lexicon({"art": "ART", "3d": "three dee", "c++": "see plus plus"})
    assert (
        spoken("art, party, arts, start; 13D 3D", lexicon) == "ART, party, arts, start; thirteen D three dee."
    )
    assert spoken("用C++写", lexicon) == "用see plus plus写。"


def test_the_longest_word_wins_and_nothing_is_replaced_twice() -> None:
    lexicon = Lexicon({"银行": "银杭", "行": "形", "银行行长": "银杭杭掌", "a b": "x", "x": "y"})
    assert spoken("银行行长去银行，行。", lexicon) == "银杭杭掌去银杭，形。"
    assert spoken("Say a b now", lexicon) == "Say x now."


def test_full_width_spelling_is_the_same_word() -> None:
    assert spoken("ＳａａＳ很好", Lexicon({"SaaS": "萨斯"})) == "萨斯很好。"


def test_readings_are_normalised_and_sources_kept() -> None:
    parts = prepare_text("芝罘区有人。" * 30, nano_tokenizer(), lexicon=Lexicon({"罘": "浮3"}), max_tokens=40)
    assert len(parts) > 1 and all("芝浮三区" in part.text for part in parts)
    assert [part.source_span[0] for part in parts[1:]] == [part.source_span[1] for part in parts[:-1]]
    assert all(part.source_span[0] % 6 == 0 for part in parts)


def test_exact_mode_knows_no_lexicon() -> None:
    assert spoken("SaaS is good.", Lexicon({"SaaS": "sass"}), exact=True) == "SaaS is good."


@pytest.mark.parametrize("line", ["word", "word =", "= said", "… = dots", "word = …"])
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "mine.txt"
    path.write_text(f"# first\ngood = fine\n{line}\n", encoding="utf-8")
    with pytest.raises(RequestError) as caught:
        read_lexicon(path)
    assert caught.value.code == "lexicon_bad_line"
    assert "Line 3" in caught.value.message and str(path) in caught.value.message


def test_an_unreadable_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes("café = x".encode("latin-1"))
    for path in (tmp_path / "latin.txt", tmp_path / "missing.txt", tmp_path):
        with pytest.raises(RequestError) as caught:
            read_lexicon(path)
        assert caught.value.code == "lexicon_unreadable" and str(path) in caught.value.message


def test_which_file_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lexicons, "DEFAULT", tmp_path / "lexicon.txt")
    assert find_lexicon(None) is None
    (tmp_path / "lexicon.txt").write_text("a = b\n", encoding="utf-8")
    assert find_lexicon(None) == tmp_path / "lexicon.txt"
    with pytest.raises(RequestError):
        find_lexicon(tmp_path / "other.txt")

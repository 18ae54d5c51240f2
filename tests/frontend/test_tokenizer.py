"""Text to ids: recorded cases, special tokens, damaged folders (SPEC 2.6)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from inference.frontend.tokenizer import CONTROL_TOKENS, SPECIAL_TOKENS, VOCAL_TAGS, TextTokenizer
from inference.types import CheckpointError
from tests.frontend.text_support import NANO, full_tokenizer, nano_tokenizer, recorded_texts

pytestmark = pytest.mark.unit


@pytest.mark.golden
@pytest.mark.parametrize("number", range(73))
def test_ids_of_every_recorded_text(number: int) -> None:
    case = recorded_texts()[number]
    tokenizer = full_tokenizer()
    assert tokenizer.encode(case["input"]) == case["input_token_ids"]
    for kind in ("wetext", "plain"):
        assert [tokenizer.encode(part) for part in case[f"{kind}_segments"]] == case[f"{kind}_token_ids"]


def test_special_tokens_follow_the_vocabulary_in_order() -> None:
    tokenizer = full_tokenizer()
    assert [tokenizer.encode(token) for token in SPECIAL_TOKENS] == [[151643 + n] for n in range(20)]
    assert tokenizer.vocab_size == 151663
    assert tokenizer.end_of_prompt == 151646


def test_small_folder() -> None:
    tokenizer = nano_tokenizer()
    words = json.loads((NANO / "vocab.json").read_text(encoding="utf-8"))
    assert tokenizer.vocab_size == len(words) + len(SPECIAL_TOKENS)
    assert tokenizer.end_of_prompt == len(words) + CONTROL_TOKENS.index("<|endofprompt|>")
    ids = tokenizer.encode("Hello, 你好！ <laughter>naïve 😀</laughter>\n")
    assert max(ids) < tokenizer.vocab_size
    assert ids.count(tokenizer.encode("<laughter>")[0]) == 1


@pytest.mark.parametrize("tag", VOCAL_TAGS)
def test_tags_are_one_token_inside_text(tag: str) -> None:
    tokenizer = nano_tokenizer()
    (number,) = tokenizer.encode(tag)
    assert number in tokenizer.encode(f"你好{tag}hello")


def test_nfc() -> None:
    tokenizer = nano_tokenizer()
    assert tokenizer.encode("cafe\u0301") == tokenizer.encode("caf\u00e9")


def test_half_a_surrogate_pair_is_no_error() -> None:
    assert nano_tokenizer().encode("a\ud83d") == nano_tokenizer().encode("a?")


@pytest.mark.parametrize("missing", ["vocab.json", "merges.txt"])
def test_missing_file(tmp_path: Path, missing: str) -> None:
    shutil.copytree(NANO, tmp_path / "t")
    (tmp_path / "t" / missing).unlink()
    with pytest.raises(CheckpointError) as caught:
        TextTokenizer(tmp_path / "t")
    assert caught.value.code == "tokenizer_missing"


@pytest.mark.parametrize(
    ("file", "content"),
    [("vocab.json", "{"), ("vocab.json", "[1]"), ("merges.txt", "a b c\n"), ("merges.txt", "ab zzzz\n")],
)
def test_damaged_file(tmp_path: Path, file: str, content: str) -> None:
    shutil.copytree(NANO, tmp_path / "t")
    (tmp_path / "t" / file).write_text(content, encoding="utf-8")
    with pytest.raises(CheckpointError) as caught:
        TextTokenizer(tmp_path / "t")
    assert caught.value.code == "tokenizer_unreadable"

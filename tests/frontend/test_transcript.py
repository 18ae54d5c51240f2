"""Transcripts that cannot be what the clip says."""

from __future__ import annotations

import pytest

from inference.frontend.transcript import doubtful_transcript

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "shortest", "longest"),
    [
        ("希望你以后能够做的比我还好呦。", 2.0, 7.0),
        ("The quick brown fox jumps over the lazy dog.", 1.5, 8.0),
        ("안녕하세요. 저는 학생입니다.", 1.5, 7.0),
        ("これはテストの文章です。", 1.5, 6.0),
        ("In 2024 we sold 1,305 units.", 2.0, 10.0),
    ],
)
def test_spoken_lengths_are_believed_and_others_not(text: str, shortest: float, longest: float) -> None:
    for seconds in (shortest, (shortest + longest) / 2, longest):
        assert not doubtful_transcript(text, seconds)
    assert doubtful_transcript(text, shortest / 4)
    assert doubtful_transcript(text, 3 * longest)


@pytest.mark.parametrize("text", ["", "  ", "。。。", "[laughter]"])
def test_without_words_there_is_nothing_to_doubt(text: str) -> None:
    assert not doubtful_transcript(text, 5.0)

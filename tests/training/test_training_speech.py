"""The material the nano checkpoint learns from: sentences, tokens, made-up speakers, and what a shard holds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from training.everyday import english_sentences, mandarin_sentences
from training.generate import TOKEN, finish, write_shard
from training.streams import HELD_OUT_STYLE, mixed_styles, warped_speakers, warped_styles
from training.teachers import RATE, Spoken, english_phones, mandarin_phones
from training.text_tokenizer import byte_symbols, han_merges, write_files
from training.texts import TEST_COUNTS, hold_out, speakable
from training.warp import _source_bins

pytestmark = pytest.mark.unit
STYLES = ["a", "b", "c", "d", HELD_OUT_STYLE]


def tone(seconds: float, hertz: float = 200.0) -> Spoken:
    """A sine with its true pitch."""
    count = int(seconds * RATE)
    wave = np.sin(2 * np.pi * hertz * np.arange(count) / RATE).astype(np.float32)
    return Spoken(wave, np.full(count * 200 // RATE, hertz), ["a"])


def test_templates_leave_no_slot_unfilled() -> None:
    sentences = english_sentences(3000, 1) + mandarin_sentences(3000, 1)
    assert not [text for text in sentences if "{" in text or "}" in text]
    assert len(set(sentences)) == len(sentences) > 2000
    assert all(speakable(text, 1, 30) for text in english_sentences(3000, 1))


def test_held_out_sentences_are_gone_from_the_groups() -> None:
    groups = {name: [f"{name} number {'x' * i} is said here." for i in range(200)] for name in TEST_COUNTS}
    test = hold_out(groups)
    assert len(test) == len(set(test)) == sum(TEST_COUNTS.values())
    assert not set(test) & {text for group in groups.values() for text in group}


@pytest.mark.parametrize("character", ["一", "好", "龘", "鿿", "。"])
def test_han_character_is_one_or_two_tokens(tmp_path: Path, character: str) -> None:
    symbols = byte_symbols()
    merges = han_merges("好" * 3 + "一", symbols, 2)
    size = write_files(tmp_path, merges, symbols)
    vocabulary = json.loads((tmp_path / "vocab.json").read_text(encoding="utf-8"))
    assert sorted(vocabulary.values()) == list(range(size))
    first, second, third = (symbols[byte] for byte in character.encode())
    assert first + second in vocabulary and third in vocabulary
    assert (first + second + third in vocabulary) == (character in "一好。")


def test_phones_of_the_two_languages_do_not_collide() -> None:
    assert english_phones("hˈɛ, lo") == ["h", "ɛ", "l", "o"]
    assert mandarin_phones("ni↓ xau↓!") == ["zhn", "zhi", "zh↓", "zhx", "zha", "zhu", "zh↓"]


def test_speakers_are_the_same_in_every_process_and_differ_from_each_other() -> None:
    assert warped_speakers() == warped_speakers()
    assert len(set(warped_speakers())) == len(warped_speakers())


def test_mixed_styles_add_up_and_the_held_out_one_is_there_once_alone() -> None:
    styles = mixed_styles(STYLES)
    assert all(sum(style.values()) == pytest.approx(1.0) for style in styles)
    assert styles.count({HELD_OUT_STYLE: 1.0}) == 1


def test_a_male_style_is_not_lowered_like_a_female_one() -> None:
    styles = mixed_styles(STYLES)
    for style, family in zip(styles, warped_styles(styles)):
        if style.get(HELD_OUT_STYLE, 0.0) > 0.5:
            assert min(speaker.pitch for speaker in family) >= 0.8


def test_warped_bins_stay_in_order_and_inside() -> None:
    for speaker in warped_speakers():
        bins = _source_bins(513, speaker)
        assert (np.diff(bins) >= 0).all() and bins[0] >= 0 and bins[-1] < 512


def test_finished_sound_has_whole_tokens_quiet_ends_and_pitch_where_it_sounds() -> None:
    sound, pitch = finish(tone(1.0), np.random.default_rng(0))
    assert len(sound) % TOKEN == 0 and len(pitch) * 480 == len(sound)
    loud = np.abs(sound.reshape(-1, 480)).max(axis=1) > 1000
    assert not loud[:3].any() and not loud[-3:].any()
    assert 49 <= (pitch > 0).sum() <= 51 and (loud == (pitch > 0)).mean() > 0.95
    assert np.abs(sound[:480]).max() > 0  # a noise floor, not digital silence


def test_shard_keeps_utterances_apart(tmp_path: Path) -> None:
    parts = [(*finish(tone(0.3 + i), np.random.default_rng(i)), {"text": str(i)}) for i in range(3)]
    write_shard(tmp_path / "shard-00-0000.npz", parts)
    assert [path.name for path in tmp_path.iterdir()] == ["shard-00-0000.npz"]
    with np.load(tmp_path / "shard-00-0000.npz") as shard:
        assert [entry["text"] for entry in json.loads(str(shard["meta"]))] == ["0", "1", "2"]
        for i, (sound, pitch, _) in enumerate(parts):
            start, end = shard["audio_offsets"][i : i + 2]
            assert np.array_equal(shard["audio"][start:end], sound)
            start, end = shard["f0_offsets"][i : i + 2]
            assert np.array_equal(shard["f0"][start:end], pitch)

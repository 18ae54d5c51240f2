"""Collects the sentences to be spoken: World English Bible, WordNet, everyday templates, Mandarin with phonemes.

    python -m training.texts --sources UNPACKED_DEBIAN_PACKAGES --out texts.json.gz --test training/test_sentences.txt

The sources are Debian's `sword-text-web` (public domain) and `wordnet-base` (WordNet licence), unpacked with `dpkg -x`.
Mandarin phonemes need `misaki[zh]`; they are stored so that the generating machine does not.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from training.everyday import english_sentences, mandarin_sentences

_ALLOWED = re.compile(r"[A-Za-z',;:.!? \-]+")
_SHARES = {"everyday": 0.27, "examples": 0.30, "definitions": 0.12, "bible": 0.23, "words": 0.08}
TEST_COUNTS = {"everyday": 90, "examples": 80, "bible": 30}


def speakable(sentence: str, fewest: int, most: int) -> bool:
    """Only letters and plain punctuation, and a sensible number of words."""
    return fewest <= len(sentence.split()) <= most and _ALLOWED.fullmatch(sentence) is not None


def bible(sources: Path) -> Iterator[str]:
    """Sentences of the World English Bible (compressed SWORD modules)."""
    chunks: list[str] = []
    for index in sorted(sources.glob("usr/share/sword/modules/texts/ztext/*/*.bzs")):
        blocks = index.read_bytes()
        data = index.with_suffix(".bzz").read_bytes()
        for offset, size, _ in struct.iter_unpack("<III", blocks):
            if size:
                chunks.append(zlib.decompress(data[offset : offset + size]).decode("utf-8", "ignore"))
    text = re.sub(r"<note.*?</note>|<title.*?</title>", " ", " ".join(chunks), flags=re.S)
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text))
    text = re.sub("[“”]", "", re.sub("[‘’]", "'", text)).replace("—", ",")
    text = re.sub(r"\s+", " ", re.sub(r" +([,;:.!?])", r"\1", text))
    yield from (sentence.strip(" '") for sentence in re.split(r"(?<=[.!?])\s+", text))


def wordnet(sources: Path) -> Iterator[tuple[str, str]]:
    """("examples" or "definitions", sentence) of every WordNet entry."""
    for file in sorted(sources.glob("usr/share/wordnet/data.*")):
        for line in file.read_text(encoding="latin-1").splitlines():
            if line.startswith("  ") or "|" not in line:
                continue
            gloss = line.split("|", 1)[1]
            for example in re.findall(r'"([^"]+)"', gloss):
                yield "examples", _sentence(example)
            definition = re.sub(r'"[^"]*"|\([^)]*\)', "", gloss).split(";")[0]
            yield "definitions", _sentence(definition)


def common_words(sources: Path) -> list[str]:
    """Single words that WordNet's sense counts saw in running text."""
    words = set()
    for line in (sources / "usr/share/wordnet/cntlist.rev").read_text(encoding="latin-1").splitlines():
        word = line.split("%", 1)[0]
        if re.fullmatch(r"[a-z]{2,14}", word):
            words.add(word)
    return sorted(words)


def word_carriers(words: list[str], rng: random.Random) -> Iterator[str]:
    """Short sentences and bare lists around single words."""
    for word in words:
        others = rng.sample(words, 2)
        yield rng.choice(
            [
                f"{word.capitalize()}.",
                f"The word is {word}.",
                f"{word.capitalize()}, {others[0]} and {others[1]}.",
                f"Say {word} again.",
                f"Is it {word} or {others[0]}?",
            ]
        )


def _sentence(text: str) -> str:
    text = re.sub(r"\s+", " ", text).strip(" ;:-,'`")
    return text[:1].upper() + text[1:] + ("" if text[-1:] in ".!?" else ".") if text else ""


def collect(sources: Path) -> dict[str, list[str]]:
    """All English groups, cleaned and without repeats."""
    rng = random.Random(3)
    entries = list(wordnet(sources))
    groups = {
        "everyday": english_sentences(30_000, 1),
        "examples": [text for kind, text in entries if kind == "examples" and speakable(text, 3, 20)],
        "definitions": [text for kind, text in entries if kind == "definitions" and speakable(text, 4, 16)],
        "bible": [text for text in bible(sources) if speakable(text, 4, 22)],
        "words": [text for text in word_carriers(common_words(sources), rng) if speakable(text, 1, 8)],
    }
    return {name: list(dict.fromkeys(group)) for name, group in groups.items()}


def hold_out(groups: dict[str, list[str]]) -> list[str]:
    """Takes the test sentences out of their groups: nothing that is evaluated is ever trained on."""
    rng = random.Random(11)
    test: list[str] = []
    for name, count in TEST_COUNTS.items():
        candidates = [text for text in groups[name] if 5 <= len(text.split()) <= 13]
        chosen = set(rng.sample(candidates, count))
        groups[name] = [text for text in groups[name] if text not in chosen]
        test += sorted(chosen)
    rng.shuffle(test)
    return test


def mandarin(count: int) -> list[tuple[str, str]]:
    """Mandarin sentences and word lists with Kokoro's phonemes."""
    import jieba
    from misaki import zh

    speller = zh.ZHG2P()
    jieba.initialize()
    ranked = sorted(jieba.dt.FREQ.items(), key=lambda item: -item[1])
    words = [word for word, _ in ranked if re.fullmatch(r"[\u4e00-\u9fff]{2,4}", word)][:6000]
    rng = random.Random(5)
    openings = ["这是", "我说的是", "请看", ""]
    seconds = rng.sample(words, len(words))
    carriers = [f"{rng.choice(openings)}{a}，{b}。" for a, b in zip(words, seconds, strict=True)]
    sentences = mandarin_sentences(count, 2) + carriers
    return [(sentence, speller(sentence)[0]) for sentence in sentences]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sources", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--test", type=Path, required=True)
    args = parser.parse_args()
    groups = collect(args.sources)
    args.test.write_text("\n".join(hold_out(groups)) + "\n", encoding="utf-8")
    spoken = mandarin(12_000)
    pack = {"en": groups, "shares": _SHARES, "zh": spoken}
    with gzip.open(args.out, "wt", encoding="utf-8") as file:
        json.dump(pack, file, ensure_ascii=False)
    print({name: len(group) for name, group in groups.items()}, len(spoken))


if __name__ == "__main__":
    main()

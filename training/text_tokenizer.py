"""Makes the nano checkpoint's byte-level BPE in the file format of Qwen2: `vocab.json` and `merges.txt`.

Every Han character is one token (the common ones) or two (its first two UTF-8 bytes, then the last), and never part
of a longer token, so that the model's bounds on speech per text token fit Mandarin too. English words get merges
learnt from the training texts.

    python -m training.text_tokenizer --texts texts.json.gz --out assets/nano/CosyVoice-BlankEN
"""

from __future__ import annotations

import argparse
import collections
import gzip
import json
from pathlib import Path

from inference.frontend.tokenizer import PRE_TOKENS

ENGLISH_MERGES = 1500
CJK_PUNCTUATION = "，。！？；：、（）《》"
HAN_CHARACTERS = 1200


def byte_symbols() -> list[str]:
    """The printable character that stands for each byte in byte-level BPE files, by byte value."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


def english_merges(sentences: list[str], count: int) -> list[tuple[str, str]]:
    """Merges learnt by the usual BPE training, in order."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRE_TOKENS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=256 + count, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(sentences, trainer)
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return [tuple(pair) if isinstance(pair, list) else tuple(pair.split(" ")) for pair in merges]


def han_merges(text: str, symbols: list[str], count: int) -> list[tuple[str, str]]:
    """First the two leading bytes of any Han character, then the commonest characters whole."""
    prefixes = [
        (symbols[first], symbols[second]) for first in range(0xE4, 0xEA) for second in range(0x80, 0xC0)
    ]
    common = collections.Counter(character for character in text if "\u4e00" <= character <= "\u9fff")
    whole = []
    for character, _ in common.most_common(count):
        first, second, third = (symbols[byte] for byte in character.encode())
        whole.append((first + second, third))
    for mark in CJK_PUNCTUATION:
        first, second, third = (symbols[byte] for byte in mark.encode())
        whole += [(first, second), (first + second, third)]
    return prefixes + list(dict.fromkeys(whole))


def write_files(folder: Path, merges: list[tuple[str, str]], symbols: list[str]) -> int:
    """Write vocab.json, merges.txt and tokenizer_config.json; returns the number of tokens."""
    vocabulary = {symbol: number for number, symbol in enumerate(sorted(symbols))}
    for left, right in merges:
        vocabulary.setdefault(left + right, len(vocabulary))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
    lines = ["#version: 0.2", *(f"{left} {right}" for left, right in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    config = {"tokenizer_class": "Qwen2Tokenizer", "model_max_length": 32768, "errors": "replace"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    return len(vocabulary)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    with gzip.open(args.texts, "rt", encoding="utf-8") as file:
        pack = json.load(file)
    symbols = byte_symbols()
    english = [sentence for group in pack["en"].values() for sentence in group]
    mandarin = "".join(text for text, _ in pack["zh"])
    merges = han_merges(mandarin, symbols, HAN_CHARACTERS) + english_merges(english, ENGLISH_MERGES)
    print(f"{write_files(args.out, merges, symbols)} tokens before the added special ones")


if __name__ == "__main__":
    main()

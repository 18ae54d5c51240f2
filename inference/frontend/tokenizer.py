"""Text to ids: the byte-level BPE of Qwen2 from a model folder's own files (SPEC 2.6)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from inference.types import CheckpointError

END_OF_PROMPT = "<|endofprompt|>"
CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", END_OF_PROMPT)
# Sounds and emphasis that may stand in a text, each one token.
VOCAL_TAGS = (
    "[breath]",
    "<strong>",
    "</strong>",
    "[noise]",
    "[laughter]",
    "[cough]",
    "[clucking]",
    "[accent]",
    "[quick_breath]",
    "<laughter>",
    "</laughter>",
    "[hissing]",
    "[sigh]",
    "[vocalized-noise]",
    "[lipsmack]",
    "[mn]",
)
SPECIAL_TOKENS = (*CONTROL_TOKENS, *VOCAL_TAGS)  # the order decides the ids

PRE_TOKENS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_CURE = "Copy the folder again, or run `python -m inference download`."


class TextTokenizer:
    """The tokenizer of one model folder. Safe between threads.

    Special tokens are recognised wherever they stand, so text from outside has to pass `prepare_text` first.
    """

    def __init__(self, folder: str | Path) -> None:
        """`folder` holds `vocab.json` and `merges.txt`; special tokens get the ids after the vocabulary.

        Raises CheckpointError: tokenizer_missing, tokenizer_unreadable.
        """
        from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

        vocabulary, merges = _read_vocabulary(Path(folder)), _read_merges(Path(folder))
        try:
            tokenizer = Tokenizer(models.BPE(vocabulary, merges))
        except Exception as error:  # the library's own error type is plain Exception
            raise CheckpointError(
                "tokenizer_unreadable",
                f"vocab.json and merges.txt in {folder} do not fit together: {error}. {_CURE}",
            ) from error
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(PRE_TOKENS), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL_TOKENS])
        self._tokenizer = tokenizer
        self.vocab_size: int = tokenizer.get_vocab_size()
        self.end_of_prompt: int = self.encode(END_OF_PROMPT)[0]

    def encode(self, text: str) -> list[int]:
        """Ids of a text; nothing is added at its start or end."""
        whole = text.encode("utf-8", "replace").decode("utf-8")  # half a surrogate pair would be an error
        return list(self._tokenizer.encode(whole, add_special_tokens=False).ids)

    def count(self, texts: Sequence[str]) -> list[int]:
        """Number of ids of each text."""
        return [len(row.ids) for row in self._tokenizer.encode_batch(list(texts), add_special_tokens=False)]


def vocabulary_size(folder: Path) -> int:
    """Ids that the tokenizer in `folder` can give, special tokens included. Raises as `TextTokenizer`."""
    vocabulary = _read_vocabulary(folder)
    added = sum(token not in vocabulary for token in SPECIAL_TOKENS)
    return max(len(vocabulary) + added, max(vocabulary.values(), default=-1) + 1)


def _read_vocabulary(folder: Path) -> dict[str, int]:
    text = _read(folder / "vocab.json")
    try:
        vocabulary = json.loads(text)
    except ValueError as error:
        raise CheckpointError(
            "tokenizer_unreadable", f"{folder / 'vocab.json'} is not valid JSON. {_CURE}"
        ) from error
    if not isinstance(vocabulary, dict) or not all(isinstance(number, int) for number in vocabulary.values()):
        raise CheckpointError(
            "tokenizer_unreadable", f"{folder / 'vocab.json'} does not map tokens to numbers. {_CURE}"
        )
    return vocabulary


def _read_merges(folder: Path) -> list[tuple[str, str]]:
    merges = []
    for line in _read(folder / "merges.txt").split("\n"):
        if not line.strip() or line.startswith("#version"):
            continue
        left, space, right = line.rstrip("\r").partition(" ")
        if not (left and space and right) or " " in right:
            raise CheckpointError(
                "tokenizer_unreadable",
                f"{folder / 'merges.txt'} has a line that is no merge: {line!r}. {_CURE}",
            )
        merges.append((left, right))
    return merges


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise CheckpointError("tokenizer_missing", f"{path} is missing. {_CURE}", file=str(path)) from error
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(
            "tokenizer_unreadable", f"{path} cannot be read: {error}. {_CURE}", file=str(path)
        ) from error

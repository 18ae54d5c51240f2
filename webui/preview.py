"""What will be spoken of a text: its segments, as the workers will cut and read them."""

from __future__ import annotations

from pathlib import Path

from inference.frontend.lexicon import Lexicon, read_lexicon
from inference.frontend.text import Segment, prepare_text
from inference.frontend.tokenizer import TextTokenizer
from inference.model_yaml import TOKENIZER_FOLDER


class TextPreview:
    """The text front end of a model folder, without its models. Safe between threads."""

    def __init__(self, model_dir: Path, lexicon: Path | None = None) -> None:
        """Raises CheckpointError tokenizer_missing, tokenizer_unreadable; RequestError lexicon_*."""
        self._tokenizer = TextTokenizer(model_dir / TOKENIZER_FOLDER)
        self._lexicon: Lexicon | None = read_lexicon(lexicon) if lexicon else None

    def segments(self, text: str) -> list[Segment]:
        """The segments of a text; never empty. Raises RequestError as `prepare_text`."""
        return prepare_text(text, self._tokenizer, lexicon=self._lexicon)

"""Tokenizers and recorded texts for the text tests."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from inference.frontend.tokenizer import TextTokenizer
from tests.golden_data import ROOT, golden_folder, reference_folder, require_golden

NANO = ROOT / "assets/nano/CosyVoice-BlankEN"


@functools.cache
def nano_tokenizer() -> TextTokenizer:
    """The tokenizer committed with the repository."""
    return TextTokenizer(NANO)


def full_tokenizer() -> TextTokenizer:
    """The full-size model's; skips where its files are not."""
    folder = reference_folder() / "CosyVoice-BlankEN"
    if not folder.is_dir():
        pytest.skip(f"no folder {folder}")
    return _full(str(folder))


@functools.cache
def _full(folder: str) -> TextTokenizer:
    return TextTokenizer(folder)


def recorded_texts() -> list[dict[str, Any]]:
    """Every case of text_cases.json; skips without golden data."""
    cases = _cases(require_golden())
    if not cases:
        pytest.skip(f"no text_cases.json in {golden_folder()}")
    return cases


def every_recorded_text() -> pytest.MarkDecorator:
    """Run a test with the `number` of every case found; one skipped instance where there is none."""
    numbers: list[Any] = list(range(len(_cases(golden_folder()))))
    reason = f"no text_cases.json in {golden_folder()}"
    return pytest.mark.parametrize(
        "number", numbers or [pytest.param(0, marks=pytest.mark.skip(reason=reason))]
    )


def _cases(folder: Path) -> list[dict[str, Any]]:
    path = folder / "text_cases.json"
    if not path.is_file():
        return []
    cases: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cases"]
    return cases

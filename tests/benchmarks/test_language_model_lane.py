"""The step benchmark runs and keeps what it measured."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.language_model_lane import main


def test_numbers_of_every_kind_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "numbers.json"
    sizes = "--size tiny --device cpu --slots 4 --rows 1 4 --prefixes 256 --prompts 1"
    crowd = "--users 1 3 --speech 6 --repeats 1"
    main([*sizes.split(), *crowd.split(), "--json", str(file)])
    rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
    decodes = [(row["attention"], row["rows"]) for row in rows if row["step"] == "decode"]
    assert decodes == [("kernel", 1), ("kernel", 4), ("products", 1), ("products", 4)]
    assert [row["size"] for row in rows if row["step"] == "prefill"] == [128, 256, 512]
    assert [row["users"] for row in rows if row["step"] == "lane"] == [1, 3]
    assert all(row["tokens_per_s"] > 0 for row in rows if row["step"] == "lane")

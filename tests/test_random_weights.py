"""The weight generator against the recorded tiny checkpoint and the reference's own generator."""

from __future__ import annotations

import importlib.util
import json

import pytest
import torch

from tests.golden_data import reference_folder, require_golden
from tests.random_weights import random_tensor, state_of_manifest

pytestmark = pytest.mark.golden
FILES = ("llm.pt", "flow.pt", "hift.pt")


@pytest.mark.parametrize("file", FILES)
def test_it_makes_the_recorded_tiny_checkpoint(file: str) -> None:
    stored = require_golden() / "tiny" / file
    if not stored.exists():
        pytest.skip(f"no {stored}")
    manifest = json.loads((require_golden() / "tiny_manifest.json").read_text(encoding="utf-8"))
    recorded = torch.load(stored, weights_only=True)
    made = state_of_manifest(manifest["files"][file]["tensors"])
    assert list(made) == list(recorded)
    assert [key for key in made if not torch.equal(made[key], recorded[key])] == []


def test_it_equals_the_reference_generator_for_full_size_names() -> None:
    source = reference_folder() / "make_weights.py"
    if not source.exists():
        pytest.skip(f"no {source}")
    spec = importlib.util.spec_from_file_location("make_weights", source)
    assert spec is not None and spec.loader is not None
    reference = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reference)
    manifest = json.loads((reference_folder() / "manifest.json").read_text(encoding="utf-8"))
    rows = [row for file in FILES for row in manifest["files"][file]["tensors"] if not row.get("tied_to")]
    small = [row for row in rows if torch.Size(row["shape"]).numel() < 20_000]
    assert len(small) > 500
    for row in small:
        shape = tuple(row["shape"])
        assert torch.equal(random_tensor(row["key"], shape), reference.tensor_for(row["key"], shape)), row[
            "key"
        ]

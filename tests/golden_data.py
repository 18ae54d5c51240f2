"""Recorded inputs and outputs of the original, read from wherever they lie on this machine."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from tests.random_weights import state_of_manifest

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Case:
    """One golden case: `meta` is its JSON, `arrays` the content of its npz (empty when it has none)."""

    name: str
    meta: dict[str, Any]
    arrays: dict[str, npt.NDArray[Any]]
    folder: Path

    def tensor(self, key: str) -> Tensor:
        """One array as a tensor of its own memory."""
        return torch.from_numpy(np.array(self.arrays[key]))


def golden_folder() -> Path:
    """`COSYVOICE_GOLDEN_DIR`, else the shared reference beside the checkout, else the committed selection.

    The path is returned even when nothing is there; see `require_golden`.
    """
    named = os.environ.get("COSYVOICE_GOLDEN_DIR")
    if named:
        return Path(named)
    # The GPU machine gets shared/ inside the checkout, this machine has it beside.
    for candidate in (ROOT.parent / "shared/reference/golden", ROOT / "shared/reference/golden"):
        if candidate.is_dir():
            return candidate
    return ROOT / "tests/golden"


def reference_folder() -> Path:
    """The folder around the golden data: manifest.json, make_weights.py, audio."""
    return golden_folder().parent


def require_golden() -> Path:
    """The golden folder, or skip the test with its name when it is missing."""
    folder = golden_folder()
    if not folder.is_dir():
        pytest.skip(f"no golden data in {folder}; set COSYVOICE_GOLDEN_DIR")
    return folder


def full_manifest() -> dict[str, Any]:
    """`manifest.json` of the full-size model; skips the test when it is not there."""
    path = reference_folder() / "manifest.json"
    if not path.exists():
        pytest.skip(f"no {path}")
    manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return manifest


def golden_cases(prefix: str) -> list[str]:
    """Names of all cases whose file name starts with `prefix`, sorted; by their JSON `kind` when no name does.

    [] without a folder.
    """
    paths = sorted(golden_folder().glob("*.json"))
    named = [path.stem for path in paths if path.stem.startswith(prefix)]
    return named or [
        path.stem for path in paths if path.with_suffix(".npz").exists() and _kind(path).startswith(prefix)
    ]


def _kind(path: Path) -> str:
    kind = json.loads(path.read_text(encoding="utf-8")).get("kind", "")
    return kind if isinstance(kind, str) else ""


def load_case(name: str) -> Case:
    """Read one case; skips the test when there is no golden folder."""
    folder = require_golden()
    meta = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    packed = folder / f"{name}.npz"
    arrays: dict[str, npt.NDArray[Any]] = {}
    if packed.exists():
        with np.load(packed, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
    return Case(name, meta, arrays, folder)


def tiny_weights(file: str) -> dict[str, Tensor]:
    """State dict of a tiny checkpoint: "llm.pt", "flow.pt" or "hift.pt"; made anew where only its manifest lies."""
    folder = require_golden()
    stored = folder / "tiny" / file
    if stored.exists():
        state: dict[str, Tensor] = torch.load(stored, weights_only=True, map_location="cpu")
        return state
    manifest = json.loads((folder / "tiny_manifest.json").read_text(encoding="utf-8"))
    return state_of_manifest(manifest["files"][file]["tensors"])


def parametrize(argument: str, prefix: str) -> pytest.MarkDecorator:
    """Run a test for every case found; one skipped instance that names the folder when there is none."""
    names = golden_cases(prefix)
    if names:
        return pytest.mark.parametrize(argument, names)
    reason = f"no golden case {prefix}* in {golden_folder()}"
    return pytest.mark.parametrize(argument, [pytest.param("", marks=pytest.mark.skip(reason=reason))])


def relative_error(found: Tensor, expected: Tensor) -> float:
    """‖found − expected‖ / ‖expected‖ in float64; infinite when `found` is not finite."""
    found, expected = found.detach().double().cpu(), expected.detach().double().cpu()
    if found.shape != expected.shape:
        raise ValueError(f"shapes differ: {tuple(found.shape)} and {tuple(expected.shape)}")
    if not torch.isfinite(found).all():
        return float("inf")
    return float(
        torch.linalg.vector_norm(found - expected) / torch.linalg.vector_norm(expected).clamp_min(1e-30)
    )

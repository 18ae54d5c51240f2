"""Reads `llm.pt`, `flow.pt`, `hift.pt` or their .safetensors twins, and fits them to modules (SPEC 1)."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from inference.types import CheckpointError

CURE = "download the file again"
_BOOKKEEPING = ("epoch", "step")
_LFS_HEAD = b"version https://git-lfs"


def find_tensors(folder: Path, stem: str) -> Path:
    """`STEM.safetensors` if there is one, else `STEM.pt`. Raises `CheckpointError("checkpoint_missing_file")`."""
    for path in (folder / f"{stem}.safetensors", folder / f"{stem}.pt"):
        if path.is_file():
            return path
    raise missing_file(folder, f"{stem}.pt")


def missing_file(folder: Path, name: str) -> CheckpointError:
    """The error for a file that is not in the folder."""
    return CheckpointError(
        "checkpoint_missing_file",
        f"{name} is missing in {folder}; download the model again: python -m inference download.",
        file=name,
        folder=str(folder),
    )


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All floating-point tensors of a file as float32 on the CPU, without training's bookkeeping.

    Large uncompressed files are mapped into memory, not copied. Raises `CheckpointError`: "checkpoint_truncated",
    "checkpoint_lfs_pointer", "checkpoint_unreadable", "checkpoint_wrong_dtype".
    """
    content = _read(path)
    if not isinstance(content, Mapping):
        raise _unreadable(path)
    state: dict[str, Tensor] = {}
    for key, value in content.items():
        if key in _BOOKKEEPING or not isinstance(value, Tensor):
            continue
        if not value.is_floating_point():
            raise CheckpointError(
                "checkpoint_wrong_dtype",
                f"{path.name} holds {key} as {value.dtype} where a floating-point tensor is expected; {CURE}.",
                file=path.name,
                key=str(key),
            )
        state[str(key)] = value.to(torch.float32)
    if not state:
        raise _unreadable(path)
    return state


def read_any(path: Path) -> Any:
    """What a .pt file holds, whatever that is; nothing in it is executed. Raises as `read_tensors`."""
    return _read(path)


def _read(path: Path) -> Any:
    _refuse_stumps(path)
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    try:
        # Compressed archives have to be unpacked; plain ones can stay on disk until a page is needed.
        return torch.load(path, map_location="cpu", weights_only=True, mmap=_is_plain_zip(path))
    except Exception as error:  # random bytes make the unpickler raise almost anything
        raise _unreadable(path) from error


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        if "incomplete" in str(error).lower() or "header" in str(error).lower():
            raise _truncated(path) from error
        raise _unreadable(path) from error


def _refuse_stumps(path: Path) -> None:
    """Tell the usual ways of a failed download apart."""
    with path.open("rb") as file:
        head = file.read(len(_LFS_HEAD))
    if head == _LFS_HEAD:
        raise CheckpointError(
            "checkpoint_lfs_pointer",
            f"{path.name} is only a Git LFS pointer; run git lfs pull in {path.parent}, or {CURE}.",
            file=path.name,
        )
    if not head or (head.startswith(b"PK") and not zipfile.is_zipfile(path)):
        raise _truncated(path)


def _is_plain_zip(path: Path) -> bool:
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return all(entry.compress_type == zipfile.ZIP_STORED for entry in archive.infolist())


def _truncated(path: Path) -> CheckpointError:
    size = path.stat().st_size
    return CheckpointError(
        "checkpoint_truncated",
        f"{path.name} is incomplete (it ends after {size} bytes); {CURE}.",
        file=path.name,
        size=size,
    )


def _unreadable(path: Path) -> CheckpointError:
    return CheckpointError(
        "checkpoint_unreadable",
        f"{path.name} is damaged or is not a file of model weights; {CURE}.",
        file=path.name,
    )


def compare(
    file: str, expected: Mapping[str, torch.Size], state: Mapping[str, Tensor]
) -> list[CheckpointError]:
    """Everything that does not fit, one error a kind: missing and extra keys, wrong shapes."""
    found: list[CheckpointError] = []
    missing = [key for key in expected if key not in state]
    extra = [key for key in state if key not in expected]
    shapes = [key for key in expected if key in state and state[key].shape != expected[key]]
    if missing:
        found.append(
            CheckpointError(
                "checkpoint_missing_key",
                f"{file} lacks {_some(missing)}; it is damaged or belongs to another model: {CURE}.",
                file=file,
                key=missing[0],
                count=len(missing),
            )
        )
    if extra:
        found.append(
            CheckpointError(
                "checkpoint_extra_key",
                f"{file} holds {_some(extra)}, which the model's configuration does not know; it belongs to "
                f"another model: {CURE}.",
                file=file,
                key=extra[0],
                count=len(extra),
            )
        )
    if shapes:
        key = shapes[0]
        found.append(
            CheckpointError(
                "checkpoint_wrong_shape",
                f"{file} holds {key} as {tuple(state[key].shape)} where the configuration implies "
                f"{tuple(expected[key])}; weights and configuration belong to different models: {CURE}.",
                file=file,
                key=key,
                count=len(shapes),
            )
        )
    return found


def _some(keys: list[str]) -> str:
    return keys[0] if len(keys) == 1 else f"{keys[0]} and {len(keys) - 1} more tensors"


def expected_shapes(module: nn.Module) -> dict[str, torch.Size]:
    """Name and shape of every tensor the module takes from a file."""
    return {key: value.shape for key, value in module.state_dict().items()}


def fill(module: nn.Module, file: str, state: Mapping[str, Tensor]) -> None:
    """Give a module made on the meta device its tensors, without copying them.

    Raises the first `CheckpointError` of `compare`.
    """
    problems = compare(file, expected_shapes(module), state)
    if problems:
        raise problems[0]
    module.load_state_dict(dict(state), strict=True, assign=True)
    module.requires_grad_(False).eval()

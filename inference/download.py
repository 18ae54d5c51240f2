"""The public CosyVoice2-0.5B weights from ModelScope or Hugging Face, and which model folder to use when."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from inference.fetch import Hub, PublicFile, fetch, is_complete, new_client, part_of
from inference.types import CheckpointError, RequestError

ROOT = Path(__file__).resolve().parents[1]
DOWNLOADED = ROOT / "weights" / "CosyVoice2-0.5B"
BUNDLED = ROOT / "assets" / "nano"
HUB_NAMES = ("auto", "modelscope", "huggingface")
MODEL_DIR_VARIABLE = "COSYVOICE_MODEL_DIR"

# Read by other programs only: a copy of the velocity network for TensorRT, and weights that llm.pt overwrites.
_NOT_NEEDED = ("flow.decoder.estimator.fp32.onnx", "CosyVoice-BlankEN/model.safetensors")
_SPARE_BYTES = 200_000_000
_YES = ("1", "true", "yes", "on")


@lru_cache(maxsize=1)
def public_files() -> tuple[PublicFile, ...]:
    """The files of the public folder that this program reads."""
    entries = json.loads((Path(__file__).parent / "public_files.json").read_text(encoding="utf-8"))
    return tuple(PublicFile(**entry) for entry in entries if entry["path"] not in _NOT_NEEDED)


def hubs(choice: str = "auto") -> tuple[Hub, ...]:
    """Hubs in the order to try; `HF_ENDPOINT` replaces Hugging Face's address and, for "auto", puts it first.

    A named hub comes first, the other one stays as the fallback. Raises `RequestError("unknown_hub")`.
    """
    if choice not in HUB_NAMES:
        known = ", ".join(HUB_NAMES)
        raise RequestError("unknown_hub", f"Unknown hub {choice!r}; choose one of {known}.", known=known)
    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/")
    model_scope = Hub("ModelScope", "https://www.modelscope.cn/models/iic/CosyVoice2-0.5B/resolve/master")
    hugging_face = Hub(
        "Hugging Face", f"{endpoint or 'https://huggingface.co'}/FunAudioLLM/CosyVoice2-0.5B/resolve/main"
    )
    if choice == "huggingface" or (choice == "auto" and endpoint):
        return hugging_face, model_scope
    return model_scope, hugging_face


def download(
    to: Path | None = None,
    hub: str = "auto",
    *,
    progress: bool = True,
    files: Sequence[PublicFile] | None = None,
    sources: Sequence[Hub] | None = None,
    pause: float = 1.0,
) -> Path:
    """Fetch what is missing in the folder `to` and return it; files that are already right are left alone.

    Two downloads into one folder take turns. `files`, `sources` and `pause` (seconds) are for tests.
    Raises `CheckpointError`: "download_offline" (HF_HUB_OFFLINE is set), "download_disk_full", "download_failed",
    "download_not_writable"; `RequestError("unknown_hub")`.
    """
    from filelock import FileLock

    folder = DOWNLOADED if to is None else to
    wanted = public_files() if files is None else tuple(files)
    places = hubs(hub) if sources is None else tuple(sources)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".download.lock"):
            missing = [file for file in wanted if not is_complete(folder, file)]
            if missing:
                _refuse_offline(folder)
                _check_space(folder, missing)
                _fetch_all(places, missing, folder, progress, pause)
    except OSError as error:
        raise CheckpointError(
            "download_not_writable",
            f"{folder} cannot be written ({error.strerror or error}); choose another folder with --to.",
            folder=str(folder),
        ) from error
    return folder


def _fetch_all(
    places: Sequence[Hub], missing: Sequence[PublicFile], folder: Path, progress: bool, pause: float
) -> None:
    from tqdm import tqdm

    total = sum(file.bytes for file in missing)
    done = total - _bytes_to_come(folder, missing)
    with (
        new_client() as client,
        tqdm(total=total, initial=done, unit="B", unit_scale=True, disable=not progress) as bar,
    ):
        for file in missing:
            bar.set_description(file.path)
            fetch(client, places, file, folder, bar.update, pause)


def _refuse_offline(folder: Path) -> None:
    if os.environ.get("HF_HUB_OFFLINE", "").strip().lower() in _YES:
        raise CheckpointError(
            "download_offline",
            f"HF_HUB_OFFLINE is set and {folder} is not complete; unset it, or copy the files there yourself.",
            folder=str(folder),
        )


def _bytes_to_come(folder: Path, missing: Sequence[PublicFile]) -> int:
    count = 0
    for file in missing:
        part = part_of(folder, file)
        have = part.stat().st_size if part.is_file() else 0
        count += file.bytes - have if have <= file.bytes else file.bytes
    return count


def _check_space(folder: Path, missing: Sequence[PublicFile]) -> None:
    needed = _bytes_to_come(folder, missing) + _SPARE_BYTES
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise CheckpointError(
            "download_disk_full",
            f"The download needs {needed / 1e9:.1f} GB and {folder} has {free / 1e9:.1f} GB free; free some space or "
            "choose another folder with --to.",
            needed=needed,
            free=free,
        )


def find_model_dir(explicit: str | Path | None = None) -> tuple[Path, str]:
    """The folder to load and one sentence that says which it is and why.

    In this order: `explicit`, the environment's COSYVOICE_MODEL_DIR, the downloaded public weights, the bundled small
    checkpoint. Downloads nothing. Raises `CheckpointError("checkpoint_no_folder")` when there is none at all.
    """
    if explicit is not None:
        return Path(explicit), f"Model: {explicit}, as given."
    named = os.environ.get(MODEL_DIR_VARIABLE, "").strip()
    if named:
        return Path(named), f"Model: {named}, as {MODEL_DIR_VARIABLE} says."
    if all(is_complete(DOWNLOADED, file, check_hash=False) for file in public_files()):
        return DOWNLOADED, f"Model: the public CosyVoice2-0.5B in {DOWNLOADED}."
    if (BUNDLED / "cosyvoice2.yaml").is_file():
        begun = (
            "the download of the full model is unfinished" if DOWNLOADED.is_dir() else "it is small and rough"
        )
        return BUNDLED, (
            f"Model: the bundled checkpoint in {BUNDLED} ({begun}; for the full voice quality run "
            "python -m inference download)."
        )
    raise CheckpointError(
        "checkpoint_no_folder",
        "There is no model to load; name a folder with --model-dir, or fetch one with python -m inference download.",
        folder=str(BUNDLED),
    )

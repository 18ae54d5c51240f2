"""The public CosyVoice2-0.5B weights from ModelScope or Hugging Face, and which model folder to use when."""

from __future__ import annotations

import json
import os
import shutil
import sys
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
_OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "MODELSCOPE_OFFLINE")
_YES = ("1", "true", "yes", "on")


@lru_cache(maxsize=1)
def public_files() -> tuple[PublicFile, ...]:
    """The files of the public folder that this program reads."""
    entries = json.loads((Path(__file__).parent / "public_files.json").read_text(encoding="utf-8"))
    return tuple(PublicFile(**entry) for entry in entries if entry["path"] not in _NOT_NEEDED)


def hubs(choice: str = "auto") -> tuple[Hub, ...]:
    """Hubs in the order to try; `HF_ENDPOINT` replaces Hugging Face's address and, for "auto", puts it first.

    `MODELSCOPE_DOMAIN` replaces ModelScope's host. A named hub comes first, the other one stays as the fallback.
    Raises `RequestError("unknown_hub")`.
    """
    if choice not in HUB_NAMES:
        known = ", ".join(HUB_NAMES)
        raise RequestError("unknown_hub", f"Unknown hub {choice!r}; choose one of {known}.", known=known)
    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/")
    domain = os.environ.get("MODELSCOPE_DOMAIN", "").rstrip("/") or "www.modelscope.cn"
    domain = domain if "://" in domain else f"https://{domain}"
    model_scope = Hub("ModelScope", f"{domain}/models/iic/CosyVoice2-0.5B/resolve/master")
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
    room: int = _SPARE_BYTES,
    wait: bool = True,
) -> Path:
    """Fetch what is missing in the folder `to` and return it; files that are already right are left alone.

    Two downloads into one folder take turns; without `wait` the second one is refused. `room`: bytes to be left free.
    `files`, `sources` and `pause` (seconds) are for tests.
    Raises `CheckpointError`: "download_offline" (HF_HUB_OFFLINE or MODELSCOPE_OFFLINE is set), "download_disk_full",
    "download_failed", "download_not_writable", "download_busy"; `RequestError("unknown_hub")`.
    """
    from filelock import FileLock, Timeout

    folder = DOWNLOADED if to is None else to
    wanted = public_files() if files is None else tuple(files)
    places = hubs(hub) if sources is None else tuple(sources)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".download.lock", blocking=wait):
            missing = [file for file in wanted if not is_complete(folder, file)]
            if missing:
                refuse_offline(folder)
                _check_space(folder, missing, room)
                _fetch_all(places, missing, folder, progress, pause)
    except Timeout as error:
        raise CheckpointError(
            "download_busy", f"Another program is downloading into {folder}.", folder=str(folder)
        ) from error
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
    done = total - bytes_to_come(folder, missing)
    every = 0.1 if sys.stderr.isatty() else 30.0  # seconds; a log file wants few lines
    with (
        new_client() as client,
        tqdm(
            total=total, initial=done, unit="B", unit_scale=True, mininterval=every, disable=not progress
        ) as bar,
    ):
        for file in missing:
            bar.set_description(file.path)
            fetch(client, places, file, folder, bar.update, pause)


def refuse_offline(folder: Path) -> None:
    """Raise `CheckpointError("download_offline")` when the environment forbids downloads."""
    for variable in _OFFLINE_VARIABLES:
        if os.environ.get(variable, "").strip().lower() in _YES:
            raise CheckpointError(
                "download_offline",
                f"{variable} is set and {folder} is not complete; unset it, or copy the files there yourself.",
                folder=str(folder),
                variable=variable,
            )


def bytes_to_come(folder: Path, missing: Sequence[PublicFile]) -> int:
    """What is left to transfer of files that are not complete."""
    count = 0
    for file in missing:
        part = part_of(folder, file)
        have = part.stat().st_size if part.is_file() else 0
        count += file.bytes - have if have <= file.bytes else file.bytes
    return count


def _check_space(folder: Path, missing: Sequence[PublicFile], room: int) -> None:
    needed = bytes_to_come(folder, missing) + room
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise CheckpointError(
            "download_disk_full",
            f"The download needs {needed / 1e9:.1f} GB and {folder} has {free / 1e9:.1f} GB free; free some space or "
            "choose another folder with --to.",
            needed_gb=needed / 1e9,
            free_gb=free / 1e9,
        )


def find_model_dir(explicit: str | Path | None = None) -> tuple[Path, str]:
    """The folder to load and one sentence that says which it is and why. Downloads nothing; see `choose_model_dir`.

    In this order: `explicit`, the environment's COSYVOICE_MODEL_DIR, the downloaded public weights, the bundled small
    checkpoint. Raises `CheckpointError("checkpoint_no_folder")` when there is none at all.
    """
    unfinished = DOWNLOADED.is_dir()
    why = "the download of the full model is unfinished" if unfinished else "the full model is not here"
    return known_model_dir(explicit) or bundled_model_dir(why)


def known_model_dir(explicit: str | Path | None = None) -> tuple[Path, str] | None:
    """As `find_model_dir`, but None where that one falls back to the bundled checkpoint."""
    if explicit is not None:
        return Path(explicit), f"Model: {explicit}, as given."
    named = os.environ.get(MODEL_DIR_VARIABLE, "").strip()
    if named:
        return Path(named), f"Model: {named}, as {MODEL_DIR_VARIABLE} says."
    if all(is_complete(DOWNLOADED, file, check_hash=False) for file in public_files()):
        return DOWNLOADED, f"Model: the public CosyVoice2-0.5B in {DOWNLOADED}."
    return None


def has_bundled() -> bool:
    """Whether the bundled checkpoint came with this copy of the program."""
    return (BUNDLED / "cosyvoice2.yaml").is_file()


def bundled_model_dir(why: str) -> tuple[Path, str]:
    """The bundled checkpoint and a sentence. `why` not the full model; ends no sentence.

    Raises `CheckpointError("checkpoint_no_folder")` where it is missing.
    """
    if not has_bundled():
        raise CheckpointError(
            "checkpoint_no_folder",
            "There is no model to load; name a folder with --model-dir, or fetch one with "
            "python -m inference download.",
            folder=str(BUNDLED),
        )
    return BUNDLED, (
        f"Model: the small, rough one bundled in {shown(BUNDLED)}: {why}. (Full voice quality: ./run.sh download, "
        f"or --model-dir; --model-dir {shown(BUNDLED)} takes the small one at once.)"
    )


def shown(path: Path) -> str:
    """`path` as it is best typed from here."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)

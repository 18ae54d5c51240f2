"""Which model to run: the one asked for, else the public one if it is here or can be fetched, else the bundled one."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from inference import download as downloads
from inference.fetch import Hub, PublicFile, is_complete
from inference.hub_probe import probe
from inference.types import CheckpointError

ROOM_BYTES = 2_000_000_000  # to be left on the disk after a download that nobody asked for by name
_PROBE_FILE = "cosyvoice2.yaml"


def choose_model_dir(
    explicit: str | Path | None = None,
    *,
    tell: Callable[[str], object] = lambda line: print(line, flush=True),
    sources: Sequence[Hub] | None = None,
) -> tuple[Path, str]:
    """The folder to load and one sentence that says which it is and why; may take a download's time.

    As `find_model_dir`, but before the bundled checkpoint is taken the public weights are fetched, if a hub answers
    within three seconds, the disk has the room, and nobody else is fetching them. What goes wrong then, Ctrl-C
    included, means the bundled checkpoint, and the next start goes on where the download stopped.

    `tell` gets a line before the download begins. `sources` are the hubs, for tests. Raises `CheckpointError` only
    when there is no bundled checkpoint: checkpoint_no_folder, or why the download failed.
    """
    found = downloads.known_model_dir(explicit)
    if found is not None:
        return found
    try:
        return _fetched(tell, sources)
    except CheckpointError as error:
        if not downloads.has_bundled():
            raise
        return downloads.bundled_model_dir(_reason(error))
    except KeyboardInterrupt:
        if not downloads.has_bundled():
            raise
        return downloads.bundled_model_dir("the download was interrupted; the next start goes on with it")


def _fetched(tell: Callable[[str], object], sources: Sequence[Hub] | None) -> tuple[Path, str]:
    downloads.refuse_offline(downloads.DOWNLOADED)
    hubs = _reachable(downloads.hubs() if sources is None else sources)
    files, folder = downloads.public_files(), downloads.DOWNLOADED
    tell(
        f"Fetching the public CosyVoice2-0.5B ({_bytes_to_come(folder, files) / 1e9:.1f} GB) from {hubs[0].name} into "
        f"{folder}. Ctrl-C goes on with the small bundled model; --model-dir {downloads.shown(downloads.BUNDLED)} "
        "takes it at once."
    )
    downloads.download(folder, files=files, sources=hubs, room=ROOM_BYTES, wait=False)
    return folder, f"Model: the public CosyVoice2-0.5B in {folder}."


def _reachable(hubs: Sequence[Hub]) -> list[Hub]:
    """All hubs, those that answered first. Raises `CheckpointError("download_no_hub")` when none did."""
    small = next(file for file in downloads.public_files() if file.path == _PROBE_FILE)
    answers = probe(hubs, small)
    good = [answer.hub for answer in answers if not answer.problem]
    if not good:
        reasons = "; ".join(f"{answer.hub.name}: {answer.problem}" for answer in answers)
        raise CheckpointError("download_no_hub", f"No hub can be reached ({reasons}).", reasons=reasons)
    if os.environ.get("HF_ENDPOINT"):  # somebody said which they prefer
        good.sort(key=list(hubs).index)
    return good + [hub for hub in hubs if hub not in good]


def _bytes_to_come(folder: Path, files: Sequence[PublicFile]) -> int:
    """About: finished files are taken as right by their size."""
    missing = [file for file in files if not is_complete(folder, file, check_hash=False)]
    return downloads.bytes_to_come(folder, missing)


def _reason(error: CheckpointError) -> str:
    reasons = {
        "download_offline": "downloads are switched off by {variable}",
        "download_no_hub": "no hub can be reached ({reasons})",
        "download_disk_full": "the full model would need {needed_gb:.1f} GB and {free_gb:.1f} GB are free",
        "download_busy": "another program is fetching the full model just now",
        "download_not_writable": "{folder} cannot be written",
        "download_failed": "{file} could not be downloaded; the next start goes on where this one stopped",
    }
    return reasons[error.code].format(**error.details) if error.code in reasons else error.message.rstrip(".")

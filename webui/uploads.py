"""A folder for what visitors upload and are given: no other user of the machine can look in, and it goes with us."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

VARIABLE = "GRADIO_TEMP_DIR"
_PREFIX = "cosyvoice-studio-"


@contextlib.contextmanager
def private_uploads() -> Iterator[Path]:
    """Make it Gradio's for the time of the block, unless the operator has named one. Before Gradio is imported."""
    named = os.environ.get(VARIABLE)
    if named:
        yield Path(named)
        return
    remove_leftovers(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))  # only its owner may enter
    os.environ[VARIABLE] = str(folder)
    try:
        yield folder
    finally:
        os.environ.pop(VARIABLE, None)
        shutil.rmtree(folder, ignore_errors=True)


def remove_leftovers(parent: Path) -> list[Path]:
    """Folders of studios that were killed; which ones went."""
    gone = []
    for folder in parent.glob(f"{_PREFIX}*"):
        match = re.match(rf"{_PREFIX}(\d+)-", folder.name)
        with contextlib.suppress(OSError):
            if match and folder.stat().st_uid == os.getuid() and not _runs(int(match.group(1))):
                shutil.rmtree(folder, ignore_errors=True)
                gone.append(folder)
    return gone


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's, after the number was given anew
        return True
    return True

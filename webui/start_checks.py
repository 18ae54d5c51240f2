"""What can be told to be wrong with the settings before a model is loaded."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from inference.types import EngineError, RequestError

if TYPE_CHECKING:
    from webui.logins import Logins
    from webui.options import Options

_NAMED_USERS = 5


class StartError(RequestError):
    """Settings that do not go together. Told in the terminal alone, so it has no sentence for the page."""


def check_start(options: Options, logins: Logins) -> None:
    """Raises `StartError` admin_unknown or keys_unreadable, `EngineError("voices_not_writable")`."""
    _check_admin(options.admin, logins.users)
    if options.api:
        _check_keys(options.api_keys)
    if not options.lock_voices:
        _check_voices(options.voices_dir)


def _check_admin(admin: str, users: tuple[str, ...]) -> None:
    if not admin or admin in users:
        return
    if not users:
        raise StartError("admin_unknown", f"--admin {admin} needs --auth, which gives {admin} a password.")
    names = ", ".join(users[:_NAMED_USERS]) + (", …" if len(users) > _NAMED_USERS else "")
    raise StartError("admin_unknown", f"--admin {admin} is no user of --auth, which names {names}.")


def _check_keys(path: Path) -> None:
    """A file that is not there is one without keys, but its folder must be."""
    from webui.api.keys import KeyFile

    if not path.parent.is_dir():
        raise StartError("keys_unreadable", f"--api-keys: there is no folder {path.parent}.")
    try:
        KeyFile(path).keys()
    except (OSError, ValueError) as error:
        said = str(error) if isinstance(error, ValueError) else f"{path} cannot be read ({error.strerror})"
        raise StartError("keys_unreadable", f"--api-keys: {said}.") from error


def _check_voices(folder: Path) -> None:
    """The folder is made when the first voice is saved: until then its parents must let that be done."""
    nearest = folder.absolute()
    while not os.path.lexists(nearest) and nearest != nearest.parent:
        nearest = nearest.parent
    try:
        with tempfile.TemporaryFile(
            dir=nearest
        ):  # permissions alone say little: of root, of odd file systems
            return
    except OSError as error:
        reason = error.strerror if nearest.is_dir() else f"{nearest} is no folder"
        raise EngineError(
            "voices_not_writable",
            f"Voices cannot be saved in {folder} ({reason}); choose --voices-dir, or add --lock-voices.",
            folder=str(folder),
        ) from error

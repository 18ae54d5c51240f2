"""Names and passwords of the page, from `--auth`."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from inference.types import RequestError

WRONG_SECONDS = 1.0  # a wrong password is answered late, so that guessing is slow


class Logins:
    """Who may use the page. Passwords are compared in constant time."""

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._passwords = dict(passwords)
        self._gradio: Any = None
        self.admin = ""  # who may see how the studio is doing; the first user unless named

    @classmethod
    def read(cls, entries: Iterable[str]) -> Logins:
        """From USER:PASSWORD, or names of files with one such line each.

        Raises `RequestError("auth_unusable")` for what is neither: a typing mistake must not open the page to all.
        """
        passwords: dict[str, str] = {}
        for entry in entries:
            lines = _lines_of(Path(entry)) if _is_file(entry) else [entry]
            if not lines:
                raise RequestError("auth_unusable", f"The file {entry} names no user.", entry=entry)
            for number, line in enumerate(lines, 1):
                user, colon, password = line.partition(":")
                if not (colon and user.strip() and password):
                    # The text itself may be a password, which must not get into a log.
                    shown = f"line {number} of {entry}" if len(lines) > 1 or _is_file(entry) else "a value"
                    raise RequestError(
                        "auth_unusable",
                        f"--auth: {shown} is neither USER:PASSWORD nor a file of such lines.",
                        entry=shown,
                    )
                passwords[user.strip()] = password
        return cls(passwords)

    @property
    def required(self) -> bool:
        return bool(self._passwords)

    @property
    def users(self) -> tuple[str, ...]:
        return tuple(self._passwords)

    def check(self, user: str, password: str) -> bool:
        """Whether that is the user's password."""
        wanted = self._passwords.get(user)
        same = hmac.compare_digest((wanted or "").encode(), password.encode())
        return wanted is not None and same

    def is_admin(self, user: str | None) -> bool:
        """Whether that user runs the studio."""
        return user is not None and user == (self.admin or next(iter(self._passwords), None))

    async def answer(self, user: str, password: str) -> bool:
        """`check` for the login page."""
        if self.check(user, password):
            return True
        await asyncio.sleep(WRONG_SECONDS)
        return False

    def watch(self, gradio_app: Any) -> None:
        """Tell where the page keeps who is logged in."""
        self._gradio = gradio_app

    def user_of(self, request: Any) -> str | None:
        """The user logged in on the page, for a Starlette request or connection; None when nobody is."""
        if self._gradio is None or not self.required:
            return None
        kind = getattr(self._gradio, "cookie_id", "")
        for name in (f"access-token-{kind}", f"access-token-unsecure-{kind}"):
            user: str | None = self._gradio.tokens.get(request.cookies.get(name))
            if user is not None:
                return user
        return None


def _is_file(entry: str) -> bool:
    try:
        return Path(entry).is_file()
    except OSError:  # a name too long for a file
        return False


def _lines_of(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError("auth_unusable", f"--auth: {path} cannot be read.", entry=str(path)) from error
    return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]

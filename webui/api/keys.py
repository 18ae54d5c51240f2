"""API keys: made once, shown once, kept only as SHA-256; each with its own limits.

    python -m webui.api.keys add "chat bot" --per-minute 60 --concurrent 4 --characters-per-day 200000
    python -m webui.api.keys add prometheus --admin
    python -m webui.api.keys list
    python -m webui.api.keys revoke k_1a2b3c

The studio notices changes of the file by itself.
"""

from __future__ import annotations

import argparse
import hashlib
import hmac
import json
import os
import secrets
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

DEFAULT_FILE = Path("api_keys.json")
_PREFIX = "cv_"


@dataclass(frozen=True)
class ApiKey:
    """One key, without the key. Limits of 0 are none."""

    id: str
    name: str
    hash: str
    created: str
    admin: bool = False  # may read /metrics
    per_minute: int = 0
    concurrent: int = 0
    characters_per_day: int = 0


class KeyFile:
    """The keys in a JSON file. Safe between threads; another process may change the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._seen: tuple[int, int, int] | None = None
        self._keys: list[ApiKey] = []

    def keys(self) -> list[ApiKey]:
        """All keys. Raises ValueError for a file that is damaged: nobody is let in by mistake."""
        with self._lock:
            try:
                found = self.path.stat()
            except FileNotFoundError:
                self._seen, self._keys = None, []
                return []
            # A new file each time: two changes may be within one tick of the clock, and of one size.
            state = (found.st_mtime_ns, found.st_size, found.st_ino)
            if state != self._seen:
                self._keys = _read(self.path)
                self._seen = state
            return list(self._keys)

    def find(self, secret: str) -> ApiKey | None:
        """The key that `secret` is, if any."""
        digest = _hash(secret)
        found = None
        for key in self.keys():  # all of them, so that the time taken tells nothing
            if hmac.compare_digest(key.hash, digest):
                found = key
        return found

    def add(
        self,
        name: str,
        *,
        admin: bool = False,
        per_minute: int = 0,
        concurrent: int = 0,
        characters_per_day: int = 0,
    ) -> tuple[ApiKey, str]:
        """A new key and its secret, which cannot be had again."""
        secret = _PREFIX + secrets.token_urlsafe(32)
        key = ApiKey(
            id=f"k_{secrets.token_hex(4)}",
            name=name,
            hash=_hash(secret),
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            admin=admin,
            per_minute=per_minute,
            concurrent=concurrent,
            characters_per_day=characters_per_day,
        )
        self._write([*self.keys(), key])
        return key, secret

    def revoke(self, id_or_name: str) -> int:
        """How many keys have been removed."""
        keys = self.keys()
        left = [key for key in keys if id_or_name not in (key.id, key.name)]
        if len(left) != len(keys):
            self._write(left)
        return len(keys) - len(left)

    def _write(self, keys: list[ApiKey]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}")
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump({"keys": [asdict(key) for key in keys]}, file, indent=1, ensure_ascii=False)
        partial.replace(self.path)


def _hash(secret: str) -> str:
    # Keys are 256 random bits, so that a plain hash cannot be reversed by guessing.
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _read(path: Path) -> list[ApiKey]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return [ApiKey(**entry) for entry in content["keys"]]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is no file of API keys: {error}") from error


def _count(text: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 0 when all went well."""
    parser = argparse.ArgumentParser(prog="python -m webui.api.keys", description="API keys of the studio.")
    parser.add_argument("--file", type=Path, default=DEFAULT_FILE, help="file of keys")
    commands = parser.add_subparsers(dest="command", required=True)
    add = commands.add_parser("add", help="make a key and print it, once")
    add.add_argument("name")
    add.add_argument("--admin", action="store_true", help="may also read /metrics")
    for flag in ("--per-minute", "--concurrent", "--characters-per-day"):
        add.add_argument(flag, type=_count, default=0, help="0: no limit")
    commands.add_parser("list", help="show all keys, without their secrets")
    commands.add_parser("revoke", help="remove a key").add_argument("key", help="id or name")
    args = parser.parse_args(arguments)
    file = KeyFile(args.file)
    try:
        return _run(file, args)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1


def _run(file: KeyFile, args: argparse.Namespace) -> int:
    if args.command == "add":
        key, secret = file.add(
            args.name,
            admin=args.admin,
            per_minute=args.per_minute,
            concurrent=args.concurrent,
            characters_per_day=args.characters_per_day,
        )
        print(f"{key.id} {key.name}\n{secret}\nThis is shown only now; {file.path} keeps a hash.")
        return 0
    if args.command == "revoke":
        removed = file.revoke(args.key)
        print(f"{removed} removed.")
        return 0 if removed else 1
    keys = file.keys()
    if not keys:
        print(f"There are no keys in {file.path}.")
    for key in keys:
        limits = f"{key.per_minute}/min {key.concurrent} at once {key.characters_per_day} characters/day"
        print(f"{key.id}  {key.created}  {'admin' if key.admin else '     '}  {limits}  {key.name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Fetches one file of known size and hash from the first hub that has it, going on where a transfer stopped."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from inference.types import CheckpointError

if TYPE_CHECKING:
    import httpx

TRIES = 5  # at one hub; each continues the one before
_BLOCK = 1 << 20
_CONNECT_SECONDS, _READ_SECONDS = 10.0, 30.0

Progress = Callable[[int], object]  # told the bytes gained, negative when some were thrown away


@dataclass(frozen=True)
class PublicFile:
    """A file of the public model folder."""

    path: str  # inside the folder, with forward slashes
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Hub:
    """A place that serves the folder: files lie at `base`/path."""

    name: str
    base: str

    def address(self, file: PublicFile) -> str:
        return f"{self.base.rstrip('/')}/{file.path}"


class WrongHubError(Exception):
    """This hub cannot give the file; its text says why."""


def is_complete(folder: Path, file: PublicFile, *, check_hash: bool = True) -> bool:
    """Whether the file lies in `folder`, whole."""
    path = folder / file.path
    if not path.is_file() or path.stat().st_size != file.bytes:
        return False
    return not check_hash or sha256_of(path) == file.sha256


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of a file of any size."""
    digest = hashlib.sha256()
    with path.open("rb") as source:
        while block := source.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def part_of(folder: Path, file: PublicFile) -> Path:
    """Where an unfinished transfer is kept."""
    return folder / (file.path + ".part")


def fetch(
    client: httpx.Client,
    hubs: Sequence[Hub],
    file: PublicFile,
    folder: Path,
    progress: Progress = lambda count: None,
    pause: float = 1.0,
) -> None:
    """Put `file` into `folder`; the final name appears only when size and hash are right.

    `pause`: seconds before the second try, doubled for each further one. Raises `CheckpointError("download_failed")`
    with each hub's reason; what has arrived stays for the next call.
    """
    part = part_of(folder, file)
    part.parent.mkdir(parents=True, exist_ok=True)
    reasons = []
    for hub in hubs:
        try:
            _from_hub(client, hub, file, part, progress, pause)
        except WrongHubError as reason:
            reasons.append(f"{hub.name}: {reason}")
            continue
        part.replace(folder / file.path)
        return
    raise CheckpointError(
        "download_failed",
        f"{file.path} could not be downloaded ({'; '.join(reasons)}). Run the download again: it goes on where it "
        "stopped.",
        file=file.path,
    )


def _from_hub(
    client: httpx.Client, hub: Hub, file: PublicFile, part: Path, progress: Progress, pause: float
) -> None:
    import httpx

    for attempt in range(TRIES):
        try:
            _transfer(client, hub.address(file), file, part, progress)
        except httpx.HTTPStatusError as error:
            status = error.response.status_code
            if status < 500 and status not in (408, 429):
                raise WrongHubError(f"answered {status}") from error
            problem = f"answered {status}"
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            problem = f"{type(error).__name__} {error}".strip()
        else:
            if _size(part) == file.bytes:
                _verify(file, part, progress)
                return
            problem = "the connection closed too early"
        if attempt + 1 < TRIES:
            time.sleep(pause * 2**attempt)
    raise WrongHubError(problem)


def _transfer(client: httpx.Client, address: str, file: PublicFile, part: Path, progress: Progress) -> None:
    """Append what the server sends to `part`, at most `file.bytes` in all."""
    have = _size(part)
    if have > file.bytes:
        _discard(part, progress)
        have = 0
    if have == file.bytes:
        return
    # Encoded transfers would make sizes and ranges meaningless.
    headers = {"Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    with client.stream("GET", address, headers=headers) as answer:
        if answer.status_code == 416:
            _discard(part, progress)
        answer.raise_for_status()
        if have and not (answer.status_code == 206 and _starts_at(answer, have)):
            _discard(part, progress)  # the server sends it from the start
            have = 0
        with part.open("ab") as target:
            for (
                block
            ) in answer.iter_bytes():  # as they come: gathered blocks would be lost when the line breaks
                have += len(block)
                if have > file.bytes:
                    raise WrongHubError("it has another file by that name")
                target.write(block)
                progress(len(block))


def _starts_at(answer: httpx.Response, offset: int) -> bool:
    return str(answer.headers.get("content-range", "")).startswith(f"bytes {offset}-")


def _verify(file: PublicFile, part: Path, progress: Progress) -> None:
    if sha256_of(part) != file.sha256:
        _discard(part, progress)
        raise WrongHubError("its content has the wrong SHA-256")


def _size(part: Path) -> int:
    return part.stat().st_size if part.is_file() else 0


def _discard(part: Path, progress: Progress) -> None:
    progress(-_size(part))
    part.unlink(missing_ok=True)


def new_client() -> httpx.Client:
    """A client with time-outs that follows redirects, as both hubs need."""
    import httpx

    return httpx.Client(follow_redirects=True, timeout=httpx.Timeout(_READ_SECONDS, connect=_CONNECT_SECONDS))

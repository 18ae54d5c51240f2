"""Asks in a few seconds which hubs can really serve the model from here."""

from __future__ import annotations

import hashlib
import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from inference.fetch import Hub, PublicFile

PROBE_SECONDS = 3.0  # in all


@dataclass(frozen=True)
class Answer:
    """What one hub answered: `problem` is "" when it serves the right file."""

    hub: Hub
    problem: str


def probe(hubs: Sequence[Hub], file: PublicFile, seconds: float = PROBE_SECONDS) -> list[Answer]:
    """One answer a hub, the quickest first; all are asked at once, and `seconds` is the most it takes.

    `file` should be small: it is read whole, as a login page of a hotel answers everything with "200 OK".
    """
    deadline = time.monotonic() + seconds
    answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
    for hub in hubs:
        # Daemons: a name server that never answers can be neither timed out nor cancelled.
        threading.Thread(target=_ask, args=(hub, file, seconds, answers), daemon=True).start()
    found: list[Answer] = []
    while len(found) < len(hubs):
        try:
            found.append(answers.get(timeout=max(0.0, deadline - time.monotonic())))
        except queue.Empty:
            break
    heard = {answer.hub for answer in found}
    return found + [Answer(hub, "no answer in time") for hub in hubs if hub not in heard]


def _ask(hub: Hub, file: PublicFile, seconds: float, answers: queue.SimpleQueue[Answer]) -> None:
    try:
        problem = _problem(hub, file, seconds)
    except Exception as error:  # an odd proxy setting or address must not end the start
        problem = type(error).__name__
    answers.put(Answer(hub, problem))


def _problem(hub: Hub, file: PublicFile, seconds: float) -> str:
    import httpx

    with httpx.Client(follow_redirects=True, timeout=seconds) as client:
        with client.stream("GET", hub.address(file), headers={"Accept-Encoding": "identity"}) as answer:
            if answer.status_code != 200:
                return f"answered {answer.status_code}"
            content = b""
            for block in answer.iter_bytes():
                content += block
                if len(content) > file.bytes:
                    break
    right = hashlib.sha256(content).hexdigest() == file.sha256
    return "" if right else "does not have this model"

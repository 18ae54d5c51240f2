"""Who is served where: the waiting room of a pool and the choice of a worker. Plain state; the pool holds its lock."""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from inference.pool_status import WorkerStatus
from inference.protocol import Prepare, Ready, Speak, WorkerStats
from inference.submission import Mailbox
from inference.supervision import Backoff, WorkerProcess
from inference.types import Mode, Reference, SynthesisError, SynthesisRequest, Voice

# Work is counted in characters of text. A request costs at least this, a clip to prepare as much.
_LEAST_WORK = 40
VOICE_WORK = 40
_CONVERT_WORK = 200
_REMEMBERED_VOICES = 64  # as many as a worker keeps
MAX_PREPARING = 16  # clips in work in one worker


@dataclass(eq=False)
class Ticket:
    """One request, or one clip to prepare, from `submit` to its end."""

    key: int
    payload: bytes
    work: int
    voice_key: str
    is_voice: bool
    mailbox: Mailbox = field(default_factory=Mailbox)
    submitted: float = field(default_factory=time.monotonic)
    place: Place | None = None  # where it is being served
    sounded: bool = False
    retried: bool = False  # its worker died once already
    done: bool = False

    def message(self) -> Speak | Prepare:
        """What its worker is told."""
        waited = time.monotonic() - self.submitted
        kind = Prepare if self.is_voice else Speak
        return kind(self.key, self.payload, waited)

    def leave(self) -> None:
        """It is served nowhere any more."""
        if self.place is not None:
            self.place.tickets.pop(self.key, None)
            self.place = None


@dataclass
class Place:
    """One of a pool's workers, whichever process fills it at the time."""

    name: str
    device: str
    backoff: Backoff
    process: WorkerProcess | None = None
    ready: Ready | None = None
    ready_since: float = 0.0
    draining: bool = False
    failed: bool = False  # its last process could not start
    restarts: int = 0
    restart_at: float | None = None
    stage: str = ""
    error: SynthesisError | None = None
    stats: WorkerStats = field(default_factory=WorkerStats)
    tickets: dict[int, Ticket] = field(default_factory=dict)
    _voices: OrderedDict[str, None] = field(default_factory=OrderedDict)

    @property
    def serving(self) -> bool:
        """Takes requests."""
        return self.ready is not None and not self.draining

    @property
    def work(self) -> int:
        return sum(ticket.work for ticket in self.tickets.values())

    def has_room(self, ticket: Ticket) -> bool:
        if not self.serving or self.ready is None:
            return False
        if ticket.is_voice:
            return sum(1 for other in self.tickets.values() if other.is_voice) < MAX_PREPARING
        if ticket.retried and any(other.retried for other in self.tickets.values()):
            return False  # one of them may be what kills workers: it shall not take another with it
        requests = sum(1 for other in self.tickets.values() if not other.is_voice)
        return requests < self.ready.concurrency

    def knows(self, voice_key: str) -> bool:
        """Has heard this voice lately."""
        return bool(voice_key) and voice_key in self._voices

    def take(self, ticket: Ticket) -> None:
        ticket.place = self
        self.tickets[ticket.key] = ticket
        if ticket.voice_key:
            self._voices[ticket.voice_key] = None
            self._voices.move_to_end(ticket.voice_key)
            while len(self._voices) > _REMEMBERED_VOICES:
                self._voices.popitem(last=False)

    def forget(self) -> list[Ticket]:
        """The process has gone: what it was serving, in the order of arrival, and nothing is known of it any more."""
        lost = sorted(self.tickets.values(), key=lambda ticket: ticket.key)
        self.tickets.clear()
        self._voices.clear()
        self.process, self.ready, self.draining, self.stage = None, None, False, ""
        self.stats = WorkerStats()
        for ticket in lost:
            ticket.place = None
        return lost

    def status(self) -> WorkerStatus:
        return WorkerStatus(
            name=self.name,
            device=self.ready.device if self.ready else self.device,
            pid=self.process.pid if self.process else 0,
            alive=self.process is not None,
            ready=self.serving,
            draining=self.draining,
            stage="ready" if self.ready else self.stage,
            restarts=self.restarts,
            live=sum(1 for ticket in self.tickets.values() if not ticket.is_voice),
            concurrency=self.ready.concurrency if self.ready else 0,
            error=self.error.message if self.error else "",
            stats=self.stats,
            backends=self._backends(),
        )

    def _backends(self) -> dict[str, str]:
        """What runs each part now: one that failed while serving was replaced."""
        if self.ready is None:
            return {}
        found = dict(self.ready.backends)
        now = {
            "flow": f"{found.get('flow', '')} {self.stats.flow_backend}",
            "vocoder": self.stats.vocoder_backend,
        }
        return found | {part: name for part, name in now.items() if part in found}


def choose(ticket: Ticket, places: Iterable[Place]) -> Place | None:
    """The place with the least outstanding work, or one that knows the voice and has hardly more."""
    free = [place for place in places if place.has_room(ticket)]
    if not free:
        return None
    least = min(free, key=lambda place: place.work)
    known = [place for place in free if place.knows(ticket.voice_key)]
    best = min(known, key=lambda place: place.work, default=least)
    return best if best.work <= least.work + VOICE_WORK + ticket.work else least


class WaitingRoom:
    """Tickets in the order in which they came; those of a dead worker come first again."""

    def __init__(self) -> None:
        self._tickets: dict[int, Ticket] = {}

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[Ticket]:
        return iter(list(self._tickets.values()))

    def __contains__(self, ticket: Ticket) -> bool:
        return ticket.key in self._tickets

    def add(self, ticket: Ticket) -> None:
        self._tickets[ticket.key] = ticket

    def put_first(self, tickets: Iterable[Ticket]) -> None:
        returning = {ticket.key: ticket for ticket in tickets}
        self._tickets = {**returning, **self._tickets}

    def remove(self, ticket: Ticket) -> bool:
        return self._tickets.pop(ticket.key, None) is not None

    def position(self, ticket: Ticket) -> int:
        """1 for the first; 0 for one that is not here."""
        if ticket not in self:
            return 0
        return next(place for place, key in enumerate(self._tickets, 1) if key == ticket.key)


def work_of(request: SynthesisRequest) -> int:
    """Roughly how much there is to do, in characters."""
    return _CONVERT_WORK if request.mode == Mode.CONVERT else _LEAST_WORK + len(request.text)


def voice_key(voice: object) -> str:
    """Equal for the same clip; "" for what no worker need remember."""
    if not isinstance(voice, Reference) or isinstance(voice, Voice):
        return ""
    if isinstance(voice.audio, bytes):
        return hashlib.blake2b(voice.audio, digest_size=16).hexdigest()
    try:
        found = voice.audio.stat()
    except (OSError, ValueError, AttributeError):
        return ""
    return f"{voice.audio}:{found.st_mtime_ns}:{found.st_size}"

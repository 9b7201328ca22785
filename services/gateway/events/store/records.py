"""What the dispatcher tells the event loop: events for sessions, and what became of events, for people."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from services.common.model.user_events import Channel, Status
from services.gateway.events.delivery.changes import AttemptRow, SessionEvent
from services.gateway.events.model import EventKey


class TransientEvent(NamedTuple):
    """An event of the fast path for the open sessions of its user: not kept, no ack. A tuple, as many are made.

    Attributes:
        body: The UserEvent as sessions get it, see ``checking.for_sessions``.
    """

    user_id: str
    container: str
    body: bytes


class ReplayBatch(NamedTuple):
    """Some of the log of a user's sessions, in order; ``more`` says whether it goes on."""

    events: tuple[SessionEvent, ...]
    more: bool = False


@dataclass(frozen=True, slots=True)
class Replay:
    """What a session has to be shown before what is new: the beginning of it.

    Attributes:
        epoch: Of the log; a cursor of another one means nothing here.
        sequence: The place after which ``events`` go on.
        reset: The cursor was of another log, or of a place that is no longer kept; all that is kept follows.
        events: In the order of their sequence. ``more`` says whether they go on.
        waiting_to: Up to this place only what still waits is shown; behind it, all.
    """

    epoch: str
    sequence: int
    reset: bool
    events: tuple[SessionEvent, ...]
    more: bool = False
    waiting_to: int = 0


@dataclass(frozen=True, slots=True)
class Record:
    """An event and what became of it; times in nanoseconds of the wall clock.

    Attributes:
        body: The UserEvent, serialized.
        attempts: In order of their number.
    """

    key: EventKey
    body: bytes = field(repr=False)
    accepted_ns: int
    status: Status
    via: Channel | None
    error: str
    completed_ns: int | None
    seen_ns: int | None
    attempts: tuple[AttemptRow, ...]


@dataclass(frozen=True, slots=True)
class Query:
    """Which events, newest first.

    Attributes:
        user_id: Empty for all users; ``container`` likewise.
        before: As ``Page.before`` of the page before; None for the newest.
        size: At most so many.
    """

    user_id: str = ""
    container: str = ""
    status: Status | None = None
    before: int | None = None
    size: int = 100


@dataclass(frozen=True, slots=True)
class Page:
    """Some events. ``before`` asks for the next page; None when there is none."""

    records: tuple[Record, ...]
    before: int | None

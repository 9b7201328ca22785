"""Values that the dispatcher and the log give to the event loop: events for sessions, and outcomes for people."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from dexorder_common.model.user_events import Channel, Status
from dexorder_gateway.events.delivery.changes import AttemptRow, SessionEvent
from dexorder_gateway.events.model import EventKey


class TransientEvent(NamedTuple):
    """Event for the open sessions of its user that is not stored and gets no ack from them. A tuple: many are made.

    ``body`` is the UserEvent as sessions get it, see ``event_codec.for_sessions``.
    """

    user_id: str
    container: str
    body: bytes


class ReplayBatch(NamedTuple):
    """Part of the log of a user's sessions, in order; ``more`` says whether more follow."""

    events: tuple[SessionEvent, ...]
    more: bool = False


@dataclass(frozen=True, slots=True)
class Replay:
    """First events for a session that opens, before new ones.

    Attributes:
        epoch: Epoch of the log; a cursor of another epoch is invalid.
        sequence: Position after which ``events`` continue.
        reset: The cursor was of another log, or of a position that is no longer stored; all stored events follow.
        events: In the order of their sequence. ``more`` says whether more follow.
        waiting_to: Up to this position only queued events are shown; after it, all.
    """

    epoch: str
    sequence: int
    reset: bool
    events: tuple[SessionEvent, ...]
    more: bool = False
    waiting_to: int = 0


@dataclass(frozen=True, slots=True)
class EventRecord:
    """Event (``body`` is the UserEvent), its outcome and its attempts in order; times are the wall clock's."""

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
class EventQuery:
    """Filter (empty: all) and page of at most ``size`` records, newest first; ``before`` is the previous page's."""

    user_id: str = ""
    container: str = ""
    status: Status | None = None
    before: int | None = None
    size: int = 100


@dataclass(frozen=True, slots=True)
class EventPage:
    """Page of records; ``before`` requests the next one and is None on the last."""

    records: tuple[EventRecord, ...]
    before: int | None

"""Reader of committed events in the outbox's file, for people and for sessions that resume.

Every call opens the file and may take long, so none belongs in the event loop or in the dispatcher's thread.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from dexorder_common.model.cursor import Cursor
from dexorder_common.model.user_events import Channel, Status
from dexorder_gateway.events.delivery.changes import AttemptRow, SessionEvent
from dexorder_gateway.events.model import EventKey
from dexorder_gateway.events.store import schema

MAX_EVENTS = 256
MAX_BYTES = 1 << 20
"""Size of one batch, which a session that catches up holds in memory, and of the events of a page."""


class ReplayBatch(NamedTuple):
    """Part of the log of a user's sessions, in order; ``more`` says whether more follow."""

    events: tuple[SessionEvent, ...]
    more: bool = False


@dataclass(frozen=True, slots=True)
class Replay:
    """First events for a session that opens, before new ones.

    Attributes:
        epoch: Epoch of the log; a cursor of another epoch is invalid.
        sequence: Position after which ``events`` continue; with the epoch, a valid cursor.
        reset: The cursor was not valid; all stored events follow.
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


class EventLog:
    """Reader of one outbox file, for any number of threads."""

    def __init__(self, path: Path) -> None:
        self._uri = f"{path.absolute().as_uri()}?mode=ro"

    def record(self, key: EventKey) -> EventRecord | None:
        """Return the record of an event; None if it is not stored."""
        with self._open() as db:
            rows = self._records(db, "container = ? AND event_id = ?", (key.container, key.event_id), 1)
            return next((record for _, record in rows), None)

    def page(self, query: EventQuery) -> EventPage:
        """Return a page of records, newest first: at most `MAX_BYTES` of events, of which one alone may have more."""
        conditions = {
            "user_id = ?": query.user_id or None,
            "container = ?": query.container or None,
            "status = ?": query.status,
            "number < ?": query.before,
        }
        wanted = {condition: value for condition, value in conditions.items() if value is not None}
        found, before, size_bytes = list[EventRecord](), 0, 0
        with self._open() as db:
            rows = self._records(db, " AND ".join(wanted) or "true", tuple(wanted.values()), query.size + 1)
            for number, record in rows:
                size_bytes += len(record.body)
                if len(found) == query.size or (found and size_bytes > MAX_BYTES):
                    return EventPage(tuple(found), before)
                found.append(record)
                before = number
        return EventPage(tuple(found), None)

    def replay(self, epoch: str, user_id: str, cursor: Cursor | None, newest: int, *, reset: bool) -> Replay:
        """Return the first events for a session that opens.

        Args:
            newest: Last position in the user's log.
            reset: The cursor is not valid.
        """
        after = None if cursor is None or reset else cursor.sequence
        waiting_to = newest if cursor is None else 0
        with self._open() as db:
            events, more = _batch(db, user_id, after or 0, waiting_to)
            if after is None:
                after = _position_before(db, user_id, events[0].sequence) if events else newest
        return Replay(epoch, after, reset, events, more, waiting_to)

    def replay_batch(self, user_id: str, after: int, waiting_to: int) -> ReplayBatch:
        """Return the events after a place in a user's log, at most `MAX_EVENTS` and about `MAX_BYTES`.

        Up to ``waiting_to`` only queued events are returned; after it, all events.
        """
        with self._open() as db:
            return _batch(db, user_id, after, waiting_to)

    @staticmethod
    def _records(
        db: sqlite3.Connection, where: str, values: tuple[Any, ...], size: int
    ) -> Iterator[tuple[int, EventRecord]]:
        # The inner SELECT sorts without reading whole rows; only rows of the page are read.
        sql = (
            f"SELECT {schema.RECORD_COLUMNS} FROM events WHERE number IN"  # noqa: S608
            f" (SELECT number FROM events WHERE {where} ORDER BY number DESC LIMIT ?) ORDER BY number DESC"
        )
        return (_record(db, row) for row in db.execute(sql, (*values, size)))

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._uri, uri=True, isolation_level=None, timeout=30)) as db:
            db.execute("BEGIN")  # one snapshot for all reads
            yield db


def _batch(db: sqlite3.Connection, user_id: str, after: int, waiting_to: int) -> ReplayBatch:
    sql = (
        "SELECT container, body, sequence, status FROM events"
        " WHERE user_id = ? AND sequence > ? AND (status = 1 OR sequence > ?) ORDER BY sequence"
    )
    events: list[SessionEvent] = []
    left = MAX_BYTES
    for container, body, sequence, status in db.execute(sql, (user_id, after, waiting_to)):
        if len(events) == MAX_EVENTS or left <= 0:
            return ReplayBatch(tuple(events), more=True)
        left -= len(body)
        event = schema.read_body(container, body)
        events.append(SessionEvent(user_id, sequence, event, settled=status != Status.QUEUED))
    return ReplayBatch(tuple(events))


def _position_before(db: sqlite3.Connection, user_id: str, sequence: int) -> int:
    """Return the last position before one in a user's log that was given to an event; 0 without any."""
    where = "WHERE user_id = ?1 AND sequence < ?2"
    last = f"SELECT max(sequence) AS place FROM events {where} UNION ALL SELECT sequence FROM forgotten {where}"  # noqa: S608
    (place,) = db.execute(f"SELECT max(place) FROM ({last})", (user_id, sequence)).fetchone()  # noqa: S608
    return place or 0


def _record(db: sqlite3.Connection, row: schema.Row) -> tuple[int, EventRecord]:
    number, container, event_id, body, accepted_ns, status, via, error, completed_ns, seen_ns = row
    sql = "SELECT * FROM attempts WHERE container = ? AND event_id = ? ORDER BY number"
    attempts = tuple(map(schema.read_attempt, db.execute(sql, (container, event_id))))
    channel = None if via is None else Channel(via)
    return number, EventRecord(
        EventKey(container, event_id),
        body,
        accepted_ns,
        Status(status),
        channel,
        error,
        completed_ns,
        seen_ns,
        attempts,
    )

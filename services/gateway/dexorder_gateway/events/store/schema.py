"""Tables of the outbox, and the conversion of our values to rows and back."""

from __future__ import annotations

from dataclasses import asdict
from functools import cache
from typing import Any

import orjson

from dexorder_common.model.user_events import Channel, Status
from dexorder_gateway.events.delivery.changes import STATE_FIELDS, AttemptRow, Final, QueuedRow
from dexorder_gateway.events.event_codec import EventRefusal, read_event
from dexorder_gateway.events.model import Contacts, Event, EventKey, QuietHours, WebPushSubscription

STEPS = (
    # 1. `forgotten` is the highest sequence of each user with an event that is no longer stored.
    """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO meta VALUES ('epoch', lower(hex(randomblob(16))));
CREATE TABLE events (
    number INTEGER PRIMARY KEY AUTOINCREMENT, container TEXT NOT NULL, event_id TEXT NOT NULL, user_id TEXT NOT NULL,
    body BLOB NOT NULL, accepted_ns INTEGER NOT NULL, expires_ns INTEGER, channel_index INTEGER NOT NULL,
    rounds INTEGER NOT NULL, attempts INTEGER NOT NULL, failures INTEGER NOT NULL, due_ns INTEGER NOT NULL,
    waits_for_ack INTEGER NOT NULL, refused TEXT NOT NULL, soft INTEGER NOT NULL, sequence INTEGER,
    status INTEGER NOT NULL, via INTEGER, error TEXT NOT NULL DEFAULT '', completed_ns INTEGER, seen_ns INTEGER,
    UNIQUE (container, event_id));
CREATE INDEX events_by_user ON events (user_id, sequence);
CREATE INDEX events_queued ON events (number) WHERE status = 1;
CREATE INDEX events_by_end ON events (completed_ns) WHERE completed_ns IS NOT NULL;
CREATE TABLE attempts (
    container TEXT, event_id TEXT, number INTEGER, channel INTEGER NOT NULL, started_ns INTEGER NOT NULL,
    ended_ns INTEGER, outcome TEXT NOT NULL, retry_at_ns INTEGER,
    PRIMARY KEY (container, event_id, number)) WITHOUT ROWID;
CREATE TABLE forgotten (user_id TEXT PRIMARY KEY, sequence INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE contacts (user_id TEXT PRIMARY KEY, contacts TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE presence (user_id TEXT, channel INTEGER, until_ns INTEGER NOT NULL,
    PRIMARY KEY (user_id, channel)) WITHOUT ROWID;
""",
)

_ACCEPTED = ("container", "event_id", "user_id", "body", "accepted_ns", *STATE_FIELDS, "status")
_REFUSED = QueuedRow._fields.index("refused")

QUEUED_COLUMNS = ", ".join(("container", "body", "accepted_ns", *STATE_FIELDS))
RECORD_COLUMNS = "number, container, event_id, body, accepted_ns, status, via, error, completed_ns, seen_ns"
UPDATE = f"UPDATE events SET {', '.join(f'{name} = ?' for name in STATE_FIELDS)} WHERE container = ? AND event_id = ?"  # noqa: S608
FINISH = "UPDATE events SET status = ?, via = ?, error = ?, completed_ns = ? WHERE container = ? AND event_id = ?"
ATTEMPT = "INSERT OR REPLACE INTO attempts VALUES (?,?,?,?,?,?,?,?)"
SEE = "UPDATE events SET seen_ns = ? WHERE user_id = ? AND sequence = ? AND seen_ns IS NULL"
SET_CONTACTS = "INSERT OR REPLACE INTO contacts VALUES (?,?)"
SET_PRESENCE = "INSERT OR REPLACE INTO presence VALUES (?,?,?)"

Row = tuple[Any, ...]


def _state(queued: QueuedRow) -> Row:
    refused = orjson.dumps(queued.refused).decode() if queued.refused else ""
    return (*queued[2:_REFUSED], refused, *queued[_REFUSED + 1 :])


@cache
def accept(rows: int) -> str:
    """Return the statement that inserts this many rows of `accept_row`."""
    row = f"({', '.join('?' * len(_ACCEPTED))})"
    return f"INSERT INTO events ({', '.join(_ACCEPTED)}) VALUES {', '.join([row] * rows)}"  # noqa: S608


def accept_row(queued: QueuedRow) -> Row:
    """Return the values of a row of `accept`."""
    event = queued.event
    return (*event.key, event.user_id, event.body, queued.accepted_ns, *_state(queued), Status.QUEUED.value)


def update_row(queued: QueuedRow) -> Row:
    """Return the values of `UPDATE`."""
    return (*_state(queued), *queued.event.key)


def finish_row(final: Final) -> Row:
    """Return the values of `FINISH`."""
    via = None if final.via is None else final.via.value
    return (final.status.value, via, final.error, final.completed_ns, *final.key)


def attempt_row(attempt: AttemptRow) -> Row:
    """Return the values of `ATTEMPT`."""
    key, number, channel, *rest = attempt
    return (*key, number, channel.value, *rest)


def read_body(container: str, body: bytes) -> Event:
    """Return an event that was accepted once.

    Raises:
        ValueError: It would not be accepted now: another program has changed the file.
    """
    event = read_event(container, body)
    if isinstance(event, EventRefusal):
        raise ValueError(f"an event of container {container!r} in the outbox: {event.reason}")
    return event


def read_queued(row: Row) -> QueuedRow:
    """Return a row of `QUEUED_COLUMNS`."""
    container, body, accepted_ns, *state = row
    values = dict(zip(STATE_FIELDS, state, strict=True))
    refused = orjson.loads(values["refused"]) if values["refused"] else ()
    values["refused"] = tuple((Channel(channel), reason) for channel, reason in refused)
    values["waits_for_ack"] = bool(values["waits_for_ack"])
    values["soft"] = bool(values["soft"])
    return QueuedRow(read_body(container, body), accepted_ns, **values)


def read_final(key: EventKey, status: int, via: int | None, error: str, completed_ns: int | None) -> Final | None:
    """Return the end of an event; None for one that is queued."""
    if completed_ns is None:
        return None
    return Final(key, Status(status), None if via is None else Channel(via), error, completed_ns)


def read_attempt(row: Row) -> AttemptRow:
    """Return a row of ``attempts``."""
    container, event_id, number, channel, *rest = row
    return AttemptRow(EventKey(container, event_id), number, Channel(channel), *rest)


def contacts_text(contacts: Contacts) -> str:
    """Return contacts as JSON; destinations by the number of their channel."""
    return orjson.dumps(asdict(contacts), option=orjson.OPT_NON_STR_KEYS).decode()


def read_contacts(text: str) -> Contacts:
    """Return contacts from JSON."""
    found = orjson.loads(text)
    return Contacts(
        destinations={
            Channel(int(number)): tuple(
                WebPushSubscription(**each) if isinstance(each, dict) else each for each in listed
            )
            for number, listed in found["destinations"].items()
        },
        channel_order=tuple(map(Channel, found["channel_order"])),
        quiet_hours=QuietHours(**found["quiet_hours"]) if found["quiet_hours"] else None,
    )

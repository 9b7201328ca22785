"""The outbox's tables, and how our dataclasses become their rows and come back. Pure."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import orjson

from services.common.model.user_events import Channel, Status
from services.gateway.events.delivery.changes import AttemptRow, Final, QueuedRow
from services.gateway.events.ingress.validation import Refusal, read_event
from services.gateway.events.model import Contacts, Event, EventKey, QuietHours, WebPushSubscription

STEPS = (
    # 1. `forgotten` is the highest sequence of each user whose event is no longer kept.
    """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO meta VALUES ('epoch', lower(hex(randomblob(16))));
CREATE TABLE events (
    number INTEGER PRIMARY KEY AUTOINCREMENT, container TEXT NOT NULL, event_id TEXT NOT NULL, user_id TEXT NOT NULL,
    body BLOB NOT NULL, accepted_ns INTEGER NOT NULL, expires_ns INTEGER, turn INTEGER NOT NULL,
    rounds INTEGER NOT NULL, tries INTEGER NOT NULL, failures INTEGER NOT NULL, due_ns INTEGER NOT NULL,
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

ACCEPT = (
    "INSERT INTO events (container, event_id, user_id, body, accepted_ns, expires_ns, turn, rounds, tries, failures,"
    " due_ns, waits_for_ack, refused, soft, sequence, status) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,1)"
)
UPDATE = (
    "UPDATE events SET expires_ns = ?, turn = ?, rounds = ?, tries = ?, failures = ?, due_ns = ?, waits_for_ack = ?,"
    " refused = ?, soft = ?, sequence = ? WHERE container = ? AND event_id = ?"
)
FINISH = "UPDATE events SET status = ?, via = ?, error = ?, completed_ns = ? WHERE container = ? AND event_id = ?"
ATTEMPT = "INSERT OR REPLACE INTO attempts VALUES (?,?,?,?,?,?,?,?)"
SEE = "UPDATE events SET seen_ns = ? WHERE user_id = ? AND sequence = ? AND seen_ns IS NULL"
SET_CONTACTS = "INSERT OR REPLACE INTO contacts VALUES (?,?)"
SET_PRESENCE = "INSERT OR REPLACE INTO presence VALUES (?,?,?)"

LIVE_COLUMNS = (
    "container, body, accepted_ns, expires_ns, turn, rounds, tries, failures, due_ns, waits_for_ack, refused, soft,"
    " sequence"
)
RECORD_COLUMNS = "number, container, event_id, body, accepted_ns, status, via, error, completed_ns, seen_ns"

Row = tuple[Any, ...]


def _state(live: QueuedRow) -> Row:
    refused = orjson.dumps(live.refused).decode() if live.refused else ""
    return (
        live.expires_ns,
        live.channel_index,
        live.rounds,
        live.tries,
        live.failures,
        live.due_ns,
        live.waits_for_ack,
        refused,
        live.soft,
        live.sequence,
    )


def accept_row(live: QueuedRow) -> Row:
    """For `ACCEPT`."""
    event, key = live.event, live.event.key
    return (key.container, key.event_id, event.user_id, event.body, live.accepted_ns, *_state(live))


def update_row(live: QueuedRow) -> Row:
    """For `UPDATE`."""
    key = live.event.key
    return (*_state(live), key.container, key.event_id)


def finish_row(final: Final) -> Row:
    """For `FINISH`."""
    via = None if final.via is None else final.via.value
    return (final.status.value, via, final.error, final.completed_ns, final.key.container, final.key.event_id)


def attempt_row(attempt: AttemptRow) -> Row:
    """For `ATTEMPT`."""
    return (
        attempt.key.container,
        attempt.key.event_id,
        attempt.number,
        attempt.channel.value,
        attempt.started_ns,
        attempt.ended_ns,
        attempt.outcome,
        attempt.retry_at_ns,
    )


def read_body(container: str, body: bytes) -> Event:
    """An event that was accepted once.

    Raises:
        ValueError: It would not be now; the file was changed by somebody else.
    """
    event = read_event(container, body)
    if isinstance(event, Refusal):
        raise ValueError(f"an event of container {container!r} in the outbox: {event.reason}")
    return event


def read_live(row: Row) -> QueuedRow:
    """A row of `LIVE_COLUMNS`."""
    (
        container,
        body,
        accepted_ns,
        expires_ns,
        channel_index,
        rounds,
        tries,
        failures,
        due_ns,
        waits,
        refused,
        soft,
        place,
    ) = row
    reasons = tuple((Channel(channel), reason) for channel, reason in orjson.loads(refused)) if refused else ()
    return QueuedRow(
        read_body(container, body),
        accepted_ns,
        expires_ns,
        channel_index=channel_index,
        rounds=rounds,
        tries=tries,
        failures=failures,
        due_ns=due_ns,
        waits_for_ack=bool(waits),
        refused=reasons,
        sequence=place,
        soft=bool(soft),
    )


def read_final(key: EventKey, status: int, via: int | None, error: str, completed_ns: int | None) -> Final | None:
    """How an event ended; None for one that is queued."""
    if completed_ns is None:
        return None
    return Final(key, Status(status), None if via is None else Channel(via), error, completed_ns)


def read_attempt(row: Row) -> AttemptRow:
    """A row of ``attempts``."""
    container, event_id, number, channel, started_ns, ended_ns, outcome, retry_at_ns = row
    key = EventKey(container, event_id)
    return AttemptRow(key, number, Channel(channel), started_ns, ended_ns, outcome, retry_at_ns)


def contacts_text(contacts: Contacts) -> str:
    """Contacts as JSON."""
    return orjson.dumps(asdict(contacts)).decode()


def read_contacts(text: str) -> Contacts:
    """Contacts from JSON."""
    found = orjson.loads(text)
    quiet = found.pop("quiet_hours")
    return Contacts(
        web_push=tuple(WebPushSubscription(**each) for each in found.pop("web_push")),
        mobile_tokens=tuple(found.pop("mobile_tokens")),
        channel_order=tuple(Channel(each) for each in found.pop("channel_order")),
        quiet_hours=QuietHours(**quiet) if quiet else None,
        **found,
    )

"""Triggers and their events in the relay's database. Every function runs in the store's thread, in one transaction.

Each registration and each deletion has a number, ``change``, which only grows. The pipeline asks for the changes after
the last one that it has on disk. An event is stored once, by its id, whichever of the pipeline's reports brings it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dexorder_common.model.triggers import Alert, EventKind, RegisteredTrigger, Trigger, TriggerState
from dexorder_common.model.user_events import Channel, Preference, Priority

_CHANGE, _FORGOTTEN, _APPLIED = "trigger_change", "trigger_forgotten_change", "trigger_applied_change"
_COLUMNS = (
    "registration, trigger_id, sql, tickers, callback_id, parameters, client_id, alert, period_seconds, registered_ns, "
    "state, reason, firings, last_fired_ns, change"
)
_STATE_AFTER = {EventKind.SUSPENDED: TriggerState.SUSPENDED, EventKind.ENDED: TriggerState.ENDED}
REASON = "reason"
"""Name in the context of an event of the whole trigger that has the reason."""
NO_ALERT, ALERT_PENDING, ALERT_SENT, ALERT_REFUSED = range(4)
Connection = sqlite3.Connection


@dataclass(frozen=True, slots=True)
class TriggerChange:
    """A registration, or the deletion of one if ``trigger`` is None."""

    registration: int
    registered_ns: int
    trigger: Trigger | None


@dataclass(frozen=True, slots=True)
class TriggerChanges:
    """Changes in their order, complete up to ``change``. With ``reset`` they are all there is."""

    changes: list[TriggerChange]
    change: int
    reset: bool = False


@dataclass(frozen=True, slots=True)
class ReportedEvent:
    """Event that the pipeline reports; ``message`` is a serialized CEPTriggerEvent, ``reason`` that of an end."""

    event_id: str
    registration: int
    kind: EventKind
    ticker: str
    time_ns: int
    message: bytes
    reason: str = ""


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """Event with its cursor, and the trigger to which it belongs."""

    cursor: int
    trigger_id: str
    client_id: str
    event: ReportedEvent


@dataclass(frozen=True, slots=True)
class PendingAlert:
    """Event of which the gateway does not know yet."""

    cursor: int
    trigger: Trigger
    event: ReportedEvent


@dataclass(frozen=True, slots=True)
class StoredReport:
    """Outcome of a report."""

    new: list[StoredEvent]
    callbacks: set[str]
    unknown: int
    alerts: int


def find(connection: Connection, trigger_id: str) -> RegisteredTrigger | None:
    """Return the trigger that has an id now."""
    sql = f"SELECT {_COLUMNS} FROM triggers WHERE trigger_id = ? AND deleted_ns IS NULL"  # noqa: S608
    row = connection.execute(sql, (trigger_id,)).fetchone()
    return _read(connection, row) if row else None


def register(
    connection: Connection, trigger: Trigger, period_seconds: int, *, now_ns: int, limit: int | None
) -> tuple[RegisteredTrigger | None, bool]:
    """Store a trigger unless its id is in use. Return the one that has the id then, and whether it is new.

    Args:
        limit: Largest number of triggers of the client; beyond it nothing is stored, and nothing is returned.
    """
    if (known := find(connection, trigger.trigger_id)) is not None:
        return known, False
    count = "SELECT count(*) FROM triggers WHERE client_id = ? AND deleted_ns IS NULL"
    if limit is not None and connection.execute(count, (trigger.client_id,)).fetchone()[0] >= limit:
        return None, False
    values = {
        "trigger_id": trigger.trigger_id,
        "sql": trigger.sql,
        "tickers": json.dumps(trigger.tickers),
        "callback_id": trigger.callback_id,
        "parameters": json.dumps(dict(trigger.parameters)),
        "client_id": trigger.client_id,
        "alert": _dump_alert(trigger.alert),
        "period_seconds": period_seconds,
        "registered_ns": now_ns,
        "change": _next_change(connection),
    }
    columns, marks = ", ".join(values), ", ".join("?" * len(values))
    connection.execute(f"INSERT INTO triggers ({columns}) VALUES ({marks})", tuple(values.values()))  # noqa: S608
    return find(connection, trigger.trigger_id), True


def delete(connection: Connection, trigger_id: str, *, now_ns: int) -> None:
    """Store the deletion of the trigger that has an id now."""
    connection.execute(
        "UPDATE triggers SET deleted_ns = ?, change = ? WHERE trigger_id = ? AND deleted_ns IS NULL",
        (now_ns, _next_change(connection), trigger_id),
    )


def page(connection: Connection, client_id: str, ticker: str, after: int, size: int) -> list[RegisteredTrigger]:
    """Return triggers by registration, after one; those of a client and of a ticker, unless these are empty."""
    sql = (
        f"SELECT {_COLUMNS} FROM triggers WHERE deleted_ns IS NULL AND registration > ?"  # noqa: S608
        " AND (? = '' OR client_id = ?) AND (? = '' OR ? IN (SELECT value FROM json_each(tickers)))"
        " ORDER BY registration LIMIT ?"
    )
    values = (after, client_id, client_id, ticker, ticker, size)
    return [_read(connection, row) for row in connection.execute(sql, values)]


def live(connection: Connection) -> list[RegisteredTrigger]:
    """Return every trigger that was not deleted."""
    return page(connection, "", "", 0, -1)


def changes_after(connection: Connection, after: int, limit: int) -> TriggerChanges:
    """Return the changes after one, at most ``limit``, unless the database is older than the change, or too new."""
    last, forgotten = _meta(connection, _CHANGE), _meta(connection, _FORGOTTEN)
    if after > last or after < forgotten:
        found = [TriggerChange(each.registration, each.registered_ns, each.trigger) for each in live(connection)]
        return TriggerChanges(found, last, reset=True)
    sql = f"SELECT {_COLUMNS}, deleted_ns FROM triggers WHERE change > ? ORDER BY change LIMIT ?"  # noqa: S608
    rows = connection.execute(sql, (after, limit)).fetchall()
    found = [TriggerChange(row[0], row[9], _read_trigger(row) if row[-1] is None else None) for row in rows]
    return TriggerChanges(found, rows[-1][-2] if len(rows) == limit else last)


def applied(connection: Connection, change: int) -> None:
    """Store the last change that the pipeline has on disk."""
    connection.execute("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", (_APPLIED, change))


def report(connection: Connection, events: Iterable[ReportedEvent], *, now_ns: int) -> StoredReport:
    """Store events that are not known yet, with the states of triggers that they end."""
    new, callbacks, unknown, alerts = [], set(), 0, 0
    for each in events:
        sql = "SELECT trigger_id, callback_id, client_id, alert FROM triggers WHERE registration = ?"
        owner = connection.execute(sql, (each.registration,)).fetchone()
        if owner is None:
            unknown += 1
            continue
        trigger_id, callback_id, client_id, alert = owner
        has_alert = alert is not None and each.kind in (EventKind.FIRED, EventKind.SUSPENDED)
        inserted = connection.execute(
            "INSERT OR IGNORE INTO trigger_events (event_id, registration, trigger_id, callback_id, client_id, kind,"
            " ticker, time_ns, reported_ns, message, alert) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                each.event_id,
                each.registration,
                trigger_id,
                callback_id,
                client_id,
                each.kind.value,
                each.ticker,
                each.time_ns,
                now_ns,
                each.message,
                ALERT_PENDING if has_alert else NO_ALERT,
            ),
        )
        if not inserted.rowcount:
            continue
        new.append(StoredEvent(inserted.lastrowid or 0, trigger_id, client_id, each))
        callbacks |= {callback_id} - {""}
        alerts += has_alert
        _follow(connection, each)
    return StoredReport(new, callbacks, unknown, alerts)


def _follow(connection: Connection, event: ReportedEvent) -> None:
    if event.kind is EventKind.FIRED:
        connection.execute(
            "UPDATE triggers SET firings = firings + 1, last_fired_ns = max(last_fired_ns, ?) WHERE registration = ?",
            (event.time_ns, event.registration),
        )
    else:
        connection.execute(
            "UPDATE triggers SET state = ?, reason = ? WHERE registration = ?",
            (_STATE_AFTER[event.kind].value, event.reason, event.registration),
        )


def events_after(
    connection: Connection, where: tuple[str, str], client_id: str | None, after: int, limit: int
) -> list[StoredEvent]:
    """Return events after a cursor, in order.

    Args:
        where: ``trigger_id`` or ``callback_id``, and its value.
        client_id: Only of triggers of this client; None for all.
    """
    column, value = where
    chosen = f"WHERE {column} = ? AND cursor > ? AND (? IS NULL OR client_id = ?) ORDER BY cursor LIMIT ?"
    columns = "cursor, trigger_id, client_id, event_id, registration, kind, ticker, time_ns, message"
    sql = f"SELECT {columns} FROM trigger_events {chosen}"  # noqa: S608 - names from above
    rows = connection.execute(sql, (value, after, client_id, client_id, limit))
    return [StoredEvent(row[0], row[1], row[2], _read_event(row[3:])) for row in rows]


def pending_alerts(connection: Connection, after: int, limit: int) -> list[PendingAlert]:
    """Return events of which the gateway does not know yet, by cursor, after one."""
    sql = (
        "SELECT cursor, registration, event_id, registration, kind, ticker, time_ns, message"
        " FROM trigger_events WHERE alert = ? AND cursor > ? ORDER BY cursor LIMIT ?"
    )
    found = []
    for row in connection.execute(sql, (ALERT_PENDING, after, limit)).fetchall():
        owner = f"SELECT {_COLUMNS} FROM triggers WHERE registration = ?"  # noqa: S608
        trigger = _read_trigger(connection.execute(owner, (row[1],)).fetchone())
        found.append(PendingAlert(row[0], trigger, _read_event(row[2:])))
    return found


def settle_alerts(connection: Connection, outcomes: Sequence[tuple[int, int]]) -> None:
    """Store the outcomes of alerts, each ALERT_SENT or ALERT_REFUSED, by the events' cursors."""
    connection.executemany("UPDATE trigger_events SET alert = ? WHERE cursor = ?", [(o, c) for c, o in outcomes])


def forget(connection: Connection, before_ns: int, limit: int) -> int:
    """Delete the oldest events that were reported before a time, and triggers deleted before it without events.

    Returns:
        The number of deleted events.
    """
    sql = (
        "DELETE FROM trigger_events WHERE cursor IN (SELECT cursor FROM trigger_events"
        " WHERE reported_ns < ? AND alert != ? ORDER BY cursor LIMIT ?)"
    )
    count = connection.execute(sql, (before_ns, ALERT_PENDING, limit)).rowcount
    sql = (
        "SELECT registration, change FROM triggers WHERE deleted_ns < ? AND NOT EXISTS"
        " (SELECT 1 FROM trigger_events WHERE trigger_events.registration = triggers.registration) LIMIT ?"
    )
    if gone := connection.execute(sql, (before_ns, limit)).fetchall():
        connection.executemany("DELETE FROM triggers WHERE registration = ?", [row[:1] for row in gone])
        last = max(_meta(connection, _FORGOTTEN), *(change for _, change in gone))
        connection.execute("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", (_FORGOTTEN, last))
    return count


def _next_change(connection: Connection) -> int:
    change = _meta(connection, _CHANGE) + 1
    connection.execute("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", (_CHANGE, change))
    return change


def _meta(connection: Connection, name: str) -> int:
    row = connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return int(row[0]) if row else 0


def _read(connection: Connection, row: tuple[Any, ...]) -> RegisteredTrigger:
    registration, period_seconds, registered_ns, state, reason, firings, last_fired_ns, change = (row[0], *row[8:15])
    current = TriggerState(state)
    if current is TriggerState.RUNNING and change > _meta(connection, _APPLIED):
        current = TriggerState.WAITING
    return RegisteredTrigger(
        _read_trigger(row), registration, registered_ns, current, period_seconds, reason, firings, last_fired_ns
    )


def _read_trigger(row: tuple[Any, ...]) -> Trigger:
    _, trigger_id, sql, tickers, callback_id, parameters, client_id, alert = row[:8]
    tickers, parameters = json.loads(tickers), json.loads(parameters)
    return Trigger(trigger_id, sql, tuple(tickers), callback_id, parameters, client_id, _load_alert(alert))


def _read_event(row: tuple[Any, ...]) -> ReportedEvent:
    event_id, registration, kind, ticker, time_ns, message = row
    return ReportedEvent(event_id, registration, EventKind(kind), ticker, time_ns, message)


def _dump_alert(alert: Alert | None) -> str | None:
    if alert is None:
        return None
    return json.dumps([alert.user_id, alert.priority, [[each.channel, each.only_if_active] for each in alert.channels]])


def _load_alert(text: str | None) -> Alert | None:
    if text is None:
        return None
    user_id, priority, channels = json.loads(text)
    return Alert(user_id, Priority(priority), tuple(Preference(Channel(each), active) for each, active in channels))

"""Triggers and their events in the relay's database. Every function runs in the store's thread, in one transaction.

Each registration and each deletion has a sequence in the log of changes; a trigger's ``change`` is its last one. The
pipeline asks for the changes after the last one that it has on disk. An event is stored once, by its id, even if
several of the pipeline's reports bring it.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from dexorder_common.model.cursor import Cursor, StreamStart
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.triggers import EventKind, RegisteredTrigger, Trigger, TriggerState
from dexorder_relay.state import triggers as rules
from dexorder_relay.store.logs import Log, epoch_of, note_forgotten, start_of
from dexorder_relay.store.rows import Columns, Row, Statement, insert, select, update, upsert

_APPLIED = "trigger_applied_change"
_STATE_AFTER = {EventKind.SUSPENDED: TriggerState.SUSPENDED, EventKind.ENDED: TriggerState.ENDED}
REASON = "reason"
"""Name in the context of an event of the whole trigger that has the reason."""
NO_ALERT, ALERT_PENDING, ALERT_SENT, ALERT_REFUSED = range(4)
Connection = sqlite3.Connection


class TriggerChange(NamedTuple):
    """A registration, or the deletion of one if ``trigger`` is None."""

    registration: int
    registered_ns: int
    trigger: Trigger | None
    is_paused: bool = False
    changed_ns: int = 0
    registered_sequence: int = 0
    revision: int = 1
    pauses: tuple[TimeRange, ...] = ()


class TriggerChanges(NamedTuple):
    """Changes in their order, complete up to ``cursor``. After a reset they are all triggers that run."""

    start: StreamStart
    changes: list[TriggerChange]
    cursor: Cursor


class ReportedEvent(NamedTuple):
    """Event that the pipeline reports; ``message`` is a serialized CEPTriggerEvent, ``reason`` explains an end."""

    event_id: str
    registration: int
    kind: EventKind
    ticker: str
    time_ns: int
    message: bytes
    reason: str = ""


class StoredEvent(NamedTuple):
    """Event with its sequence, and the trigger to which it belongs."""

    sequence: int
    trigger_id: str
    client_id: str
    event: ReportedEvent


class PendingAlert(NamedTuple):
    """Event of which the gateway does not know yet."""

    sequence: int
    trigger: Trigger
    event: ReportedEvent


class StoredReport(NamedTuple):
    """Outcome of a report."""

    new: list[StoredEvent]
    callbacks: set[str]
    unknown: int
    alerts: int


TRIGGER, REGISTERED = Columns(Trigger), Columns(RegisteredTrigger)
REPORTED = Columns(ReportedEvent, "event_id", "registration", "kind", "ticker", "time_ns", "message")


def find(connection: Connection, trigger_id: str) -> RegisteredTrigger | None:
    """Return the trigger that has an id now."""
    rows = select(connection, "SELECT * FROM triggers WHERE trigger_id = ? AND deleted_ns IS NULL", trigger_id)
    return next((_read(connection, row) for row in rows), None)


def found(connection: Connection, trigger_ids: Iterable[str]) -> dict[str, RegisteredTrigger]:
    """Return the triggers that have some of these ids now, by id."""
    return {each: known for each in trigger_ids if (known := find(connection, each)) is not None}


def register(
    connection: Connection, triggers: Iterable[tuple[Trigger, int]], *, now_ns: int, limit: int | None
) -> list[tuple[RegisteredTrigger | None, bool]]:
    """Store triggers with unused ids. Return for each the one that has the id then, and whether it is new.

    Args:
        triggers: Triggers with their periods.
        now_ns: Time of the registration.
        limit: Largest number of triggers of a client; those beyond it are not stored, and None is returned for them.
    """
    count = "SELECT count(*) FROM triggers WHERE client_id = ? AND deleted_ns IS NULL"
    owned: dict[str, int] = {}
    outcomes: list[tuple[RegisteredTrigger | None, bool]] = []
    for trigger, period_seconds in triggers:
        client = trigger.client_id
        if (known := find(connection, trigger.trigger_id)) is not None:
            outcomes.append((known, False))
            continue
        if client not in owned:
            owned[client] = connection.execute(count, (client,)).fetchone()[0]
        if limit is not None and owned[client] >= limit:
            outcomes.append((None, False))
            continue
        new = RegisteredTrigger(trigger, 0, now_ns, TriggerState.RUNNING, period_seconds)
        _insert(connection, new)
        owned[client] += 1
        outcomes.append((new, True))
    return outcomes


def _insert(connection: Connection, new: RegisteredTrigger) -> int:
    row = {name: each for name, each in REGISTERED.values(new).items() if name != "registration"}  # SQLite's number
    change = _next_change(connection)
    return _run(connection, insert("triggers", row | {"change": change, "registered_sequence": change})).lastrowid or 0


def edit(
    connection: Connection, known: RegisteredTrigger, new: Trigger, period_seconds: int, *, reset: bool, now_ns: int
) -> RegisteredTrigger | None:
    """Store another text and other parameters of a trigger; None if it is not as ``known`` any more.

    With ``reset`` it is registered again: the pipeline starts without its state.
    """
    found = find(connection, known.trigger.trigger_id)
    if found is None or found != replace(
        known, state=found.state, firings=found.firings, last_fired_ns=found.last_fired_ns, reason=found.reason
    ):
        return None
    if found.state in (TriggerState.SUSPENDED, TriggerState.ENDED):
        return None
    revision = found.revision + 1
    if reset:
        delete(connection, new.trigger_id, now_ns=now_ns)
        state = TriggerState.PAUSED if found.state is TriggerState.PAUSED else TriggerState.RUNNING
        again = RegisteredTrigger(new, 0, now_ns, state, period_seconds, revision=revision)
        return replace(again, registration=_insert(connection, again))
    values = {name: each for name, each in TRIGGER.values(new).items() if name in ("sql", "parameters")}
    change = values | {"revision": revision, "change": _next_change(connection)}
    _run(connection, update("triggers", change, registration=found.registration))
    return replace(found, trigger=new, revision=revision)


def is_taken(connection: Connection, registration: int) -> bool:
    """Return whether the pipeline has the last change of a trigger on its disk."""
    row = connection.execute("SELECT change FROM triggers WHERE registration = ?", (registration,)).fetchone()
    return row is not None and row[0] <= _meta(connection, _APPLIED)


def delete(connection: Connection, trigger_id: str, *, now_ns: int) -> RegisteredTrigger | None:
    """Store the deletion of the trigger that has an id now; return it, or None. Its texts are removed."""
    known = find(connection, trigger_id)
    sql = (
        "UPDATE triggers SET deleted_ns = ?, change = ?, sql = '', tickers = '[]', parameters = '{}'"
        " WHERE trigger_id = ? AND deleted_ns IS NULL"
    )
    if known is not None:
        connection.execute(sql, (now_ns, _next_change(connection), trigger_id))
    return known


def pause(connection: Connection, trigger_id: str, *, paused: bool, now_ns: int) -> RegisteredTrigger | None:
    """Store that the trigger that has an id now is paused or runs. Return it as it was; None for an unused id.

    Pauses that have ended are kept until the pipeline has them: it may read the rows of a pause after its end.
    """
    known = find(connection, trigger_id)
    state = TriggerState.PAUSED if paused else TriggerState.RUNNING
    other = [TriggerState.RUNNING, TriggerState.WAITING] if paused else [TriggerState.PAUSED]
    if known is None or known.state not in other:
        return known
    row = next(select(connection, "SELECT * FROM triggers WHERE registration = ?", known.registration))
    pauses = rules.pauses_after(
        _read_pauses(row),
        now_ns,
        began_ns=None if paused else row["changed_ns"],
        is_taken=row["change"] <= _meta(connection, _APPLIED),
    )
    change: dict[str, object] = {"state": state, "changed_ns": now_ns, "change": _next_change(connection)}
    change["pauses"] = json.dumps([[each.start_ns, each.end_ns] for each in pauses])
    _run(connection, update("triggers", change, registration=known.registration))
    return known


def page(connection: Connection, client_id: str, ticker: str, after: int, size: int) -> list[RegisteredTrigger]:
    """Return triggers by registration, after one; only of a client and of a ticker, unless these are empty."""
    sql = (
        "SELECT * FROM triggers WHERE deleted_ns IS NULL AND registration > ?"
        " AND (? = '' OR client_id = ?) AND (? = '' OR ? IN (SELECT value FROM json_each(tickers)))"
        " ORDER BY registration LIMIT ?"
    )
    rows = select(connection, sql, after, client_id, client_id, ticker, ticker, size)
    return [_read(connection, row) for row in rows]


def data_read(connection: Connection) -> list[rules.DataRead]:
    """Return what the triggers read, each combination once: a million triggers have few."""
    sql = (
        "SELECT DISTINCT tickers, period_seconds, json_extract(parameters, '$.on') FROM triggers"
        " WHERE deleted_ns IS NULL AND state IN (?, ?, ?)"
    )
    rows = connection.execute(sql, rules.READING)
    return [rules.DataRead(tuple(json.loads(tickers)), period, on) for tickers, period, on in rows]


def bytes_by_client(connection: Connection) -> Counter[str]:
    """Return the bytes of each client's triggers that were not deleted."""
    found: Counter[str] = Counter()
    for row in select(connection, "SELECT * FROM triggers WHERE deleted_ns IS NULL"):  # one at a time in memory
        trigger = TRIGGER.read(row)
        found[trigger.client_id] += rules.size_of(trigger)
    return found


def changes_after(connection: Connection, after: Cursor | None, limit: int) -> TriggerChanges:
    """Return the changes after a cursor, at most ``limit``; all triggers that run if the cursor is not valid."""
    start = start_of(connection, Log.TRIGGER_CHANGES, after)
    (newest,) = connection.execute("SELECT max(sequence) FROM trigger_changes").fetchone()
    last = start.cursor._replace(sequence=newest or _meta(connection, Log.TRIGGER_CHANGES.forgotten))
    if start.is_reset:
        states = TriggerState.RUNNING, TriggerState.PAUSED
        running = "SELECT * FROM triggers WHERE deleted_ns IS NULL AND state IN (?, ?) ORDER BY registration"
        return TriggerChanges(start, [*map(_read_change, select(connection, running, *states))], last)
    sql = "SELECT * FROM triggers WHERE change > ? ORDER BY change LIMIT ?"
    rows = list(select(connection, sql, start.cursor.sequence, limit))
    cursor = last._replace(sequence=rows[-1]["change"]) if len(rows) == limit else last
    return TriggerChanges(start, [_read_change(row) for row in rows], cursor)


def _read_change(row: Row) -> TriggerChange:
    trigger = TRIGGER.read(row) if row["deleted_ns"] is None else None
    is_paused = row["state"] == TriggerState.PAUSED
    return TriggerChange(
        row["registration"],
        row["registered_ns"],
        trigger,
        is_paused,
        row["changed_ns"],
        row["registered_sequence"],
        row["revision"],
        tuple(_read_pauses(row)),
    )


def _read_pauses(row: Row) -> list[TimeRange]:
    return [TimeRange(*each) for each in json.loads(row["pauses"])]


def report(
    connection: Connection, events: Iterable[ReportedEvent], applied: Cursor | None, *, now_ns: int
) -> StoredReport:
    """Store the last change that the pipeline has, and unknown events with the states of triggers that they end."""
    is_ours = applied is not None and applied.epoch == epoch_of(connection)
    _set_meta(connection, _APPLIED, applied.sequence if applied is not None and is_ours else 0)
    new, callbacks, unknown, alerts = [], set(), 0, 0
    for each in events:
        sql = "SELECT trigger_id, callback_id, client_id, alert FROM triggers WHERE registration = ?"
        owner = next(select(connection, sql, each.registration), None)
        if owner is None:
            unknown += 1
            continue
        has_alert = owner["alert"] is not None and each.kind in (EventKind.FIRED, EventKind.SUSPENDED)
        made = {"reported_ns": now_ns, "alert": ALERT_PENDING if has_alert else NO_ALERT}
        row = REPORTED.values(each) | {**owner, **made}
        inserted = _run(connection, insert("trigger_events", row, conflict="OR IGNORE"))
        if not inserted.rowcount:
            continue
        new.append(StoredEvent(inserted.lastrowid or 0, owner["trigger_id"], owner["client_id"], each))
        callbacks |= {owner["callback_id"]} - {""}
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
        end = {"state": _STATE_AFTER[event.kind], "reason": event.reason}
        _run(connection, update("triggers", end, registration=event.registration))


def events_after(
    connection: Connection, where: tuple[str, str], client_id: str | None, after: int, limit: int
) -> list[StoredEvent]:
    """Return events after a sequence, in order.

    Args:
        where: ``trigger_id`` or ``callback_id``, and its value.
        client_id: Only of triggers of this client; None for all.
    """
    column, value = where
    chosen = f"WHERE {column} = ? AND sequence > ? AND (? IS NULL OR client_id = ?) ORDER BY sequence LIMIT ?"
    rows = select(connection, f"SELECT * FROM trigger_events {chosen}", value, after, client_id, client_id, limit)  # noqa: S608
    return [StoredEvent(row["sequence"], row["trigger_id"], row["client_id"], REPORTED.read(row)) for row in rows]


def pending_alerts(connection: Connection, limit: int) -> list[PendingAlert]:
    """Return the oldest events of which the gateway does not know yet, by sequence."""
    sql = "SELECT * FROM trigger_events WHERE alert = ? ORDER BY sequence LIMIT ?"
    owner = "SELECT * FROM triggers WHERE registration = ?"
    found = []
    for row in list(select(connection, sql, ALERT_PENDING, limit)):
        trigger = TRIGGER.read(next(select(connection, owner, row["registration"])))
        found.append(PendingAlert(row["sequence"], trigger, REPORTED.read(row)))
    return found


def settle_alerts(connection: Connection, outcomes: Sequence[tuple[int, int]]) -> None:
    """Store the outcomes of alerts, each ALERT_SENT or ALERT_REFUSED, by the events' sequences."""
    connection.executemany("UPDATE trigger_events SET alert = ? WHERE sequence = ?", [(o, c) for c, o in outcomes])


def forget(connection: Connection, before_ns: int, limit: int) -> int:
    """Delete the oldest events that were reported before a time, and triggers deleted before it without events.

    Returns:
        The number of deleted events.
    """
    oldest = "SELECT sequence FROM trigger_events WHERE reported_ns < ? AND alert != ? ORDER BY sequence LIMIT ?"
    chosen, values = f"sequence IN ({oldest})", (before_ns, ALERT_PENDING, limit)
    connection.execute(note_forgotten(Log.TRIGGER_EVENTS, chosen), values)
    count = connection.execute(f"DELETE FROM trigger_events WHERE {chosen}", values).rowcount  # noqa: S608
    sql = (
        "SELECT registration, change FROM triggers WHERE deleted_ns < ? AND NOT EXISTS"
        " (SELECT 1 FROM trigger_events WHERE trigger_events.registration = triggers.registration) LIMIT ?"
    )
    if gone := connection.execute(sql, (before_ns, limit)).fetchall():
        connection.executemany("DELETE FROM triggers WHERE registration = ?", [row[:1] for row in gone])
        chosen, last = "sequence <= ?", max(change for _, change in gone)
        connection.execute(note_forgotten(Log.TRIGGER_CHANGES, chosen), (last,))
        connection.execute(f"DELETE FROM trigger_changes WHERE {chosen}", (last,))  # noqa: S608
    return count


def _next_change(connection: Connection) -> int:
    return connection.execute("INSERT INTO trigger_changes DEFAULT VALUES").lastrowid or 0


def _meta(connection: Connection, name: str) -> int:
    row = connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return int(row[0]) if row else 0


def _set_meta(connection: Connection, name: str, value: int) -> None:
    _run(connection, upsert("meta", {"name": name, "value": value}))


def _run(connection: Connection, statement: Statement) -> sqlite3.Cursor:
    return connection.execute(*statement)


def _read(connection: Connection, row: Row) -> RegisteredTrigger:
    found = REGISTERED.read(row)
    if found.state is TriggerState.RUNNING and row["change"] > _meta(connection, _APPLIED):
        return replace(found, state=TriggerState.WAITING)
    return found

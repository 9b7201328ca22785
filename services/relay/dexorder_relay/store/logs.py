"""Logs of the relay's database that are resumed by a cursor: notifications, changes of triggers and their events.

Sequences of a file are never used for two items, though the file may be replaced by an older copy of itself: at each
start they continue at the microseconds of the wall clock, which are ahead of all that were given before.
"""

from __future__ import annotations

import sqlite3
from enum import StrEnum

from dexorder_common.model.cursor import Cursor, StreamStart, start_of_stream


class Log(StrEnum):
    """Tables that are logs."""

    NOTIFICATIONS = "notifications"
    TRIGGER_CHANGES = "trigger_changes"
    TRIGGER_EVENTS = "trigger_events"

    @property
    def forgotten(self) -> str:
        """Name in ``meta`` of the largest sequence that retention has deleted."""
        return f"{self}_forgotten"


def epoch_of(connection: sqlite3.Connection) -> str:
    """Return the id of the file's logs."""
    return str(connection.execute("SELECT epoch FROM logs").fetchone()[0])


def advance_sequences(connection: sqlite3.Connection, now_ns: int) -> None:
    """Continue every sequence beyond the numbers that a newer copy of the file may have used.

    The clock must not be behind.
    """
    connection.execute("UPDATE sqlite_sequence SET seq = max(seq, ?)", (now_ns // 1_000,))


def note_forgotten(log: Log, chosen: str) -> str:
    """Return the SQL that stores the largest sequence of the rows that a condition chooses, which are deleted next."""
    return (
        f"INSERT INTO meta (name, value) SELECT '{log.forgotten}', max(sequence) FROM {log} WHERE {chosen}"  # noqa: S608
        " HAVING max(sequence) IS NOT NULL ON CONFLICT (name) DO UPDATE SET value = max(value, excluded.value)"
    )


def start_of(connection: sqlite3.Connection, log: Log, after: Cursor | None) -> StreamStart:
    """Return where a stream of a log starts that is to continue after a cursor."""
    row = connection.execute("SELECT value FROM meta WHERE name = ?", (log.forgotten,)).fetchone()
    sequence = min(after.sequence if after else 0, 2**63 - 1)
    known = connection.execute(f"SELECT 1 FROM {log} WHERE sequence = ?", (sequence,)).fetchone()  # noqa: S608
    (oldest,) = connection.execute(f"SELECT min(sequence) FROM {log}").fetchone()  # noqa: S608
    return start_of_stream(after, epoch_of(connection), row[0] if row else 0, is_known=bool(known), oldest=oldest)

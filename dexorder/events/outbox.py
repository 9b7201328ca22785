"""SQLite file of a container's events that the gateway has not settled; a commit is on disk.

One process at a time may use it. SQLite's lock ensures that, and the kernel releases it when the process ends.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

from dexorder.errors import OutboxFailed
from dexorder_common.storage.durable_sqlite import open_durable

STEPS = (
    "CREATE TABLE events("
    "number INTEGER PRIMARY KEY AUTOINCREMENT, event_id TEXT NOT NULL UNIQUE, frame BLOB NOT NULL);",
)
_NEWER = "it has version {}; this publisher supports up to version {}"


class Outbox:
    """Open outbox, for the publisher's thread; see `open_outbox`."""

    def __init__(self, connection: sqlite3.Connection, name: str) -> None:
        self._connection = connection
        self._name = name

    def write(self, added: Sequence[tuple[str, bytes]], settled: Sequence[str]) -> None:
        """Add events (id and frame) and remove settled ones atomically; OutboxFailed leaves the file unchanged."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany("DELETE FROM events WHERE event_id = ?", [(each,) for each in settled])
            self._connection.executemany("INSERT INTO events(event_id, frame) VALUES (?, ?)", added)
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            if self._connection.in_transaction:
                self._connection.rollback()
            raise OutboxFailed(f"the outbox {self._name} can't be written: {error}") from None

    def frame(self, event_id: str) -> bytes:
        """Return an event as it is sent, with its type byte; OutboxFailed if it is missing or can't be read."""
        try:
            row = self._connection.execute("SELECT frame FROM events WHERE event_id = ?", (event_id,)).fetchone()
        except sqlite3.Error as error:
            raise OutboxFailed(f"the outbox {self._name} can't be read: {error}") from None
        if row is None:
            raise OutboxFailed(f"the outbox {self._name} does not have event {event_id!r}")
        return bytes(row[0])

    def events(self) -> Iterator[str]:
        """Return the ids of all events in the order of their addition."""
        return (row[0] for row in self._connection.execute("SELECT event_id FROM events ORDER BY number"))

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


def open_outbox(path: Path) -> Outbox:
    """Open or create the file of an outbox.

    Raises:
        OutboxFailed: Another process uses the file, it is not an outbox, or it can't be written.
    """
    try:  # private: events show the users' actions
        return Outbox(open_durable(path, STEPS, newer=_NEWER, private=True, exclusive=True), str(path))
    except OSError as error:
        raise OutboxFailed(f"the outbox {path} can't be opened: {error}") from None
    except (sqlite3.Error, ValueError) as error:
        busy = isinstance(error, sqlite3.OperationalError) and "locked" in str(error)
        why = "is in use by another publisher" if busy else f"can't be used: {error}"
        raise OutboxFailed(f"the outbox {path} {why}") from None

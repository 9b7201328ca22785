"""A container's SQLite file of what the gateway has not settled. WAL, ``synchronous=FULL``: a commit is on the disk.

One process at a time: SQLite's own lock on the file says so, and the kernel lets go of it when the process ends.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

from dexorder.events.errors import OutboxFailed
from services.common.storage.durable_sqlite import open_durable

_STEPS = (
    "CREATE TABLE events("
    "number INTEGER PRIMARY KEY AUTOINCREMENT, event_id TEXT NOT NULL UNIQUE, frame BLOB NOT NULL);",
)
_NEWER = "it has version {}, and this publisher reads version {}"


class Outbox:
    """Used by the publisher's thread alone."""

    def __init__(self, path: Path) -> None:
        """Open it, or make it.

        Raises:
            OutboxFailed: Another process uses it, or it is no outbox, or can't be written.
        """
        self._path = path
        try:  # private: events tell what users do
            self._connection = open_durable(path, _STEPS, newer=_NEWER, private=True, exclusive=True)
        except OSError as error:
            raise OutboxFailed(f"the outbox {path} can't be opened: {error}") from None
        except (sqlite3.Error, ValueError) as error:
            busy = isinstance(error, sqlite3.OperationalError) and "locked" in str(error)
            why = "is in use by another publisher" if busy else f"can't be used: {error}"
            raise OutboxFailed(f"the outbox {path} {why}") from None

    def write(self, added: Sequence[tuple[str, bytes]], settled: Sequence[str]) -> None:
        """Keep events (id and frame), forget others, in one commit; all of it or nothing.

        Raises:
            OutboxFailed: Nothing was written.
        """
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany("DELETE FROM events WHERE event_id = ?", [(each,) for each in settled])
            self._connection.executemany("INSERT INTO events(event_id, frame) VALUES (?, ?)", added)
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            if self._connection.in_transaction:
                self._connection.rollback()
            raise OutboxFailed(f"the outbox {self._path} can't be written: {error}") from None

    def frame(self, event_id: str) -> bytes:
        """An event as it is sent, its type byte first.

        Raises:
            OutboxFailed: It can't be read, or is gone.
        """
        try:
            row = self._connection.execute("SELECT frame FROM events WHERE event_id = ?", (event_id,)).fetchone()
        except sqlite3.Error as error:
            raise OutboxFailed(f"the outbox {self._path} can't be read: {error}") from None
        if row is None:
            raise OutboxFailed(f"the outbox {self._path} has lost event {event_id!r}")
        return bytes(row[0])

    def events(self) -> Iterator[str]:
        """The ids of all events, in the order in which they were added."""
        return (row[0] for row in self._connection.execute("SELECT event_id FROM events ORDER BY number"))

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

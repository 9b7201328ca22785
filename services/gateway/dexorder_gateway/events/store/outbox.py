"""Outbox: an SQLite file (WAL, ``synchronous=FULL``). Writes are on disk when they return.

For one thread, which writes everything that belongs together in one transaction. `EventLog` reads the file from other
threads. The file contains contacts, so only its owner may read it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import orjson
import structlog

from dexorder_common.model.cursor import Cursor, StreamStart, start_of_stream
from dexorder_common.model.user_events import Channel
from dexorder_common.storage.durable_sqlite import open_durable, turns
from dexorder_common.storage.state_checks import Generation, describe_loss
from dexorder_gateway.events.delivery.changes import DeliveryChanges, Final, QueuedRow
from dexorder_gateway.events.model import Contacts, EventKey
from dexorder_gateway.events.store import schema

log = structlog.get_logger(__name__)
MAX_FORGOTTEN = 500
MAX_SEQUENCE = 2**63 - 1
_ROWS_AT_ONCE = 256, 16, 1
"""Rows of one statement, largest first; SQLite takes 32,766 values, and keeps few statements prepared."""
Written = Callable[[], bool]
"""Returns whether the write has ended."""
_NEWER = "it has schema version {}; this gateway reads up to version {}"


@dataclass(frozen=True, slots=True)
class Known:
    """Event that was accepted before; ``final`` is None while it is queued."""

    body: bytes
    final: Final | None


class EventOutbox:
    """Open outbox.

    Attributes:
        epoch: Identifies the sequences of this file and of its copies; another file has another epoch.
    """

    def __init__(self, db: sqlite3.Connection, writing: Executor, generation: Generation | None = None) -> None:
        """Use an open file, and a thread that writes while its own does something else; see `open_outbox`.

        Args:
            generation: Keeps the number of the last event that was accepted outside of the file as well.
        """
        self._db = db
        self._generation = generation
        self.turn = turns()
        """Held while this connection writes; another one that checkpoints holds it, too."""
        self._writing = writing
        (self.epoch,) = db.execute("SELECT value FROM meta WHERE name = 'epoch'").fetchone()

    def close(self) -> None:
        """Close the file."""
        self._writing.shutdown()
        self._db.close()
        if self._generation is not None:
            self._generation.close()

    def queued(self) -> Iterator[QueuedRow]:
        """Return all queued events, in the order in which they were accepted."""
        sql = f"SELECT {schema.QUEUED_COLUMNS} FROM events WHERE status = 1 ORDER BY number"  # noqa: S608
        return map(schema.read_queued, self._db.execute(sql))

    def sequences(self) -> dict[str, int]:
        """Return the highest sequence that each user ever had."""
        kept = "SELECT user_id, max(sequence) AS sequence FROM events WHERE sequence IS NOT NULL GROUP BY user_id"
        sql = f"SELECT user_id, max(sequence) FROM ({kept} UNION ALL SELECT * FROM forgotten) GROUP BY user_id"  # noqa: S608
        return dict(self._db.execute(sql))

    def start_of(self, user_id: str, after: Cursor) -> StreamStart:
        """Return where a session starts that is to continue after a cursor in the log of a user."""
        place = user_id, min(after.sequence, MAX_SEQUENCE)
        known = self._db.execute("SELECT 1 FROM events WHERE user_id = ? AND sequence = ?", place).fetchone()
        (oldest,) = self._db.execute("SELECT min(sequence) FROM events WHERE user_id = ?", (user_id,)).fetchone()
        row = self._db.execute("SELECT sequence FROM forgotten WHERE user_id = ?", (user_id,)).fetchone()
        return start_of_stream(after, self.epoch, row[0] if row else 0, is_known=bool(known), oldest=oldest)

    def contacts(self) -> dict[str, Contacts]:
        """Return the contacts of all users that have some."""
        rows = self._db.execute("SELECT user_id, contacts FROM contacts")
        return {user_id: schema.read_contacts(text) for user_id, text in rows}

    def presence(self, now_ns: int) -> list[tuple[str, Channel, int]]:
        """Return user, channel, and until when they are active there."""
        rows = self._db.execute("SELECT user_id, channel, until_ns FROM presence WHERE until_ns > ?", (now_ns,))
        return [(user_id, Channel(channel), until_ns) for user_id, channel, until_ns in rows]

    def pauses(self, now_ns: int) -> list[tuple[str, Channel, int]]:
        """Return user, channel, and until when its provider, or that user's webhook, asked not to be called."""
        rows = self._db.execute(
            "SELECT user_id, channel, max(retry_at_ns) FROM attempts JOIN events USING (container, event_id)"
            " WHERE retry_at_ns > ? GROUP BY user_id, channel",
            (now_ns,),
        )
        return [(user_id, Channel(channel), until_ns) for user_id, channel, until_ns in rows]

    def known(self, keys: Iterable[EventKey]) -> dict[EventKey, Known]:
        """Return the events that are stored."""
        ids: dict[str, list[str]] = {}
        for key in keys:
            ids.setdefault(key.container, []).append(key.event_id)
        found = {}
        for container, event_ids in ids.items():
            rows = self._db.execute(
                "SELECT event_id, body, status, via, error, completed_ns FROM events"
                " WHERE container = ? AND event_id IN (SELECT value FROM json_each(?))",
                (container, orjson.dumps(event_ids).decode()),
            )
            for event_id, body, *end in rows:
                key = EventKey(container, event_id)
                found[key] = Known(body, schema.read_final(key, *end))
        return found

    def write(
        self,
        changes: DeliveryChanges,
        contacts: Mapping[str, Contacts] | None = None,
        presence: Iterable[tuple[str, Channel, int]] = (),
        meanwhile: Callable[[Written], None] | None = None,
    ) -> None:
        """Write the rows of a transaction; they are on disk when this returns.

        Args:
            meanwhile: Called while another thread writes; it should return once the write has ended, and must not use
                the outbox or change the rows.

        Raises:
            sqlite3.Error: The rows are not on disk.
        """
        contacts, presence = contacts or {}, list(presence)
        if meanwhile is None:
            self._write(changes, contacts, presence)
            return
        writing = self._writing.submit(self._write, changes, contacts, presence)
        try:
            meanwhile(writing.done)
        finally:
            writing.result()

    def _write(
        self,
        changes: DeliveryChanges,
        contacts: Mapping[str, Contacts],
        presence: Sequence[tuple[str, Channel, int]],
    ) -> None:
        with self._transaction() as db:
            _insert_accepted(db, list(map(schema.accept_row, changes.accepted)))
            db.executemany(schema.UPDATE, map(schema.update_row, changes.updated))
            db.executemany(schema.FINISH, map(schema.finish_row, changes.finals))
            db.executemany(schema.ATTEMPT, map(schema.attempt_row, changes.attempts))
            db.executemany(schema.SEE, [(seen.seen_ns, seen.user_id, seen.sequence) for seen in changes.seen])
            rows = [(user_id, schema.contacts_text(each)) for user_id, each in contacts.items()]
            db.executemany(schema.SET_CONTACTS, rows)
            db.executemany(schema.SET_PRESENCE, [(user, channel.value, until) for user, channel, until in presence])
        if changes.accepted and self._generation is not None:
            self._generation.note(last_number(self._db))

    def forget(self, ended_before_ns: int) -> int:
        """Delete at most `MAX_FORGOTTEN` events that ended before a time; return how many."""
        with self._transaction() as db:
            past = db.execute(
                "SELECT number, container, event_id, user_id, coalesce(sequence, 0) FROM events"
                " WHERE completed_ns < ? ORDER BY completed_ns LIMIT ?",
                (ended_before_ns, MAX_FORGOTTEN),
            ).fetchall()
            forgotten: dict[str, int] = {}
            for *_, user_id, sequence in past:
                forgotten[user_id] = max(forgotten.get(user_id, 0), sequence)
            db.executemany(
                "INSERT INTO forgotten VALUES (?, ?)"
                " ON CONFLICT DO UPDATE SET sequence = max(sequence, excluded.sequence)",
                [row for row in forgotten.items() if row[1]],
            )
            db.executemany("DELETE FROM attempts WHERE container = ? AND event_id = ?", [row[1:3] for row in past])
            db.executemany("DELETE FROM events WHERE number = ?", [row[:1] for row in past])
        return len(past)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self.turn:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                self._db.rollback()
                raise


def _insert_accepted(db: sqlite3.Connection, rows: Sequence[schema.Row]) -> None:
    """Insert rows in order, many by one statement: the caller's thread holds Python's lock between statements only."""
    first = 0
    for size in _ROWS_AT_ONCE:
        while len(rows) - first >= size:
            db.execute(schema.accept(size), list(chain.from_iterable(rows[first : first + size])))
            first += size


def last_number(db: sqlite3.Connection) -> int:
    """Return the number of the last event that was accepted; numbers are given once."""
    row = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'events'").fetchone()
    return int(row[0]) if row else 0


def open_outbox(path: Path) -> EventOutbox:
    """Open or create the file of an outbox, and say if it has lost events.

    Raises:
        OSError: The file can't be opened.
        ValueError: A newer gateway has written it.
        sqlite3.Error: It is not an outbox, or is damaged.
    """
    db = open_durable(path, schema.STEPS, newer=_NEWER, private=True, large_wal=True)
    try:
        generation = Generation(path)
        if loss := describe_loss(path, last_number(db), generation.known()):
            log.error(loss)
        return EventOutbox(db, ThreadPoolExecutor(1, "outbox"), generation)
    except BaseException:
        db.close()
        raise

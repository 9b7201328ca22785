"""The relay's SQLite database: its statements and queries. ``writer.py`` has the order in which they run.

Every batch is on disk before its future is done.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

import structlog

from dexorder_common.config import BadSettings
from dexorder_common.lake.coverage import Retraction
from dexorder_common.model.cursor import Cursor
from dexorder_common.model.dispatch_id import number_of
from dexorder_common.model.errors import Exhausted, InvalidRequest
from dexorder_common.model.history import IssuedDispatch, Notification, RequestRecord, RequestState
from dexorder_common.model.instrument import InstrumentList
from dexorder_common.storage.durable_sqlite import open_durable
from dexorder_common.storage.process_lock import sole_owner
from dexorder_common.storage.state_checks import Generation, describe_loss, restore_hint
from dexorder_relay.state.changes import StateChange
from dexorder_relay.state.history import HistoryState
from dexorder_relay.state.realtime_job import Registry
from dexorder_relay.store import triggers, writer
from dexorder_relay.store.changes import statements
from dexorder_relay.store.loading import fill_registry, fill_state, read_retractions
from dexorder_relay.store.logs import Log, advance_sequences, epoch_of, note_forgotten
from dexorder_relay.store.rows import Row, select
from dexorder_relay.store.schema import (
    COVERAGE_READ,
    DISPATCH,
    INSTRUMENTS,
    LAST_NUMBER,
    OUTCOME,
    RECORD,
    REQUEST,
    STEPS,
)
from dexorder_relay.store.writer import OnCommit, Writer, WriterThread, generation_of

log = structlog.get_logger(__name__)
T = TypeVar("T")
P = ParamSpec("P")
Query: TypeAlias = Callable[Concatenate[sqlite3.Connection, P], T]
OpenWriter: TypeAlias = Callable[[Path, OnCommit | None], Writer]
FORGOTTEN_AT_ONCE = 500
NO_SPACE = "the disk of the relay's database is full; repeat the call when it has space"
RETRY_SECONDS = 5.0
_FINISHED = RequestState.FINISHED
_OLDEST = "SELECT {0} FROM {1} WHERE {2} < ? ORDER BY {2}, sequence LIMIT ?"
_ENDED = _OLDEST.format("request_id", "requests", "completed_ns")
_STOPPED = _OLDEST.format("subscription_id", "subscriptions", "stopped_ns")
FORGET_REQUESTS = (
    note_forgotten(Log.NOTIFICATIONS, f"request_id IN ({_ENDED})"),
    f"DELETE FROM notifications WHERE request_id IN ({_ENDED})",  # noqa: S608
    f"DELETE FROM requests WHERE request_id IN ({_ENDED})",  # noqa: S608
)
"""Delete the oldest requests that ended before a time, at most a number of them; first their notifications, after the
largest sequence of these was noted."""
FORGET_SUBSCRIPTIONS = (
    f"DELETE FROM realtime_history WHERE subscription_id IN ({_STOPPED})",  # noqa: S608
    f"DELETE FROM subscriptions WHERE subscription_id IN ({_STOPPED})",  # noqa: S608
)
"""Delete the oldest subscriptions that were stopped before a time."""
FORGET_DISPATCHES = (
    "DELETE FROM dispatches WHERE number IN"
    " (SELECT number FROM dispatches WHERE job_id IS NULL AND issued_ns < ? ORDER BY issued_ns LIMIT ?)",
)
"""Delete the oldest dispatches without a job that were issued before a time."""
_NEWER = (
    "it has schema version {}, and this relay reads up to version {}; "
    "start the relay that wrote it, or name a new file, for which coverage is read from its table"
)


def open_file(path: Path, on_commit: OnCommit | None) -> Writer:
    """Open the writer of a file, which is created or brought to the current schema, and say if it has lost records."""
    connection, generation = open_durable(path, STEPS, newer=_NEWER), Generation(path)
    known = generation.known()
    if loss := describe_loss(path, generation_of(connection), known):
        log.error(loss)
    return WriterThread(connection, on_commit, generation)


class Store:
    """Opened in the event loop's thread; ``close`` writes the queued changes and ends the writer."""

    def __init__(
        self,
        path: Path,
        on_commit: OnCommit | None = None,
        now_ns: int | None = None,
        *,
        open_writer: OpenWriter = open_file,
    ) -> None:
        """Open a file; ``now_ns`` is the time at which sequences continue, the system's by default."""
        self._writer = open_writer(path, on_commit)
        connection = self._writer.connection
        with connection:
            advance_sequences(connection, time.time_ns() if now_ns is None else now_ns)
        self.epoch = epoch_of(connection)
        self.failed, self.full, self.space = self._writer.failed, self._writer.full, self._writer.space

    def check_space(self) -> None:
        """Raise Exhausted while the disk is full, before something is changed that could not be stored."""
        if self.full.is_set():
            raise Exhausted(NO_SPACE, retry_seconds=RETRY_SECONDS)

    @asynccontextmanager
    async def in_time(self) -> AsyncIterator[None]:
        """Raise Exhausted if the block still waits `writer.FULL_SECONDS` after the disk was found full.

        What it has given to ``commit`` or ``write`` is written later. The block ends as if its call was cancelled.
        """
        timeout = asyncio.timeout(writer.FULL_SECONDS if self.full.is_set() else None)
        try:
            async with timeout:
                self._writer.timeouts.add(timeout)
                yield
        except TimeoutError:
            if timeout.expired():
                raise Exhausted(NO_SPACE, retry_seconds=RETRY_SECONDS) from None
            raise
        finally:
            self._writer.timeouts.discard(timeout)

    async def durable(self, saved: asyncio.Future[T]) -> T:
        """Wait for what ``commit`` has returned; Exhausted if the disk is full, where it is written later."""
        full = asyncio.ensure_future(self.full.wait())
        try:
            await asyncio.wait((saved, full), return_when=asyncio.FIRST_COMPLETED)
        finally:
            full.cancel()
        if not saved.done():
            self.check_space()
        return await asyncio.shield(saved)

    def commit(self, changes: Iterable[StateChange]) -> asyncio.Future[None]:
        """Write changes as they are now; the future is done when they are on disk, in the order of the calls."""
        made = statements(changes)

        def run(connection: sqlite3.Connection) -> None:
            for sql, values in made:
                connection.execute(sql, values)

        return self._writer.give(run)

    def forget(self, steps: Sequence[str], before_ns: int) -> asyncio.Future[int]:
        """Run the steps of ``FORGET_...``; return how many rows the last one has deleted, at most FORGOTTEN_AT_ONCE."""
        values = (before_ns, FORGOTTEN_AT_ONCE)
        return self._writer.give(lambda connection: [connection.execute(sql, values).rowcount for sql in steps][-1])

    def forget_trigger_events(self, reported_before_ns: int) -> asyncio.Future[int]:
        """Delete events of triggers that were reported before a time, as ``forget`` does, and old deletions."""
        return self.write(triggers.forget, reported_before_ns, FORGOTTEN_AT_ONCE)

    def read(self, query: Query[P, T], *values: P.args, **named: P.kwargs) -> asyncio.Future[T]:
        """Run a query that does not change the database."""
        return self._writer.give(lambda connection: query(connection, *values, **named), writes=False)

    def write(self, change: Query[P, T], *values: P.args, **named: P.kwargs) -> asyncio.Future[T]:
        """Run a change that reads before it writes, in one piece; its result is on disk when the future is done.

        An error that it raises is fatal, like any error of a write.
        """
        return self._writer.give(lambda connection: change(connection, *values, **named))

    async def close(self) -> None:
        """Write the remaining batches, then close the file."""
        await self._writer.close()

    async def record(self, request_id: str) -> RequestRecord | None:
        """Return the record of an ended request."""
        rows = await self._rows("SELECT * FROM requests WHERE request_id = ? AND state = ?", request_id, _FINISHED)
        return _read_record(rows[0]) if rows else None

    async def records(self, request_ids: Iterable[str]) -> list[RequestRecord]:
        """Return the records of those requests that have ended."""
        sql = "SELECT * FROM requests WHERE state = ? AND request_id IN (SELECT value FROM json_each(?))"
        return [_read_record(row) for row in await self._rows(sql, _FINISHED, json.dumps(list(request_ids)))]

    async def page(
        self, client_id: str, state: RequestState | None, before: int | None, size: int
    ) -> list[tuple[int, str, RequestRecord | None]]:
        """Return requests newest first: sequence, request_id, and the record if the request has ended."""
        where: dict[str, Any] = {"sequence < ?": 2**63 - 1 if before is None else before}
        if client_id:
            where["client_id = ?"] = client_id
        if state is not None:
            where["state = ?"] = state
        sql = f"SELECT * FROM requests WHERE {' AND '.join(where)} ORDER BY sequence DESC LIMIT ?"  # noqa: S608
        rows = await self._rows(sql, *where.values(), size)
        return [
            (row["sequence"], row["request_id"], _read_record(row) if row["state"] == _FINISHED else None)
            for row in rows
        ]

    async def notifications(self, topic: str, after: int, limit: int) -> list[Notification]:
        """Return a topic's notifications after a sequence, in order."""
        sql = (
            "SELECT r.*, n.sequence AS place FROM notifications n JOIN requests r USING (request_id)"
            " WHERE n.topic = ? AND n.sequence > ? ORDER BY n.sequence LIMIT ?"
        )
        return [self._read_notification(topic, row) for row in await self._rows(sql, topic, after, limit)]

    def _read_notification(self, topic: str, row: Row) -> Notification:
        request, cursor = REQUEST.read(row), Cursor(self.epoch, row["place"])
        return Notification(topic, cursor, request, OUTCOME.read(row), request.dataset.table)

    async def instruments(self, venue: str) -> InstrumentList | None:
        """Return the instruments of a venue; None before the first report."""
        rows = await self._rows("SELECT * FROM instruments WHERE venue = ?", venue)
        return INSTRUMENTS.read(rows[0]) if rows else None

    async def retractions(self) -> set[Retraction]:
        """Return the retractions that the stored coverage reflects."""
        return await self.read(lambda connection: set(read_retractions(connection)))

    async def dispatches(self, dispatch_ids: Iterable[str]) -> list[IssuedDispatch]:
        """Return those dispatches that were issued and are not forgotten."""
        wanted = set(dispatch_ids)
        numbers = json.dumps([number for dispatch_id in wanted if (number := _number(dispatch_id))])
        rows = await self._rows("SELECT * FROM dispatches WHERE number IN (SELECT value FROM json_each(?))", numbers)
        return [found for row in rows if (found := DISPATCH.read(row)).dispatch_id in wanted]

    async def named_snapshots(self, since_ns: int, after: int | None, limit: int) -> list[tuple[int, int]]:
        """Return snapshots that outcomes since a time name, with the time of the last one, by id, after one."""
        sql = (
            "SELECT snapshot_id, max(completed_ns) AS last_ns FROM requests"
            " WHERE completed_ns >= ? AND snapshot_id > ? GROUP BY snapshot_id ORDER BY snapshot_id LIMIT ?"
        )
        first = -(2**63) if after is None else after
        return [(row["snapshot_id"], row["last_ns"]) for row in await self._rows(sql, since_ns, first, limit)]

    async def last_number(self) -> int:
        """Return the largest number of a dispatch or of a retraction; 0 without any."""
        sql = "SELECT value FROM meta WHERE name = ? UNION ALL SELECT max(dispatch) FROM retractions"
        return max((row["value"] or 0 for row in await self._rows(sql, LAST_NUMBER)), default=0)

    async def coverage_read_ns(self) -> int:
        """Return the time at which coverage was last read from its table; 0 if never."""
        rows = await self._rows("SELECT value FROM meta WHERE name = ?", COVERAGE_READ)
        return int(rows[0]["value"]) if rows else 0

    def _rows(self, sql: str, *values: Any) -> asyncio.Future[list[dict[str, Any]]]:
        return self.read(lambda connection: list(select(connection, sql, *values)))

    async def load(self, state: HistoryState, registry: Registry, *, now_ns: int) -> None:
        """Fill an empty state and registry; dispatches that are out keep their ids and get a full lease."""
        await self.read(fill_state, state, now_ns)
        await self.read(fill_registry, registry, state, now_ns)


@asynccontextmanager
async def open_store(path: Path, on_commit: OnCommit | None = None, now_ns: int | None = None) -> AsyncIterator[Store]:
    """Open the store of a file for this process alone, until the block ends.

    Args:
        on_commit: Called from the store's thread after each group commit: number of batches, seconds.
        now_ns: Time at which sequences continue; the system's by default.

    Raises:
        BadSettings: Another relay uses the file, or it is not a relay's database.
    """
    with sole_owner(path, variable="DEXORDER_RELAY_DB", owner="relay", harm="dispatch its jobs"):
        try:
            store = Store(path, on_commit, now_ns)
        except (OSError, ValueError, sqlite3.Error) as error:
            hint = f"; {restore_hint(path)}" if isinstance(error, sqlite3.DatabaseError) else ""
            raise BadSettings(f"DEXORDER_RELAY_DB: {path} can't be used: {error}{hint}") from error
        try:
            yield store
        finally:
            await store.close()


def _read_record(row: Row) -> RequestRecord:
    """Return the record in the row of an ended request."""
    return RECORD.read(row, request=REQUEST.read(row), outcome=OUTCOME.read(row))


def _number(dispatch_id: str) -> int | None:
    try:
        return number_of(dispatch_id)
    except InvalidRequest:
        return None

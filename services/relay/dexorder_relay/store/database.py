"""The relay's SQLite database: one writer thread, and every batch on disk before its future is done.

WAL with ``synchronous=FULL``: a commit is an fsync, so batches that arrive during one share the next (group commit).
Batches are applied in the order in which they were given. Reads use the same thread and see all earlier batches.
A write that fails leaves memory ahead of the disk, so it is fatal: ``failed`` is set and nothing more is written.
"""

from __future__ import annotations

import asyncio
import json
import queue
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from dexorder_common.config import BadSettings
from dexorder_common.lake.coverage import Order, Retraction
from dexorder_common.model.dispatch_id import number_of
from dexorder_common.model.errors import InvalidRequest, Unavailable
from dexorder_common.model.history import IssuedDispatch, Notification, RequestRecord, RequestState
from dexorder_common.model.instrument import InstrumentList, Series
from dexorder_common.model.time_range import TimeRange
from dexorder_common.rpc.streams import retrieved
from dexorder_common.storage.durable_sqlite import open_durable
from dexorder_common.storage.process_lock import sole_owner
from dexorder_relay.state.history import HistoryState
from dexorder_relay.state.job import Job, Phase
from dexorder_relay.state.leases import SlotKind
from dexorder_relay.state.provisional import Absence
from dexorder_relay.state.realtime_registry import Registry
from dexorder_relay.state.request import LiveRequest
from dexorder_relay.store import realtime, schema, triggers
from dexorder_relay.store.schema import (
    COVERAGE_READ,
    FORGET,
    FORGET_DISPATCHES,
    FORGET_SUBSCRIPTIONS,
    LAST_NUMBER,
    REQUEST_COLUMNS,
    Batch,
    job_owner,
    read_instruments,
    read_outcome,
    read_record,
    read_request,
)

T = TypeVar("T")
OnCommit = Callable[[int, float], None]
MAX_GROUP_SIZE = 256
FORGOTTEN_AT_ONCE = 500
_FINISHED = RequestState.FINISHED.number
_NEWER = "it has schema version {}, and this relay reads up to version {}"


@dataclass(frozen=True)
class _Work:
    run: Callable[[sqlite3.Connection], Any]
    done: asyncio.Future[Any]
    writes: bool


class Store:
    """Opened in the event loop's thread; ``close`` writes what was given and ends the writer thread."""

    def __init__(self, path: Path, on_commit: OnCommit | None = None) -> None:
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._connection = open_durable(path, schema.STEPS, newer=_NEWER)
        self._broken: Exception | None = None
        self._on_commit = on_commit
        self._thread = threading.Thread(target=self._write, name="relay-store", daemon=True)
        self._thread.start()
        self._closed = False

    def commit(self, batch: Batch) -> asyncio.Future[None]:
        """Write a batch; the future is done when it is on disk. The order of calls is the order on disk."""

        def run(connection: sqlite3.Connection) -> None:
            for sql, values in batch.statements:
                connection.execute(sql, values)

        return self._give(run)

    def forget(self, completed_before_ns: int) -> asyncio.Future[int]:
        """Delete requests that ended before a time; return their number, at most FORGOTTEN_AT_ONCE."""
        values = (completed_before_ns, FORGOTTEN_AT_ONCE)
        return self._give(lambda connection: [connection.execute(sql, values).rowcount for sql in FORGET][-1])

    def forget_subscriptions(self, stopped_before_ns: int) -> asyncio.Future[int]:
        """Delete subscriptions that were stopped before a time, as ``forget`` does."""
        values = (stopped_before_ns, FORGOTTEN_AT_ONCE)
        return self._give(
            lambda connection: [connection.execute(sql, values).rowcount for sql in FORGET_SUBSCRIPTIONS][-1]
        )

    def forget_dispatches(self, issued_before_ns: int) -> asyncio.Future[int]:
        """Delete dispatches without a job that were issued before a time, as ``forget`` does."""
        values = (issued_before_ns, FORGOTTEN_AT_ONCE)
        return self._give(lambda connection: connection.execute(FORGET_DISPATCHES, values).rowcount)

    def forget_trigger_events(self, reported_before_ns: int) -> asyncio.Future[int]:
        """Delete events of triggers that were reported before a time, as ``forget`` does, and old deletions."""
        return self._give(lambda connection: triggers.forget(connection, reported_before_ns, FORGOTTEN_AT_ONCE))

    def read(self, query: Callable[[sqlite3.Connection], T]) -> asyncio.Future[T]:
        """Run a query that changes nothing."""
        return self._give(query, writes=False)

    def write(self, change: Callable[[sqlite3.Connection], T]) -> asyncio.Future[T]:
        """Run a change that reads before it writes, as one; its result is on disk when the future is done.

        An error that it raises is fatal, as that of any write.
        """
        return self._give(change)

    def _give(self, run: Callable[[sqlite3.Connection], Any], *, writes: bool = True) -> asyncio.Future[Any]:
        done = self._loop.create_future()
        done.add_done_callback(retrieved)
        if self.failed.done() or self._closed:
            done.set_exception(Unavailable("the relay's store is closed"))
        else:
            self._queue.put(_Work(run, done, writes))
        return done

    async def close(self) -> None:
        """Write the remaining batches, then close the file."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
            await asyncio.to_thread(self._thread.join)

    def _write(self) -> None:
        closing = False
        while not closing:
            group = [self._queue.get()]
            while len(group) < MAX_GROUP_SIZE:
                try:
                    group.append(self._queue.get_nowait())
                except queue.Empty:
                    break
            closing = None in group
            self._run([work for work in group if work is not None])
        self._connection.close()

    def _run(self, group: list[_Work]) -> None:
        try:
            if self._broken is not None:
                raise self._broken
            start = time.perf_counter()
            self._connection.execute("BEGIN IMMEDIATE")
            results = [work.run(self._connection) for work in group]
            self._connection.execute("COMMIT")
            if self._on_commit and (writes := sum(work.writes for work in group)):
                self._on_commit(writes, time.perf_counter() - start)
        except Exception as error:  # whatever it is, memory is ahead of the disk now
            self._broken = error
            self._connection.rollback()
            self._call_loop(self._fail, error, group)
        else:
            self._call_loop(_resolve, group, results)

    def _call_loop(self, callback: Callable[..., None], *values: Any) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, *values)

    def _fail(self, error: Exception, group: list[_Work]) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)
            self.failed.add_done_callback(retrieved)
        for work in group:
            if not work.done.done():
                work.done.set_exception(Unavailable("the relay's store can't be written"))

    async def record(self, request_id: str) -> RequestRecord | None:
        """Return the record of an ended request."""
        rows = await self._records("request_id = ? AND state = ?", (request_id, _FINISHED), 1)
        return read_record(rows[0]) if rows else None

    async def page(
        self, client_id: str, state: RequestState | None, before: int | None, size: int
    ) -> list[tuple[int, str, RequestRecord | None]]:
        """Return requests newest first: sequence, request_id, and the record of those that have ended."""
        where: dict[str, Any] = {"sequence < ?": 2**63 - 1 if before is None else before}
        if client_id:
            where["client_id = ?"] = client_id
        if state is not None:
            where["state = ?"] = state.number
        rows = await self._records(" AND ".join(where), tuple(where.values()), size)
        return [(row[0], row[1], read_record(row) if row[10] == _FINISHED else None) for row in rows]

    def _records(self, where: str, values: tuple[Any, ...], size: int) -> asyncio.Future[list[tuple[Any, ...]]]:
        sql = f"SELECT {REQUEST_COLUMNS} FROM requests WHERE {where} ORDER BY sequence DESC LIMIT ?"  # noqa: S608
        return self.read(lambda connection: connection.execute(sql, (*values, size)).fetchall())

    async def notifications(self, topic: str, after: int, limit: int) -> list[Notification]:
        """Return a topic's notifications after a cursor, in order."""
        columns = ", ".join(f"r.{name}" for name in REQUEST_COLUMNS.split(", "))
        sql = (
            f"SELECT {columns}, n.cursor FROM notifications n JOIN requests r USING (request_id)"  # noqa: S608
            " WHERE n.topic = ? AND n.cursor > ? ORDER BY n.cursor LIMIT ?"
        )
        rows = await self.read(lambda connection: connection.execute(sql, (topic, after, limit)).fetchall())
        return [_read_notification(topic, row) for row in rows]

    async def instruments(self, venue: str) -> InstrumentList | None:
        """Return the instruments of a venue; None while none were reported."""
        sql = "SELECT exchange, fetched_ns, markets FROM markets WHERE exchange = ?"
        row = await self.read(lambda connection: connection.execute(sql, (venue,)).fetchone())
        return read_instruments(*row) if row else None

    async def retractions(self) -> set[Retraction]:
        """Return the retractions that the stored coverage reflects."""
        return await self.read(lambda connection: set(read_retractions(connection)))

    async def dispatches(self, dispatch_ids: Iterable[str]) -> list[IssuedDispatch]:
        """Return those dispatches that were issued and are not forgotten."""
        wanted = set(dispatch_ids)
        numbers = json.dumps([number for dispatch_id in wanted if (number := _number(dispatch_id))])
        sql = (
            "SELECT job_id, ticker, period_seconds, dataset, start_ns, end_ns, realtime FROM dispatches"
            " WHERE number IN (SELECT value FROM json_each(?))"
        )
        rows = await self.read(lambda connection: connection.execute(sql, (numbers,)).fetchall())
        return [
            IssuedDispatch(dispatch_id, Series.decode(*series), TimeRange(start_ns, end_ns), bool(realtime))
            for dispatch_id, *series, start_ns, end_ns, realtime in rows
            if dispatch_id in wanted
        ]

    async def named_snapshots(self, since_ns: int, limit: int) -> list[tuple[int, int]]:
        """Return the snapshots that outcomes since a time name, with the time of the last one, by that time."""
        sql = (
            "SELECT snapshot_id, max(completed_ns) AS last_ns FROM requests"
            " WHERE completed_ns >= ? AND snapshot_id IS NOT NULL GROUP BY snapshot_id ORDER BY last_ns DESC LIMIT ?"
        )
        rows = await self.read(lambda connection: connection.execute(sql, (since_ns, limit)).fetchall())
        return rows[::-1]

    async def last_number(self) -> int:
        """Return the largest number of a dispatch or of a retraction; 0 if there is none."""
        sql = "SELECT value FROM meta WHERE name = ? UNION ALL SELECT max(number) FROM retractions"
        found = await self.read(lambda connection: connection.execute(sql, (LAST_NUMBER,)).fetchall())
        return max((number or 0 for (number,) in found), default=0)

    async def coverage_read_ns(self) -> int:
        """Return the time at which coverage was last read from its table; 0 if never."""
        sql = "SELECT value FROM meta WHERE name = ?"
        found = await self.read(lambda connection: connection.execute(sql, (COVERAGE_READ,)).fetchone())
        return int(found[0]) if found else 0

    async def load(self, state: HistoryState, registry: Registry, *, now_ns: int) -> None:
        """Fill an empty state and registry; dispatches that are out keep their ids and get a full lease."""
        await self.read(lambda connection: fill_state(connection, state, now_ns))
        await self.read(lambda connection: fill_registry(connection, registry, state, now_ns))


@asynccontextmanager
async def open_store(path: Path, on_commit: OnCommit | None = None) -> AsyncIterator[Store]:
    """Open the store of a file for this process alone, until the block ends.

    Args:
        on_commit: Called from the store's thread after each group commit: number of batches, seconds.

    Raises:
        BadSettings: Another relay uses the file, or it is not a relay's database.
    """
    with sole_owner(path, variable="DEXORDER_RELAY_DB", owner="relay", harm="dispatch its jobs"):
        try:
            store = Store(path, on_commit)
        except (OSError, ValueError, sqlite3.Error) as error:
            raise BadSettings(f"DEXORDER_RELAY_DB: {path} can't be used: {error}") from error
        try:
            yield store
        finally:
            await store.close()


def fill_state(connection: sqlite3.Connection, state: HistoryState, now_ns: int) -> None:
    """Fill an empty state from the tables."""
    ranges: dict[str, list[tuple[str, TimeRange]]] = {}
    for owner, kind, start_ns, end_ns in connection.execute("SELECT owner, kind, start_ns, end_ns FROM ranges"):
        ranges.setdefault(owner, []).append((kind, TimeRange(start_ns, end_ns)))
    for owner, parts in ranges.items():
        if (series := schema.parse_series_owner(owner)) is not None:
            _add_ranges(state.coverage[series], parts)
    for ticker, period, start_ns, end_ns, *times in connection.execute("SELECT * FROM provisional"):
        state.provisional.load(Series.decode(ticker, period), Absence(TimeRange(start_ns, end_ns), *times))
    for each in read_retractions(connection):
        state.retractions[each.series].add(each.span, each.order)
    unfinished = f"SELECT {REQUEST_COLUMNS} FROM requests WHERE state != ? ORDER BY sequence"  # noqa: S608
    for row in connection.execute(unfinished, (_FINISHED,)):
        live = LiveRequest(read_request(row), row[8], row[9], now_ns, RequestState.from_number(row[10]), trace=row[24])
        state.requests[live.request.request_id] = live
    for row in connection.execute("SELECT * FROM jobs ORDER BY job"):
        job = _read_job(connection, row)
        _add_ranges(job, ranges.get(job_owner(job.id), ()))
        for request_id in job.requests:
            state.requests[request_id].jobs.add(job.id)
        state.add_job(job)
        state.next_job = job.id + 1
        if job.phase is Phase.OPEN and job.dispatch_id is None:
            state.leases.queue(job.id, job.series.exchange, trace=job.trace)
        elif job.phase is Phase.OPEN and job.dispatch_id is not None:
            state.leases.resume(
                job.id, job.series.exchange, job.dispatch_id, trace=job.trace, produced=job.produced, now_ns=now_ns
            )


def fill_registry(connection: sqlite3.Connection, registry: Registry, state: HistoryState, now_ns: int) -> None:
    """Fill an empty registry from the tables."""
    for job in realtime.read_jobs(connection):
        registry.add_job(job)
        state.next_job = max(state.next_job, job.id + 1)
        if job.dispatch_id is None:
            registry.leases.queue(job.id, job.exchange, SlotKind.REALTIME)
        else:
            registry.leases.resume(
                job.id, job.exchange, job.dispatch_id, kind=SlotKind.REALTIME, produced=False, now_ns=now_ns
            )
    for started in realtime.read_subscriptions(connection):
        registry.subscriptions[started.subscription.subscription_id] = started
        if (found := registry.job_for(started.subscription.ticker)) is not None:
            found.subscriptions[started.subscription.subscription_id] = started
    registry.last_sequence = realtime.last_sequence(connection)
    registry.history = {part.request_id: part for part in realtime.read_unsubmitted(connection)}


def read_retractions(connection: sqlite3.Connection) -> Iterator[Retraction]:
    """Yield every retraction in the file."""
    sql = "SELECT ticker, period_seconds, dataset, start_ns, end_ns, number, retracted_ns FROM retractions"
    for *series, start_ns, end_ns, number, retracted_ns in connection.execute(sql):
        yield Retraction(Series.decode(*series), TimeRange(start_ns, end_ns), Order(number, retracted_ns))


def _read_notification(topic: str, row: tuple[Any, ...]) -> Notification:
    request = read_request(row)
    return Notification(topic, row[-1], request, read_outcome(row), request.dataset.table)


def _add_ranges(target: object, parts: Iterable[tuple[str, TimeRange]]) -> None:
    for kind, part in parts:
        getattr(target, kind).add(part)


def _read_job(connection: sqlite3.Connection, row: tuple[Any, ...]) -> Job:
    job_id, request_id, client_id, ticker, period, start_ns, end_ns, phase, error, failures_in_a_row = row[:10]
    dispatch_id, produced, sent_start_ns, sent_end_ns, row_count, taken_ns, again, trace, dataset = row[10:]
    waiting = connection.execute("SELECT request_id FROM attachments WHERE job = ?", (job_id,))
    dispatches = connection.execute("SELECT job_id FROM dispatches WHERE job = ?", (job_id,))
    return Job(
        job_id,
        request_id,
        client_id or "",
        Series.decode(ticker, period, dataset),
        TimeRange(start_ns, end_ns),
        Phase(phase),
        error,
        failures_in_a_row,
        dispatch_id,
        bool(produced),
        None if sent_start_ns is None else TimeRange(sent_start_ns, sent_end_ns),
        row_count=row_count,
        taken_ns=taken_ns,
        requests={request_id for (request_id,) in waiting},
        dispatch_ids={dispatch_id for (dispatch_id,) in dispatches},
        again=bool(again),
        trace=trace,
    )


def _number(dispatch_id: str) -> int | None:
    try:
        return number_of(dispatch_id)
    except InvalidRequest:
        return None


def _resolve(group: list[_Work], results: list[Any]) -> None:
    for work, result in zip(group, results, strict=True):
        if not work.done.done():
            work.done.set_result(result)

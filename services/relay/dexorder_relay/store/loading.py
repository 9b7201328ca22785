"""State of the relay as its database has it: all of it at the start, and subscriptions by their ids."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator

from dexorder_common.lake.coverage import Retraction
from dexorder_common.model.history import RequestState
from dexorder_common.model.realtime import Knowledge, StartedSubscription
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.udf import UdfRegistration
from dexorder_relay.state.history import HistoryState
from dexorder_relay.state.job import Job, Phase
from dexorder_relay.state.realtime_job import HistoryPart, RealtimeJob, Registry
from dexorder_relay.state.workers import SlotKind
from dexorder_relay.store.rows import Row, select
from dexorder_relay.store.schema import (
    ABSENCE,
    HISTORY_PART,
    JOB,
    KNOWLEDGE,
    LIVE,
    POSITION,
    REALTIME_JOB,
    REQUEST,
    RETRACTION,
    SERIES,
    SUBSCRIPTION,
    UDF,
    owner_of,
    series_of,
)


def fill_state(connection: sqlite3.Connection, state: HistoryState, now_ns: int) -> None:
    """Fill an empty state from the tables."""
    ranges: defaultdict[str, list[tuple[str, TimeRange]]] = defaultdict(list)
    for owner, kind, start_ns, end_ns in connection.execute("SELECT owner, kind, start_ns, end_ns FROM ranges"):
        ranges[owner].append((kind, TimeRange(start_ns, end_ns)))
    for row in select(connection, "SELECT * FROM provisional"):
        state.provisional.load(SERIES.read(row), ABSENCE.read(row))
    for each in read_retractions(connection):
        state.retractions[each.series].add(each.span, each.order)
    unfinished = "SELECT * FROM requests WHERE state != ? ORDER BY sequence"
    for row in select(connection, unfinished, RequestState.FINISHED):
        live = LIVE.read(row, request=REQUEST.read(row), progress_ns=now_ns)
        state.requests[live.request.request_id] = live
    for row in select(connection, "SELECT * FROM jobs ORDER BY id"):
        _add_job(state, _read_job(connection, row), ranges, now_ns)
    for owner, parts in ranges.items():
        if (series := series_of(owner)) is not None:
            _add_ranges(state.coverage[series], parts)


def _add_job(state: HistoryState, job: Job, ranges: dict[str, list[tuple[str, TimeRange]]], now_ns: int) -> None:
    _add_ranges(job, ranges.get(owner_of(job.id), ()))
    for request_id in job.requests:
        state.requests[request_id].jobs.add(job.id)
    state.add_job(job)
    state.next_job = job.id + 1
    exchange = job.series.exchange
    if job.phase is Phase.OPEN and job.dispatch_id is None:
        state.leases.queue(job.id, exchange, trace=job.trace)
    elif job.phase is Phase.OPEN and job.dispatch_id is not None:
        state.leases.resume(job.id, exchange, job.dispatch_id, trace=job.trace, produced=job.produced, now_ns=now_ns)


def _read_job(connection: sqlite3.Connection, row: Row) -> Job:
    waiting = connection.execute("SELECT request_id FROM attachments WHERE job_id = ?", (row["id"],))
    dispatches = connection.execute("SELECT dispatch_id FROM dispatches WHERE job_id = ?", (row["id"],))
    return JOB.read(row, requests={each for (each,) in waiting}, dispatch_ids={each for (each,) in dispatches})


def _add_ranges(target: object, parts: Iterable[tuple[str, TimeRange]]) -> None:
    for kind, part in parts:
        getattr(target, kind).add(part)


def read_retractions(connection: sqlite3.Connection) -> Iterator[Retraction]:
    """Yield every retraction in the file."""
    return map(RETRACTION.read, select(connection, "SELECT * FROM retractions"))


def read_udfs(connection: sqlite3.Connection) -> list[UdfRegistration]:
    """Return all registrations of UDFs."""
    return [UDF.read(row) for row in select(connection, "SELECT * FROM udfs ORDER BY name")]


def find_subscription(connection: sqlite3.Connection, subscription_id: str) -> tuple[StartedSubscription, bool] | None:
    """Return a subscription and whether it was stopped; None if it was never accepted, or is forgotten."""
    rows = select(connection, "SELECT * FROM subscriptions WHERE subscription_id = ?", subscription_id)
    row = next(rows, None)
    return (SUBSCRIPTION.read(row), row["stopped_ns"] is not None) if row else None


def read_history_ids(connection: sqlite3.Connection, subscription_ids: list[str], limit: int) -> dict[str, list[str]]:
    """Return the requests of submitted ranges by subscription, the latest ``limit`` of each, by time."""
    sql = (
        "SELECT request_id FROM realtime_history WHERE subscription_id = ? AND submitted"
        " ORDER BY end_ns DESC, period_seconds LIMIT ?"
    )
    found = {each: connection.execute(sql, (each, limit)).fetchall() for each in subscription_ids}
    return {each: [request_id for (request_id,) in reversed(rows)] for each, rows in found.items()}


def read_parts(connection: sqlite3.Connection, where: str, *values: int) -> list[HistoryPart]:
    """Return the ranges that are fetched as history, by a condition on the columns."""
    rows = select(connection, f"SELECT * FROM realtime_history WHERE {where}", *values)  # noqa: S608 - from this folder
    return list(map(HISTORY_PART.read, rows))


def fill_registry(connection: sqlite3.Connection, registry: Registry, state: HistoryState, now_ns: int) -> None:
    """Fill an empty registry from the tables."""
    for job in read_realtime_jobs(connection):
        registry.add_job(job)
        state.next_job = max(state.next_job, job.id + 1)
        if job.dispatch_id is None:
            registry.leases.queue(job.id, job.exchange, SlotKind.REALTIME)
        else:
            registry.leases.resume(
                job.id, job.exchange, job.dispatch_id, kind=SlotKind.REALTIME, produced=False, now_ns=now_ns
            )
    for row in select(connection, "SELECT * FROM subscriptions WHERE stopped_ns IS NULL ORDER BY sequence"):
        started = SUBSCRIPTION.read(row)
        registry.subscriptions[started.subscription.subscription_id] = started
        if (found := registry.job_for(started.subscription.ticker)) is not None:
            found.subscriptions[started.subscription.subscription_id] = started
    last = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'subscriptions'").fetchone()
    registry.last_sequence = int(last[0]) if last else 0  # forgotten subscriptions count
    registry.history = {part.request_id: part for part in read_parts(connection, "NOT submitted")}


def read_realtime_jobs(connection: sqlite3.Connection) -> Iterator[RealtimeJob]:
    """Yield the realtime jobs with their positions, without their subscriptions."""
    for row in select(connection, "SELECT * FROM realtime_jobs ORDER BY id"):
        positions = select(connection, "SELECT * FROM realtime_positions WHERE job_id = ?", row["id"])
        known = next(select(connection, "SELECT * FROM realtime_knowledge WHERE job_id = ?", row["id"]), None)
        yield REALTIME_JOB.read(
            row,
            positions={each["period_seconds"]: POSITION.read(each) for each in positions},
            knowledge=KNOWLEDGE.read(known) if known else Knowledge(),
        )

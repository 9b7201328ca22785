"""State of the relay as its database has it at the start."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator

from dexorder_common.lake.coverage import Retraction
from dexorder_common.model.history import RequestState
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.udf import UdfRegistration
from dexorder_relay.state.history import HistoryState
from dexorder_relay.state.job import Job, Phase
from dexorder_relay.store.rows import Row, select
from dexorder_relay.store.schema import (
    ABSENCE,
    JOB,
    LIVE,
    REQUEST,
    RETRACTION,
    SERIES,
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

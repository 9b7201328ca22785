"""Realtime subscriptions and jobs in the relay's database: statements, and what a start reads."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from typing import Any

from dexorder_common.model.dispatch_id import number_of
from dexorder_common.model.periods import TRADES_PERIOD
from dexorder_common.model.realtime import RealtimeParams, StartedSubscription, Subscription
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import MAX_TIME_NS
from dexorder_relay.state.realtime_job import RealtimeJob, SeriesPosition
from dexorder_relay.state.realtime_registry import HistoryPart
from dexorder_relay.store.schema import LAST_NUMBER, Batch

_SUBSCRIPTION = "subscription_id, ticker, params, since_ns, client_id, started_ns, sequence"


def add_subscription(batch: Batch, started: StartedSubscription) -> None:
    """Store a new subscription."""
    subscription = started.subscription
    batch.insert(
        "INTO subscriptions",
        sequence=started.sequence,
        subscription_id=subscription.subscription_id,
        ticker=subscription.ticker,
        params=_dump(subscription.params),
        since_ns=subscription.since_ns,
        client_id=subscription.client_id,
        started_ns=started.started_ns,
    )


def stop_subscription(batch: Batch, subscription_id: str, *, stopped_ns: int) -> None:
    """Store the end of a subscription; what was still to be fetched as history for it is not fetched any more."""
    batch.add("UPDATE subscriptions SET stopped_ns = ? WHERE subscription_id = ?", stopped_ns, subscription_id)
    batch.add("DELETE FROM realtime_history WHERE subscription_id = ? AND NOT submitted", subscription_id)


def store_job(batch: Batch, job: RealtimeJob) -> None:
    """Store a new or changed job, without its positions."""
    batch.insert(
        "OR REPLACE INTO realtime_jobs",
        job=job.id,
        ticker=job.ticker,
        job_id=job.dispatch_id,
        params=job.sent and _dump(job.sent),
        dispatched_ns=job.dispatched_ns,
        dispatches=job.dispatches,
        failures=job.failures_in_a_row,
        error=job.error,
    )


def store_positions(batch: Batch, job: RealtimeJob) -> None:
    """Store the positions of a job in place of those before."""
    batch.add("DELETE FROM realtime_positions WHERE job = ?", job.id)
    for period in job.positions:
        store_position(batch, job, period)


def store_position(batch: Batch, job: RealtimeJob, period: int) -> None:
    """Store the position of one series of a job."""
    position = job.positions[period]
    batch.insert(
        "OR REPLACE INTO realtime_positions",
        job=job.id,
        period_seconds=period,
        from_ns=position.from_ns,
        next_ns=position.next_ns,
        last_trade_id=position.last_trade_id,
    )


def delete_job(batch: Batch, job: RealtimeJob) -> None:
    """Delete a job; its dispatches stay known, as their records may still arrive."""
    for table in ("realtime_jobs", "realtime_positions"):
        batch.add(f"DELETE FROM {table} WHERE job = ?", job.id)  # noqa: S608 - a name from the line above


def store_dispatch(batch: Batch, job: RealtimeJob, dispatch_id: str, *, issued_ns: int) -> None:
    """Store a job and its new dispatch, which may settle every series of the instrument at any time."""
    number = number_of(dispatch_id)
    batch.insert(
        "INTO dispatches",
        number=number,
        job_id=dispatch_id,
        job=job.id,
        ticker=job.ticker,
        period_seconds=TRADES_PERIOD,
        start_ns=0,
        end_ns=MAX_TIME_NS,
        issued_ns=issued_ns,
        realtime=True,
    )
    batch.insert("OR REPLACE INTO meta", name=LAST_NUMBER, value=number)
    store_job(batch, job)


def end_dispatch(batch: Batch, dispatch_id: str, *, ended_ns: int) -> None:
    """Store the end of a dispatch, whose retention begins now: its last records are as young as that."""
    number = number_of(dispatch_id)
    batch.add("UPDATE dispatches SET job = NULL, issued_ns = max(issued_ns, ?) WHERE number = ?", ended_ns, number)


def add_history(batch: Batch, part: HistoryPart) -> None:
    """Store a range of candles that is to be fetched as history, or its new subscription."""
    batch.insert(
        "OR REPLACE INTO realtime_history",
        request_id=part.request_id,
        subscription_id=part.subscription_id,
        ticker=part.ticker,
        period_seconds=part.period_seconds,
        start_ns=part.span.start_ns,
        end_ns=part.span.end_ns,
        client_id=part.client_id,
        submitted=False,
    )


def history_submitted(batch: Batch, request_id: str) -> None:
    """Store that the request of a range was accepted."""
    batch.add("UPDATE realtime_history SET submitted = 1 WHERE request_id = ?", request_id)


def find_subscription(connection: sqlite3.Connection, subscription_id: str) -> tuple[StartedSubscription, bool] | None:
    """Return a subscription and whether it was stopped; None if it was never accepted, or is forgotten."""
    sql = f"SELECT {_SUBSCRIPTION}, stopped_ns IS NOT NULL FROM subscriptions WHERE subscription_id = ?"  # noqa: S608
    row = connection.execute(sql, (subscription_id,)).fetchone()
    return (_read_subscription(row[:-1]), bool(row[-1])) if row else None


def last_sequence(connection: sqlite3.Connection) -> int:
    """Return the largest sequence of a subscription; 0 if there is none. Forgotten ones count."""
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'subscriptions'").fetchone()
    return int(row[0]) if row else 0


def read_subscriptions(connection: sqlite3.Connection) -> Iterator[StartedSubscription]:
    """Yield the subscriptions that were not stopped, oldest first."""
    sql = f"SELECT {_SUBSCRIPTION} FROM subscriptions WHERE stopped_ns IS NULL ORDER BY sequence"  # noqa: S608
    for row in connection.execute(sql):
        yield _read_subscription(row)


def read_history_ids(connection: sqlite3.Connection, subscription_ids: list[str], limit: int) -> dict[str, list[str]]:
    """Return the requests of submitted ranges by subscription, the latest ``limit`` of each, by time."""
    sql = (
        "SELECT request_id FROM realtime_history WHERE subscription_id = ? AND submitted"
        " ORDER BY end_ns DESC, period_seconds LIMIT ?"
    )
    found = {each: connection.execute(sql, (each, limit)).fetchall() for each in subscription_ids}
    return {each: [request_id for (request_id,) in reversed(rows)] for each, rows in found.items()}


def read_unsubmitted(connection: sqlite3.Connection) -> Iterator[HistoryPart]:
    """Yield the ranges whose requests were not submitted yet."""
    return _read_parts(connection, "NOT submitted")


def read_submitted(connection: sqlite3.Connection, after_ns: int) -> Iterator[HistoryPart]:
    """Yield the ranges that end after a time and whose requests were submitted."""
    return _read_parts(connection, "submitted AND end_ns > ?", after_ns)


def _read_parts(connection: sqlite3.Connection, where: str, *values: int) -> Iterator[HistoryPart]:
    sql = (
        "SELECT request_id, subscription_id, ticker, period_seconds, start_ns, end_ns, client_id"  # noqa: S608
        f" FROM realtime_history WHERE {where}"
    )
    for request_id, subscription_id, ticker, period, start_ns, end_ns, client_id in connection.execute(sql, values):
        yield HistoryPart(request_id, subscription_id, ticker, period, TimeRange(start_ns, end_ns), client_id)


def read_jobs(connection: sqlite3.Connection) -> Iterator[RealtimeJob]:
    """Yield the jobs with their positions, without their subscriptions."""
    columns = "job, ticker, job_id, params, dispatched_ns, dispatches, failures, error"
    for row in connection.execute(f"SELECT {columns} FROM realtime_jobs ORDER BY job"):  # noqa: S608
        job_id, ticker, dispatch_id, params, dispatched_ns, dispatches, failures, error = row
        positions = connection.execute(
            "SELECT period_seconds, from_ns, next_ns, last_trade_id FROM realtime_positions WHERE job = ?", (job_id,)
        )
        yield RealtimeJob(
            job_id,
            ticker,
            positions={period: SeriesPosition(from_ns, next_ns, last) for period, from_ns, next_ns, last in positions},
            dispatch_id=dispatch_id,
            sent=_load(params) if params else None,
            dispatched_ns=dispatched_ns,
            dispatches=dispatches,
            failures_in_a_row=failures,
            error=error,
        )


def _read_subscription(row: tuple[Any, ...]) -> StartedSubscription:
    subscription_id, ticker, params, since_ns, client_id, started_ns, sequence = row
    return StartedSubscription(
        Subscription(subscription_id, ticker, _load(params), since_ns, client_id), started_ns, sequence
    )


def _dump(params: RealtimeParams) -> str:
    return json.dumps([params.include_ticks, params.periods], separators=(",", ":"))


def _load(text: str) -> RealtimeParams:
    include_ticks, periods = json.loads(text)
    return RealtimeParams(include_ticks, tuple(periods))

"""Realtime subscriptions and jobs, and the history that belongs to them, as the database has them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from dexorder_common.model.realtime import StartedSubscription
from dexorder_relay.state.history import HistoryState
from dexorder_relay.state.leases import SlotKind
from dexorder_relay.state.realtime_job import RealtimeJob
from dexorder_relay.state.realtime_registry import HistoryPart, Registry
from dexorder_relay.store.rows import select
from dexorder_relay.store.schema import HISTORY_PART, POSITION, REALTIME_JOB, SUBSCRIPTION


def find_subscription(connection: sqlite3.Connection, subscription_id: str) -> tuple[StartedSubscription, bool] | None:
    """Return a subscription and whether it was stopped; None if it was never accepted, or is forgotten."""
    rows = select(connection, "SELECT * FROM subscriptions WHERE subscription_id = ?", subscription_id)
    row = next(rows, None)
    return (SUBSCRIPTION.read(row), row["stopped_ns"] is not None) if row else None


def read_subscriptions(connection: sqlite3.Connection) -> Iterator[StartedSubscription]:
    """Yield the subscriptions that were not stopped, oldest first."""
    rows = select(connection, "SELECT * FROM subscriptions WHERE stopped_ns IS NULL ORDER BY sequence")
    return map(SUBSCRIPTION.read, rows)


def read_history_ids(connection: sqlite3.Connection, subscription_ids: list[str], limit: int) -> dict[str, list[str]]:
    """Return the requests of submitted ranges by subscription, the latest ``limit`` of each, by time."""
    sql = (
        "SELECT request_id FROM realtime_history WHERE subscription_id = ? AND submitted"
        " ORDER BY end_ns DESC, period_seconds LIMIT ?"
    )
    found = {each: connection.execute(sql, (each, limit)).fetchall() for each in subscription_ids}
    return {each: [request_id for (request_id,) in reversed(rows)] for each, rows in found.items()}


def read_submitted(connection: sqlite3.Connection, after_ns: int) -> Iterator[HistoryPart]:
    """Yield the ranges that end after a time and whose requests were submitted."""
    return read_parts(connection, "submitted AND end_ns > ?", after_ns)


def read_parts(connection: sqlite3.Connection, where: str, *values: int) -> Iterator[HistoryPart]:
    """Yield the ranges that are fetched as history, by a condition."""
    rows = select(connection, f"SELECT * FROM realtime_history WHERE {where}", *values)  # noqa: S608 - from this folder
    return map(HISTORY_PART.read, rows)


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
    for started in read_subscriptions(connection):
        registry.subscriptions[started.subscription.subscription_id] = started
        if (found := registry.job_for(started.subscription.ticker)) is not None:
            found.subscriptions[started.subscription.subscription_id] = started
    registry.last_sequence = _last_sequence(connection)
    registry.history = {part.request_id: part for part in read_parts(connection, "NOT submitted")}


def read_realtime_jobs(connection: sqlite3.Connection) -> Iterator[RealtimeJob]:
    """Yield the realtime jobs with their positions, without their subscriptions."""
    for row in select(connection, "SELECT * FROM realtime_jobs ORDER BY id"):
        positions = select(connection, "SELECT * FROM realtime_positions WHERE job_id = ?", row["id"])
        yield REALTIME_JOB.read(row, positions={each["period_seconds"]: POSITION.read(each) for each in positions})


def _last_sequence(connection: sqlite3.Connection) -> int:
    """Return the largest sequence of a subscription; 0 if there is none. Forgotten ones count."""
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'subscriptions'").fetchone()
    return int(row[0]) if row else 0

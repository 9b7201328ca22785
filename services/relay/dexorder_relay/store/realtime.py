"""Realtime subscriptions and the history that belongs to them, as the database has them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from dexorder_common.model.realtime import StartedSubscription
from dexorder_relay.state.realtime_registry import HistoryPart
from dexorder_relay.store.rows import select
from dexorder_relay.store.schema import HISTORY_PART, SUBSCRIPTION


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

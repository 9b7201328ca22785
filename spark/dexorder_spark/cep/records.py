"""Records of the topics as rows of the engine: which ones count, and their rows. No I/O and no clock.

A record counts only if the relay has issued its dispatch, as for the tables, and only if that dispatch is a realtime
one: candles and trades that a request for history brings, and candles that replace closed ones, never fire a trigger.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dexorder_common.lake.market_rows import ROW_COLUMNS, Row, as_rows
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.history import IssuedDispatch
from dexorder_common.model.times import SECOND_NS
from dexorder_spark.records.selection import Record, counts
from dexorder_spark.tables.ohlc import CANDLES
from dexorder_spark.tables.table import PageTable
from dexorder_spark.tables.ticks import TRADES

TABLES: Mapping[str, PageTable] = {each.topic: each for each in (CANDLES, TRADES)}
REPEATED_NS = SECOND_NS
"""Trades that are younger than the newest one minus this are told from their repetitions by their ids. Older ones are
late for every trigger that waits no longer for late rows."""


def rows_of(record: Record, issued: Mapping[str, IssuedDispatch], *, now_ns: int) -> list[Row] | None:
    """Return the rows with which a record can fire triggers; None if it does not count.

    Raises:
        InvalidRequest: It counts, and its rows can't be read.
    """
    if record.headers.amends or not counts(record, issued, now_ns=now_ns):
        return None
    try:
        decoded = record.table.decode(record.headers, record.payload)
    except Exception as error:  # each exception that a record's bytes cause
        raise InvalidRequest(f"a record of {record.series} can't be read: {error}") from error
    return as_rows(decoded, ROW_COLUMNS[record.series.dataset])


def without_repeated(rows: Sequence[Row], recent: dict[str, int]) -> list[Row]:
    """Return the new trades, and keep in ``recent`` the ids of trades that may come again."""
    kept = []
    for row in rows:
        if row[1] not in recent:
            recent[row[1]] = row[0]
            kept.append(row)
    before_ns = max(recent.values(), default=0) - REPEATED_NS
    for trade_id in [name for name, time_ns in recent.items() if time_ns < before_ns]:
        del recent[trade_id]
    return kept

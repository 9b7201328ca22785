"""Order of the rows of ``trading.ticks`` and ``trading.tickers`` as readers get them, however they read. Pure."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dexorder_common.lake.tables import TICKERS
from dexorder_common.model.datasets import TRADES, Dataset

_LENGTH = "length of trade_id"


def in_order(rows: pa.Table, dataset: Dataset) -> pa.Table:
    """Return the rows of a series ascending: by time, and trades of one time by id."""
    return sort_trades(rows) if dataset is TRADES else rows.sort_by(dataset.time_column)


def sort_trades(rows: pa.Table) -> pa.Table:
    """Return trades by time and id.

    Ids are numbers at nearly every exchange, and the longer one is larger then; equally long ones compare as text.
    """
    columns = rows.column_names
    order: Any = [("time", "ascending"), (_LENGTH, "ascending"), ("trade_id", "ascending")]
    return rows.append_column(_LENGTH, pc.utf8_length(rows["trade_id"])).sort_by(order).select(columns)


def last_snapshots(rows: pa.Table, venue: str) -> pa.Table:
    """Return the last snapshot of each market of an exchange among the rows, by ticker."""
    newest_first: Any = [("ticker", "ascending"), *((name, "descending") for name in (*TICKERS.version, "time"))]
    rows = rows.filter(pc.ends_with(rows["ticker"], f".{venue}")).sort_by(newest_first)
    tickers: Any = rows["ticker"]
    if not len(tickers):
        return rows
    differs = pc.not_equal(tickers[1:], tickers[:-1])
    return rows.filter(pa.chunked_array([pa.array([True]), *differs.chunks], pa.bool_()))

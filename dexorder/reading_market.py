"""Trades and snapshots of tickers, read from Iceberg as they are now. Blocking; the async client uses a thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import expressions

from dexorder.reading import load_table, readable
from dexorder.services.common.lake.tables import TICKERS, TICKS, trades_in
from dexorder.services.common.model.time_range import TimeRange
from dexorder.services.common.model.times import iso_microseconds

_TRADES = ("ticker", "trade_id", "time", "price", "amount", "side", "received_at")
_SNAPSHOTS = tuple(name for name in TICKERS.arrow.names if name not in TICKERS.version)


def read_trades(name: str, properties: Mapping[str, str], ticker: str, span: TimeRange) -> pa.Table:
    """Return the stored trades of a market in a range, by time and id; CatalogError as `reading.load_table`."""
    table = load_table(name, properties, TICKS)
    with readable(TICKS):
        rows = table.scan(trades_in(ticker, span), selected_fields=_TRADES).to_arrow()
    # Ids are numbers at nearly every exchange; longer ones are larger then.
    rows = rows.append_column("length", pc.utf8_length(rows["trade_id"]))
    order: Any = [("time", "ascending"), ("length", "ascending"), ("trade_id", "ascending")]
    return rows.sort_by(order).select(_TRADES)


def read_snapshots(name: str, properties: Mapping[str, str], venue: str, since_ns: int) -> pa.Table:
    """Return the last snapshot of each market of an exchange that was received since a time, by ticker.

    CatalogError as `reading.load_table`.
    """
    table = load_table(name, properties, TICKERS)
    made: Any = expressions  # its constructors' annotations do not cover (column, value)
    received = made.GreaterThanOrEqual("received_at", iso_microseconds(since_ns))
    with readable(TICKERS):
        rows = table.scan(received).to_arrow()
    rows = rows.filter(pc.ends_with(rows["ticker"], f".{venue}"))
    newest_first: Any = [("ticker", "ascending"), *((each, "descending") for each in (*TICKERS.version, "time"))]
    rows = rows.sort_by(newest_first)
    tickers = rows["ticker"].to_pylist()
    first = [n == 0 or tickers[n - 1] != each for n, each in enumerate(tickers)]
    return rows.filter(pa.array(first, pa.bool_())).select(_SNAPSHOTS)

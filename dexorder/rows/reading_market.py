"""Trades and snapshots of tickers, read from Iceberg as they are now. Blocking; the async client uses a thread."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from dexorder.rows.reading import load_table, readable
from dexorder_common.lake.market_rows import last_snapshots, sort_trades
from dexorder_common.lake.tables import TICKERS, TICKS, received_in, rows_in
from dexorder_common.model.datasets import TRADES
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange


def read_trades(name: str, properties: Mapping[str, str], ticker: str, span: TimeRange) -> pa.Table:
    """Return the stored trades of a market in a range, by time and id; CatalogError as `reading.load_table`."""
    table = load_table(name, properties, TICKS)
    with readable(TICKS):
        rows = table.scan(rows_in(Series(ticker, dataset=TRADES), span)).to_arrow()
    return sort_trades(rows)


def read_snapshots(name: str, properties: Mapping[str, str], venue: str, span: TimeRange) -> pa.Table:
    """Return the last snapshot of each market of an exchange that was received in a range, by ticker.

    CatalogError as `reading.load_table`.
    """
    table = load_table(name, properties, TICKERS)
    with readable(TICKERS):
        rows = table.scan(received_in(span)).to_arrow()
    return last_snapshots(rows, venue)

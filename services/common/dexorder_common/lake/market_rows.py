"""Rows of the market tables as readers and the trigger engine take them: their order, and stored ones."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog

from dexorder_common.lake.arrow_types import MICROSECONDS
from dexorder_common.lake.tables import OHLC, TICKERS, TICKS, rows_in
from dexorder_common.model.datasets import CANDLES, TRADES, Dataset
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange

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


CANDLE_COLUMNS = ("open_time", "open", "high", "low", "close", "volume", "quote_volume", "trades")
TRADE_COLUMNS = ("time", "trade_id", "price", "amount", "side")
ROW_COLUMNS = {CANDLES: CANDLE_COLUMNS, TRADES: TRADE_COLUMNS}
Row = tuple[Any, ...]


def stored_rows(catalog: Catalog, series: Series, span: TimeRange) -> list[Row]:
    """Return the candles that open in a range, or the trades of the range, ascending.

    Trades of one time are in the order of their ids, as far as these are numbers. None without the table.
    """
    is_trades = series.dataset is TRADES
    table = (TICKS if is_trades else OHLC).load(catalog)
    if table is None or table.current_snapshot() is None:
        return []
    if not is_trades:
        found = table.scan(rows_in(series, span), selected_fields=CANDLE_COLUMNS).to_arrow()
        return as_rows(found.sort_by("open_time"), CANDLE_COLUMNS)
    found = table.scan(rows_in(series, span), selected_fields=TRADE_COLUMNS).to_arrow()
    return as_rows(sort_trades(found), TRADE_COLUMNS)


def as_rows(table: pa.Table | pa.RecordBatch, columns: tuple[str, ...]) -> list[Row]:
    """Return the rows of a table; the first column is a time, which becomes nanoseconds since the epoch."""
    times: Any = pc.cast(pc.cast(table.column(columns[0]), MICROSECONDS), pa.int64())
    nanoseconds = pc.multiply(times, 1_000).to_pylist()
    return list(zip(nanoseconds, *(table.column(name).to_pylist() for name in columns[1:]), strict=True))

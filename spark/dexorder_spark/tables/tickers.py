"""Ticker snapshots as a table: decoding and validation of a record of snapshots of one exchange's markets.

A record is good if each snapshot is of a market of the exchange that the headers name, has a time, and no value that is
infinite, not a number or, for amounts, below 0. Values that the exchange does not give are null.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dexorder_common.lake.tables import TICKERS
from dexorder_common.model import datasets
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.instrument import ALL_SYMBOLS, MAX_TICKER_LENGTH, Instrument, Series
from dexorder_common.model.page import MAX_RECORD_SNAPSHOTS, Kind, PageHeaders
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import MAX_TIME_NS, SECOND_NS
from dexorder_protos.dexorder.market.v1 import market_pb2 as pb
from dexorder_spark.tables.columns import (
    MessageColumns,
    check_texts,
    check_times,
    check_without_period,
    microseconds,
    refuse_first,
    repeated,
)
from dexorder_spark.tables.table import SAMPLE_DISPATCH, PageTable

_AMOUNTS = ("bid_size", "ask_size", "base_volume", "quote_volume")
_VALUES = ("last", "bid", "ask", "bid_size", "ask_size", "open", "high", "low", "base_volume", "quote_volume")
_FIELDS: dict[str, pa.DataType] = {
    "ticker": pa.string(),
    "time_ns": pa.uint64(),
    **dict.fromkeys(_VALUES, pa.float64()),
    "received_ns": pa.uint64(),
}
decode_snapshots = MessageColumns(
    pb.TickerSnapshots, repeated("snapshots", _FIELDS), "the value of {size} bytes is not a TickerSnapshots"
)


def check_headers(headers: PageHeaders) -> None:
    """Raise InvalidRequest if the headers do not belong to a record of ticker snapshots."""
    if not Instrument.parse(headers.ticker).is_whole_exchange:
        raise InvalidRequest(f"ticker {headers.ticker!r} of ticker snapshots is not {ALL_SYMBOLS}.EXCHANGE")
    check_without_period(headers, "a record of ticker snapshots")


def decode_page(headers: PageHeaders, payload: bytes) -> pa.RecordBatch:
    """Return the snapshots of a good record; else InvalidRequest names the first snapshot at fault."""
    columns, _ = decode_snapshots.rows([payload], "ticker snapshots", MAX_RECORD_SNAPSHOTS)
    times_ns, received_ns = columns["time_ns"].to_numpy(), columns["received_ns"].to_numpy()
    tickers: list[str] = columns["ticker"].to_pylist()
    size = len(tickers)
    check_texts("snapshot", tickers, "ticker", MAX_TICKER_LENGTH)
    venue = Instrument.parse(headers.ticker).venue
    others = [each.rpartition(".")[0] in ("", ALL_SYMBOLS) or each.rpartition(".")[2] != venue for each in tickers]
    refuse_first("snapshot", others, f"is of a ticker that is not SYMBOL.{venue}")
    check_times("snapshot", times_ns, "time_ns", 1, MAX_TIME_NS)
    check_times("snapshot", received_ns, "received_ns", 0, MAX_TIME_NS)
    for name in _VALUES:
        value = columns[name].to_numpy(zero_copy_only=False)  # null becomes NaN
        bad = ~np.isfinite(value) & columns[name].is_valid().to_numpy(zero_copy_only=False)
        refuse_first("snapshot", bad, f"has a {name} that is not a number")
        if name in _AMOUNTS:
            refuse_first("snapshot", value < 0, f"has a {name} below 0")
    rows = pa.record_batch(
        [
            columns["ticker"],
            microseconds(times_ns),
            *(columns[name] for name in _VALUES),
            microseconds(received_ns),
            pa.repeat(headers.dispatch, size),
            pa.repeat(pa.scalar(headers.page, pa.int32()), size),
        ],
        schema=TICKERS.arrow,
    )
    rows = rows.take(pc.sort_indices(rows, sort_keys=[("time", "ascending"), ("ticker", "ascending")]))
    _refuse_doubles(rows)
    return rows


def _refuse_doubles(rows: pa.RecordBatch) -> None:
    """Refuse a record with two snapshots of one market at one time. The rows are sorted by both."""
    if rows.num_rows < 2:
        return
    before, after = rows.slice(0, rows.num_rows - 1), rows.slice(1)
    same = [pc.equal(before.column(name), after.column(name)) for name in TICKERS.key]
    for place, is_double in enumerate(pc.and_(*same).to_pylist()):
        if is_double:
            raise InvalidRequest(f"record has two snapshots of {rows.column('ticker')[place]} at one time")


def sample_page() -> tuple[PageHeaders, bytes]:
    """Return a good record of an invented exchange."""
    snapshots = [pb.TickerSnapshot(ticker=f"S{n}/PAGE.NONE", time_ns=SECOND_NS, last=1.0) for n in range(500)]
    span = TimeRange(0, 2 * SECOND_NS)
    ticker = Series.whole_exchange("NONE", datasets.TICKERS).ticker
    headers = PageHeaders(Kind.TICKERS, ticker, 0, SAMPLE_DISPATCH, 0, span, 1)
    return headers, pb.TickerSnapshots(snapshots=snapshots).SerializeToString()


SNAPSHOTS = PageTable(
    TICKERS,
    datasets.TICKERS,
    check=check_headers,
    decode=decode_page,
    sample=sample_page,
    kind=Kind.TICKERS,
)
